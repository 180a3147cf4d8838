"""The pages of the loops: they begin with the changed lines, and what they change runs."""

import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import classwise as cw

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.stem for path in (ROOT / "docs/loops").glob("*.md"))
COUNTS = [120, 40, 8]


def needed(package: str) -> Any:
    return pytest.importorskip(package, reason=f"the {package} package is not installed")


def blocks(page: str) -> list[tuple[str, str]]:
    text = (ROOT / f"docs/loops/{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def side(diff: str, dropped: str) -> str:
    """Return a diff's code as it was (without "+") or as it is to be (without "-")."""
    return "".join(line[1:] + "\n" for line in diff.splitlines() if not line.startswith(dropped))


def samples(size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    target = torch.multinomial(torch.tensor(COUNTS) / 1.0, size, replacement=True)
    return torch.randn(size, 6) + target[:, None], target


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_what_changes(page: str):
    language, first = blocks(page)[0]
    assert language == "diff"
    added = [line for line in first.splitlines() if line.startswith("+")]
    assert 1 <= len(added) <= 3
    assert any("cw.Criterion(" in line or "ImbalancedClassifier(" in line for line in added)


@pytest.mark.parametrize("page", PAGES)
def test_both_sides_of_a_diff_are_python(page: str):
    diffs = [code for language, code in blocks(page) if language == "diff"]
    for diff in diffs:
        assert {line[:1] for line in diff.splitlines()} <= {"+", "-", " "}
        for dropped in "+-":
            compile(side(diff, dropped), page, "exec")


def run(page: str, names: dict[str, Any], epochs: int | None = None) -> dict[str, Any]:
    """Run the first block of a page as it is to be, with as many epochs."""
    code = side(blocks(page)[0][1], "-")
    if epochs is not None:
        code, changed = re.subn(r"(epochs=|range\()\d+", rf"\g<1>{epochs}", code)
        assert changed == 2
    names = {"cw": cw, "torch": torch, "class_counts": COUNTS, **names}
    exec(compile(code, page, "exec"), names)
    return names


def test_plain_pytorch():
    found = run("pytorch", {"model": nn.Linear(6, 3), "loader": [samples()]}, epochs=5)
    assert found["criterion"].epoch == 4
    assert int(found["criterion"].table().count.sum()) == 16
    assert found["loss"].requires_grad


def test_dense():
    mask = torch.randint(3, (2, 5, 5))
    mask[:, 0] = 255
    names = {"model": nn.Conv2d(1, 3, 1), "loader": [(torch.randn(2, 1, 5, 5), mask)]}
    found = run("dense", {"pixel_counts": COUNTS, **names}, epochs=5)
    assert found["criterion"].epoch == 4
    # 2 images of 4 labelled rows of 5 pixels.
    assert int(found["criterion"].table().count.sum()) == 40


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*smaller than the logging interval")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*")
def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lightning = needed("lightning")
    runs, adapter = import_module("lightning_runs"), import_module("classwise.adapters.lightning")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lightning, "Trainer", partial(lightning.Trainer, **runs.QUIET))
    data = {"train_loader": runs.loader(), "val_loader": runs.loader()}
    names = {"ImbalanceCallback": adapter.ImbalanceCallback, "module": runs.Net(), **data}
    found = run("lightning", {"L": lightning, **names}, epochs=2)
    assert found["module"].criterion.epoch == 1
    assert "val/acc_few" in found["trainer"].callback_metrics


def test_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    transformers, _ = needed("transformers"), needed("accelerate")
    runs, adapter = (
        import_module("transformers_runs"),
        import_module("classwise.adapters.transformers"),
    )
    monkeypatch.chdir(tmp_path)
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    arguments = partial(transformers.TrainingArguments, dataloader_pin_memory=False, **quiet)
    names = {"Trainer": transformers.Trainer, "TrainingArguments": arguments}
    data = {"model": runs.model(), "dataset": {"train": runs.text()}}
    found = run("transformers", {"ImbalanceLoss": adapter.ImbalanceLoss, **names, **data}, epochs=2)
    assert found["imbalance"].criterion.epoch == 1
    assert found["trainer"].state.global_step == 8  # 28 samples in batches of 8, twice


def test_sklearn():
    pipeline, scalers = needed("sklearn.pipeline"), needed("sklearn.preprocessing")
    needed("skorch")
    inputs, target = samples(60)
    names = {
        "make_pipeline": pipeline.make_pipeline,
        "StandardScaler": scalers.StandardScaler,
        "ImbalancedClassifier": import_module("classwise.adapters.sklearn").ImbalancedClassifier,
    }
    found = run("sklearn", {"X": inputs.numpy(), "y": target.numpy(), **names})
    assert found["model"].predict(inputs.numpy()).shape == (60,)


def test_timm():
    seen: list[int] = []

    def train_one_epoch(
        epoch: int, model: Any, loader: Any, optimizer: Any, loss_fn: Any, args: Any
    ) -> None:
        seen.append(loss_fn.epoch)
        for inputs, target in loader:
            soft = 0.9 * nn.functional.one_hot(target, 3) + 0.1 / 3
            loss_fn(model(inputs), soft).backward()

    names = {"model": nn.Linear(6, 3), "loader_train": [samples()], "optimizer": None, "args": None}
    names |= {"num_epochs": 3, "start_epoch": 0, "device": "cpu"}
    run("timm", {"train_one_epoch": train_one_epoch, **names})
    assert seen == [0, 1, 2]


def test_every_page_has_a_test():
    assert {f"test_{page}" for page in PAGES if page != "pytorch"} <= set(globals())
