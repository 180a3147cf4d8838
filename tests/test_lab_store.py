"""Faults of the store: each is found, said, and mended by training again; none is trusted."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lab_runs import assert_same, executing, plan_of, wait_for_any

from classwise.cli import main
from classwise.errors import ArgumentError, ClasswiseWarning, StateError
from classwise.lab import Node, Plan, Store, execute, locks
from classwise.lab.execute import to_continue, train_node
from classwise.lab.locks import Busy, Holder, Lost
from classwise.train.observe import Silent

Fault = Callable[[Path], object]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("ce", "ce+drw")


@pytest.fixture(scope="module")
def whole(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which all is well."""
    root = tmp_path_factory.mktemp("whole")
    execute(plan, Store(root))
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def nodes_of(plan: Plan) -> tuple[Node, Node]:
    trunk, leaf = plan.chain(plan.leaves[1][1])
    return trunk, leaf


def cut(name: str) -> Fault:
    def fault(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return fault


def flip(name: str) -> Fault:
    def fault(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 16
        (folder / name).write_bytes(data)

    return fault


def gone(name: str) -> Fault:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Fault:
    return lambda folder: (folder / name).write_text(text, encoding="utf-8")


def honest_done(folder: Path) -> None:
    """Write ``done`` anew, so that every checksum in it is right."""
    from classwise.train.checkpoint import write_done  # noqa: PLC0415

    (folder / "done").unlink(missing_ok=True)
    write_done(folder, "done")


def twice(folder: Path) -> None:
    """What two writers at once would leave: an epoch twice, its checksum right."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[-1]]))
    honest_done(folder)


def another_phase(folder: Path) -> None:
    head = json.loads((folder / "config.json").read_text())
    head["identity"]["optim"]["lr"] = 0.123
    (folder / "config.json").write_text(json.dumps(head))
    honest_done(folder)


def no_identity(folder: Path) -> None:
    head = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**head, "identity": None}))
    honest_done(folder)


FINISHED: dict[str, tuple[Fault, str]] = {
    "truncated checkpoint": (cut("state.pt"), r"state\.pt has \d+ bytes instead of"),
    "truncated weights": (cut("model.safetensors"), r"model\.safetensors has \d+ bytes"),
    "empty weights": (write("model.safetensors", ""), "has 0 bytes instead of"),
    "missing weights": (gone("model.safetensors"), "model.safetensors is missing"),
    "missing metrics": (gone("metrics.jsonl"), "metrics.jsonl is missing"),
    "missing configuration": (gone("config.json"), "config.json is missing"),
    "flipped bit in weights": (flip("model.safetensors"), "model.safetensors was changed"),
    "flipped bit in checkpoint": (flip("state.pt"), r"state\.pt was changed"),
    "flipped bit in metrics": (flip("metrics.jsonl"), "metrics.jsonl was changed"),
    "torn metrics": (cut("metrics.jsonl"), r"metrics\.jsonl has \d+ bytes"),
    "an epoch twice": (twice, r"metrics\.jsonl has epochs 0, 1, 1 of 0 to 1"),
    "configuration of another phase": (another_phase, "config.json is of another phase"),
    "configuration of no phase": (no_identity, "config.json is of another phase"),
    "torn done": (cut("done"), "done cannot be read"),
    "empty done": (write("done", ""), "done cannot be read"),
    "done without files": (write("done", "{}"), "done says nothing of config.json"),
    "done of something else": (write("done", "[1]"), "done cannot be read"),
}


@pytest.mark.parametrize("name", FINISHED)
def test_a_damaged_phase_is_found_put_aside_and_trained_again(name, plan, whole, root):
    fault, message = FINISHED[name]
    trunk, leaf = nodes_of(plan)
    store = Store(root)
    fault(store.path(trunk.key))
    assert not store.finished(trunk.key)
    with pytest.warns(ClasswiseWarning, match=message) as caught:
        execute(plan, store)
    (warning,) = [w for w in caught if issubclass(w.category, ClasswiseWarning)]
    assert str(root / f"{trunk.key}.damaged-1") in str(warning.message)
    assert (root / f"{trunk.key}.damaged-1/reason").read_text().strip() in str(warning.message)
    for node in (trunk, leaf):
        assert store.finished(node.key, with_state=True)
        assert_same(store.path(node.key), whole / node.key)


def unfinished(folder: Path) -> None:
    """Make a phase look as one that was killed before its last epoch was written down."""
    (folder / "done").unlink()
    for name in ("model.safetensors", "final.safetensors", "result.json"):
        (folder / name).unlink(missing_ok=True)


UNFINISHED: dict[str, tuple[Fault, str | None]] = {
    "nothing else": (lambda folder: None, None),
    "truncated checkpoint": (cut("state.pt"), "damaged or no checkpoint"),
    "no checkpoint yet": (gone("state.pt"), None),
    "checkpoint of something else": (write("state.pt", "x" * 99), "damaged or no checkpoint"),
    "torn configuration": (cut("config.json"), "config.json cannot be read"),
    "no configuration": (gone("config.json"), "config.json is missing"),
    "metrics shorter than the checkpoint": (write("metrics.jsonl", ""), "is shorter than"),
    "unreadable metrics": (write("metrics.jsonl", "{\n{}\n"), "line 1 cannot be read"),
    "a torn line at the end": (
        lambda f: (f / "metrics.jsonl").open("a").write('{"epoch": 2, "lo'), None,
    ),
    "torn files": (write(".state.pt.4711.part", "x"), None),
    "a request to stop": (write(".stop", ""), None),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFINISHED)
def test_what_was_killed_goes_on_or_begins_again(name, plan, whole, root, recwarn):
    fault, message = UNFINISHED[name]
    store, (trunk, _) = Store(root), nodes_of(plan)
    unfinished(store.path(trunk.key))
    fault(store.path(trunk.key))
    execute(plan, store)
    said = [str(w.message) for w in recwarn if issubclass(w.category, ClasswiseWarning)]
    assert len(said) == (message is not None)
    assert not said or (message or "") in said[0]
    assert (root / f"{trunk.key}.damaged-1").exists() == (message is not None)
    for node in plan.nodes.values():
        assert_same(store.path(node.key), whole / node.key)
        assert not [p for p in store.path(node.key).iterdir() if p.name.startswith(".")]


def test_a_parent_whose_checkpoint_was_deleted_is_trained_again_only_when_it_is_continued(
    plan, whole, root
):
    store, (trunk, leaf) = Store(root), nodes_of(plan)
    (store.path(trunk.key) / "state.pt").unlink()
    before = (store.path(trunk.key) / "done").stat().st_mtime_ns
    execute(plan, store)  # nothing continues it: all is done
    assert (store.path(trunk.key) / "done").stat().st_mtime_ns == before
    shutil.rmtree(store.path(leaf.key))
    with pytest.warns(ClasswiseWarning, match="was deleted, and a phase is to continue it"):
        execute(plan, store)
    assert_same(store.path(leaf.key), whole / leaf.key)


def test_only_what_is_continued_needs_its_checkpoint(tmp_path):
    plan = plan_of("vs+tla", defer_at=2)
    store = Store(tmp_path)
    execute(plan, store)
    trunk, leaf = plan.chain(plan.leaves[0][1])
    assert to_continue(plan, store) == set()
    shutil.rmtree(store.path(leaf.key))
    assert to_continue(plan, store) == {trunk.key}


def test_a_folder_that_is_no_store(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArgumentError, match="is not a folder"):
        Store(tmp_path / "file")


# A full disk


@pytest.mark.parametrize("what", ["checkpoint", "weights", "metrics", "done"])
def test_a_full_disk_loses_nothing(what, plan, whole, tmp_path, monkeypatch):
    """The error says so; the next attempt goes on, and all is as if nothing had happened."""
    full = OSError(errno.ENOSPC, "No space left on device")
    name = {"checkpoint": "state.pt", "weights": "model.safetensors", "metrics": "metrics.jsonl",
            "done": "done"}[what]  # fmt: skip
    write_real, open_real, count = Path.replace, Path.open, [0]

    def replace(self: Path, target: Path) -> Path:
        count[0] += Path(target).name == name
        if Path(target).name == name and (what != "checkpoint" or count[0] == 2):
            raise full
        return write_real(self, target)

    def opened(self: Path, mode: str = "r", *args: object, **more: object) -> object:
        if self.name == "metrics.jsonl" and what == "metrics" and "a" in mode:
            raise full
        return open_real(self, mode, *args, **more)  # type: ignore[call-overload]

    store = Store(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        patch.setattr(Path, "open", opened)
        with pytest.raises(StateError, match="No space left on device"):
            execute(plan, store)
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.glob("*.lock"))
    execute(plan, store)
    for node in plan.nodes.values():
        assert_same(store.path(node.key), whole / node.key)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))  # no file may be longer
from classwise.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_disk_that_takes_no_more_bytes_ends_the_command_with_one_line(plan, whole, tmp_path):
    words = ["compare", "digits", "--imbalance", "exp:50", "--model", "mlp", "--epochs", "4",
             "--defer-at", "2", "--batch-size", "64", "--device", "cpu", "--methods", "ce,ce+drw",
             "--seeds", "1", "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out"),
             "--quiet"]  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "could not be written" in ended.stderr
    assert "Traceback" not in ended.stderr
    again = subprocess.run(
        [sys.executable, "-m", "classwise", *words], capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    for node in plan.nodes.values():
        assert_same(tmp_path / "store" / node.key, whole / node.key)


# Locks


def holder(path: Path, host: str, pid: int, age: float = 0.0) -> None:
    path.write_text(json.dumps({"host": host, "pid": pid, "token": "t"}))
    then = time.time() - age
    os.utime(path, (then, then))


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.parametrize(
    ("host", "pid", "age", "void"),
    [
        (socket.gethostname(), "dead", 0, True),
        (socket.gethostname(), "alive", 0, False),
        (socket.gethostname(), "alive", 3600, True),  # a process that took a dead one's number
        ("elsewhere", "alive", 0, False),
        ("elsewhere", "dead", 0, False),
        ("elsewhere", "alive", 3600, True),
    ],
)
def test_whose_lock_is_void(host, pid, age, void, plan, tmp_path):
    store, (trunk, _) = Store(tmp_path), nodes_of(plan)
    number = dead_pid() if pid == "dead" else os.getpid()
    holder(tmp_path / f"{trunk.key}.lock", host, number, age)
    if void:
        train_node(trunk, store, waits=False)
        assert store.finished(trunk.key)
        assert not (tmp_path / f"{trunk.key}.lock").exists()
        return
    with pytest.raises(Busy, match=rf"process {number} on {host}; wait for it, or delete"):
        train_node(trunk, store, waits=False)
    assert not store.path(trunk.key).exists()


def test_a_lock_that_nobody_finished_writing_expires(tmp_path):
    (tmp_path / "key.lock").write_text("")
    with pytest.raises(Busy), Store(tmp_path).lock("key"):
        pass
    os.utime(tmp_path / "key.lock", (0, 0))
    with Store(tmp_path).lock("key"):
        assert Holder.read(tmp_path / "key.lock") is not None
    assert not (tmp_path / "key.lock").exists()


def test_a_lock_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with (
        pytest.raises(StateError, match=r"key\.lock could not be written.*No space"),
        Store(tmp_path).lock("key"),
    ):
        pass
    assert [p.name for p in tmp_path.iterdir()] == [".mutex"]


def test_a_lock_is_touched_while_it_is_held(tmp_path):
    store = Store(tmp_path, expires=0.4)
    with store.lock("key"):
        time.sleep(0.8)
        with pytest.raises(Busy), store.lock("key"):
            pass


TAKE = """
import importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("locks", sys.argv[3])  # the rest loads for seconds
locks = sys.modules["locks"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(locks)
Busy, Lock = locks.Busy, locks.Lock
root, me = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
won = 0
for number in range(40):
    try:
        with Lock(root / f"{number}.lock", expires=60).held():
            with open(root / f"{number}.log", "a") as log:
                log.write(f"in {me}\\n"); log.flush()
                time.sleep(0.002)
                log.write(f"out {me}\\n")
    except Busy:
        pass
"""


def test_of_two_that_find_a_lock_void_one_gets_it(tmp_path):
    """Real processes race for forty locks of a dead one; no two are ever inside together."""
    pid = dead_pid()
    for number in range(40):
        holder(tmp_path / f"{number}.lock", socket.gethostname(), pid)
    words = [sys.executable, "-c", TAKE, str(tmp_path)]
    children = [
        subprocess.Popen(
            [*words, str(n), locks.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        child.communicate("go\n", timeout=60)
    for number in range(40):
        lines = (tmp_path / f"{number}.log").read_text().split("\n")[:-1]
        inside = [line.split() for line in lines]
        assert len(inside) >= 2
        for entering, leaving in zip(inside[::2], inside[1::2], strict=True):
            assert (entering[0], leaving[0]) == ("in", "out")
            assert entering[1] == leaving[1]


class TakenOver(Silent):
    """Stands still in the second epoch, while another takes the lock and trains the phase."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan, self.store, self.taken = plan, store, False

    def step(self, epoch: int, done: int, of: int) -> None:
        if epoch == 1 and not self.taken:
            self.taken = True
            trunk, _ = nodes_of(self.plan)
            path = self.store.root / f"{trunk.key}.lock"
            holder(path, "elsewhere", 1)


def test_who_lost_his_lock_stops_writing(plan, tmp_path):
    store, (trunk, _) = Store(tmp_path), nodes_of(plan)
    with pytest.raises(Lost, match="now trained by process 1 on elsewhere"):
        train_node(trunk, store, TakenOver(plan, store), waits=False)
    folder = store.path(trunk.key)
    assert not (folder / "done").exists()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
    assert Holder.read(tmp_path / f"{trunk.key}.lock") == Holder("elsewhere", 1, "t")


class TakenOverBetweenSteps(Silent):
    """Stands still after the last step of an epoch, while it is evaluated or about to be saved."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def step(self, epoch: int, done: int, of: int) -> None:
        if epoch == 1 and done == of:
            holder(self.path, "elsewhere", 1)


def test_who_lost_his_lock_after_the_last_step_writes_nothing(plan, tmp_path):
    store, (trunk, _) = Store(tmp_path), nodes_of(plan)
    path = tmp_path / f"{trunk.key}.lock"
    with pytest.raises(Lost, match="now trained by process 1 on elsewhere"):
        train_node(trunk, store, TakenOverBetweenSteps(path), waits=False)
    assert len((store.path(trunk.key) / "metrics.jsonl").read_text().splitlines()) == 1


# Several processes, killed processes


def test_killed_while_another_waits_for_the_same_phase(tmp_path, plan, whole):
    child = executing(tmp_path, "ce", "ce+drw", pause=0.1)
    child.wait_for_begin()
    states = []

    def kill(number: float) -> None:
        states.append(Store(tmp_path).entries()[0].state)
        child.kill()
        assert list(tmp_path.glob("*.lock"))  # it could not tidy up

    with pytest.MonkeyPatch.context() as patch:
        clock = types.SimpleNamespace(sleep=kill, monotonic=time.monotonic)
        patch.setattr(sys.modules["classwise.lab.execute"], "time", clock)  # where it would wait
        began = time.monotonic()
        execute(plan, Store(tmp_path))
    assert states == ["busy"]
    assert time.monotonic() - began < 30  # the lock of a dead process is not waited for
    for node in plan.nodes.values():
        assert_same(tmp_path / node.key, whole / node.key)
    assert not list(tmp_path.glob("*.damaged*"))


@pytest.mark.slow
def test_two_processes_share_one_plan(tmp_path, plan, whole):
    children = [executing(tmp_path, "ce", "ce+drw", pause=0.1) for _ in range(2)]
    for child in children:
        child.process.join(200)
        assert child.process.exitcode == 0
    begun = sum(child.begun.get_value() for child in children)
    assert begun == len(plan.nodes) == 3  # each phase once, whoever trained it
    for node in plan.nodes.values():
        assert_same(tmp_path / node.key, whole / node.key)
    assert not list(tmp_path.glob("*.damaged*"))
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.slow
def test_killed_at_ten_random_moments_by_two_processes_on_one_store(tmp_path, plan, whole):
    generator, killed = torch.Generator().manual_seed(0), 0
    for _ in range(10):
        children = [executing(tmp_path, "ce", "ce+drw", pause=0.1) for _ in range(2)]
        wait_for_any(children)
        time.sleep(float(torch.rand((), generator=generator)))
        killed += sum(child.kill() for child in children)
    assert killed >= 10
    execute(plan, Store(tmp_path))
    for node in plan.nodes.values():
        assert_same(tmp_path / node.key, whole / node.key)


# Housekeeping


def test_entries_say_what_lies_there(plan, root):
    store, (trunk, leaf) = Store(root), nodes_of(plan)
    (root / "thesis").mkdir()
    assert [entry.key for entry in store.entries()] == sorted(plan.nodes)
    assert {entry.state for entry in store.entries()} == {"done"}
    flip("model.safetensors")(store.path(leaf.key))
    unfinished(store.path(trunk.key))
    states = {entry.key: entry.state for entry in store.entries()}
    assert (states[trunk.key], states[leaf.key]) == ("unfinished", "done")
    checked = {entry.key: entry for entry in store.entries(verify=True)}
    assert checked[leaf.key].state == "damaged"
    assert "was changed" in checked[leaf.key].wrong
    holder(root / f"{trunk.key}.lock", "elsewhere", 1)
    states = {entry.key: entry.state for entry in store.entries()}
    assert states[trunk.key] == "busy"


def test_gc_deletes_what_nothing_needs_and_nothing_else(plan, root):
    store, (trunk, leaf) = Store(root), nodes_of(plan)
    other = root / "my-other-run"
    shutil.copytree(store.path(leaf.key), other)
    (store.path(trunk.key) / ".state.pt.1.part").write_bytes(b"x" * 1000)
    (store.path(trunk.key) / "state.pt").rename(root / "kept.pt")
    shutil.copytree(store.path(leaf.key), root / f"{leaf.key}.damaged-1")
    holder(root / f"{leaf.key}.lock", socket.gethostname(), dead_pid())
    size = sum(p.stat().st_size for p in (root / f"{leaf.key}.damaged-1").iterdir())
    assert store.gc(dry_run=True) == size + 1000
    assert (root / f"{leaf.key}.damaged-1").exists()
    assert store.gc() == size + 1000
    assert sorted(p.name for p in root.iterdir()) == sorted(
        [".mutex", *plan.nodes, "kept.pt", "my-other-run"]
    )
    assert store.gc() == 0


def test_gc_leaves_alone_what_is_being_trained(plan, root):
    store, (trunk, _) = Store(root), nodes_of(plan)
    unfinished(store.path(trunk.key))
    (store.path(trunk.key) / ".state.pt.1.part").write_bytes(b"x")
    (store.path(trunk.key) / "config.json").unlink()
    holder(root / f"{trunk.key}.lock", "elsewhere", 1)
    assert store.gc(unfinished=True) == 0
    assert (store.path(trunk.key) / ".state.pt.1.part").exists()
    (root / f"{trunk.key}.lock").unlink()
    assert store.gc(unfinished=True) > 0
    assert not store.path(trunk.key).exists()


def test_states_can_go_and_results_stay(plan, root):
    store = Store(root)
    before = execute(plan, store)
    assert store.gc(states=True) > 0
    assert not list(root.rglob("state.pt"))
    again = execute(plan, store)
    assert [record.result for record in again] == [record.result for record in before]


# The command


def lab(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["lab", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_lab_ls_show_and_gc(plan, root, capsys):
    trunk, leaf = nodes_of(plan)
    code, out, _ = lab(capsys, "ls", "--store", str(root))
    assert code == 0
    assert all(key in out for key in plan.nodes)
    code, out, _ = lab(capsys, "ls", "--json", "--store", str(root))
    assert code == 0
    assert {row["key"]: row["epochs"] for row in json.loads(out)} == {
        node.key: [node.first, node.stop] for node in plan.nodes.values()
    }
    code, out, _ = lab(capsys, "show", leaf.key[:6], "--store", str(root))
    shown = json.loads(out)
    assert (code, shown["key"], shown["parent"]) == (0, leaf.key, trunk.key)
    assert shown["identity"]["terms"] == leaf.identity["terms"]
    code, out, _ = lab(capsys, "gc", "--store", str(root))
    assert (code, out) == (0, "freed 0.0 MB\n")


def test_lab_tells_damage(plan, root, capsys):
    trunk, _ = nodes_of(plan)
    flip("state.pt")(root / trunk.key)
    code, out, _ = lab(capsys, "ls", "--check", "--store", str(root))
    assert code == 1
    assert f"{trunk.key}: state.pt was changed after it was written" in out
    code, out, _ = lab(capsys, "show", trunk.key, "--store", str(root))
    assert (code, json.loads(out)["state"]) == (1, "damaged")
    assert lab(capsys, "ls", "--store", str(root))[0] == 0
    code, out, _ = lab(capsys, "gc", "--dry-run", "--json", "--store", str(root))
    assert code == 0
    assert json.loads(out)["found"] > 0
    assert (root / trunk.key).exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["ls", "--store", "{root}/nowhere"], 2, "there is no store"),
        (["ls", "--store", "{root}/file"], 2, "there is no store"),
        (["show", "--store", "{root}"], 2, "lab show needs a key; lab ls lists them."),
        (["show", "ffffffff", "--store", "{root}"], 2, "no phase begins with 'ffffffff'"),
        (["show", "", "--store", "{root}"], 2, "3 phases begin with ''"),
        (["sohw", "--store", "{root}"], 2, "did you mean 'show'?"),
        (["gc", "--stats", "--store", "{root}"], 2, "did you mean '--states'?"),
        ([], 2, "lab needs"),
    ],
)
def test_wrong_words_of_lab(words, code, message, root, capsys):
    (root / "file").write_text("x")
    found, _, err = lab(capsys, *(word.format(root=root) for word in words))
    assert found == code
    assert message in err
    assert err.count("\n") == 1
