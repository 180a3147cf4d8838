"""A run that is saved and loaded goes on as if nothing had happened, bit for bit."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise._streaming import decoded, encoded

COUNTS = [200, 60, 25, 9, 3]
EPOCHS, STEPS = 6, 5


class Run:
    """A small training in which everything is a function of the state."""

    def __init__(self, method: str, slopes: Any, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.criterion = cw.Criterion(
            method, COUNTS, epochs=EPOCHS, defer_at=4, warmup=1, slopes=slopes, **settings
        )
        self.losses: list[Tensor] = []

    def steps(self, first: int, last: int) -> "Run":
        for number in range(first, last):
            epoch, step = divmod(number, STEPS)
            if step == 0:
                self.criterion.start_epoch(epoch)
            generator = torch.Generator().manual_seed(number)
            inputs = torch.randn(32, 6, generator=generator)
            target = torch.randint(5, (32,), generator=generator)
            loss = self.criterion(self.model(inputs), target, features=inputs)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.detach())
        return self

    def save(self) -> bytes:
        buffer = io.BytesIO()
        parts = {"model": self.model, "optimizer": self.optimizer, "criterion": self.criterion}
        torch.save({name: part.state_dict() for name, part in parts.items()}, buffer)
        return buffer.getvalue()

    def load(self, saved: bytes) -> "Run":
        state = torch.load(io.BytesIO(saved), weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.criterion.load_state_dict(state["criterion"])
        return self


def same(one: Run, other: Run) -> bool:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    mine, theirs = one.criterion.state_dict(), other.criterion.state_dict()
    return (
        all(torch.equal(a, b) for a, b in pairs)
        and mine.keys() == theirs.keys()
        and all(torch.equal(mine[k], theirs[k]) for k in mine)
    )


METHODS = [
    ("cvs+adrw", "stable"),
    ("cvs", "released"),
    ("cvs", cw.SlopeConfig(group_by="score", logits="adjusted", momentum=0.5)),
    ("mla+drw", "paper"),
    ("ib", "stable"),
    ("ce+drw", None),
]


@pytest.mark.parametrize("at", [1, STEPS, 2 * STEPS + 3, 4 * STEPS, 4 * STEPS + 1, 6 * STEPS - 1])
@pytest.mark.parametrize(("method", "slopes"), METHODS)
def test_resumed_equals_uninterrupted_bit_for_bit(method, slopes, at):
    whole = Run(method, slopes).steps(0, EPOCHS * STEPS)
    saved = Run(method, slopes).steps(0, at).save()
    resumed = Run(method, slopes).load(saved).steps(at, EPOCHS * STEPS)
    assert same(resumed, whole)
    assert all(map(torch.equal, resumed.losses, whole.losses[at:]))


def test_a_state_that_forgets_the_statistics_would_be_noticed():
    whole = Run("cvs", "paper").steps(0, EPOCHS * STEPS)
    at = 2 * STEPS + 3
    resumed = Run("cvs", "paper").load(Run("cvs", "paper").steps(0, at).save())
    resumed.criterion.statistics().count.zero_()
    assert not same(resumed.steps(at, EPOCHS * STEPS), whole)


def test_the_loaded_epoch_may_be_started_again_by_the_loop():
    at = 2 * STEPS + 3
    whole = Run("cvs", "paper").steps(0, EPOCHS * STEPS)
    resumed = Run("cvs", "paper").load(Run("cvs", "paper").steps(0, at).save())
    resumed.criterion.start_epoch(2)
    assert same(resumed.steps(at, EPOCHS * STEPS), whole)


def test_a_criterion_inside_a_model_is_saved_with_it():
    model = nn.ModuleDict(
        {"net": nn.Linear(2, 5), "criterion": Run("cvs", "paper").steps(0, 12).criterion}
    )
    state = copy.deepcopy(model.state_dict())
    twin = nn.ModuleDict({"net": nn.Linear(2, 5), "criterion": Run("cvs", "paper").criterion})
    twin.load_state_dict(state)
    loaded = twin["criterion"]
    assert isinstance(loaded, cw.Criterion)
    assert loaded.epoch == 2
    assert loaded.table().count.sum() == 2 * 32


def test_after_loading_any_epoch_may_be_started_once():
    run = Run("cvs", "paper").steps(0, 2 * STEPS)
    for epoch in (0, 1, 2, 5):
        twin = Run("cvs", "paper").load(run.save())
        twin.criterion.start_epoch(epoch)
        assert twin.criterion.epoch == epoch
    twin = Run("cvs", "paper").load(run.save())
    twin.criterion.start_epoch(3)
    with pytest.raises(cw.StateError, match="epoch 3 is running, so 4 is next"):
        twin.criterion.start_epoch(5)


def test_a_fork_into_another_method_is_not_strict():
    trunk = Run("ce", "stable").steps(0, 4 * STEPS)
    fork = Run("ce+drw", "stable")
    with pytest.raises(cw.CheckpointError, match="method: saved 'ce: ce"):
        fork.criterion.load_state_dict(trunk.criterion.state_dict())
    fork.criterion.load_state_dict(trunk.criterion.state_dict(), strict=False)
    assert torch.equal(fork.criterion.kappa_star, trunk.criterion.kappa_star)
    fork.criterion.start_epoch(4)
    assert fork.criterion.terms.weighs


def test_a_fork_equals_the_uninterrupted_run():
    whole = Run("ce+drw", "stable").steps(0, EPOCHS * STEPS)
    trunk = Run("ce", "stable").steps(0, 4 * STEPS)
    fork = Run("ce+drw", "stable")
    fork.model.load_state_dict(trunk.model.state_dict())
    fork.optimizer.load_state_dict(trunk.optimizer.state_dict())
    fork.criterion.load_state_dict(trunk.criterion.state_dict(), strict=False)
    assert same(fork.steps(4 * STEPS, EPOCHS * STEPS), whole)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (lambda: Run("cvs", "paper", gamma=0.02), "method: saved 'cvs: mla\\(gamma=0.02\\)"),
        (lambda: Run("cvs", "released"), "slopes: saved"),
        (lambda: _criterion([200, 60, 25, 9, 4]), "of other class counts"),
        (lambda: _criterion([200, 60, 25]), "3 classes and 285 samples, here 5 classes"),
        (lambda: _criterion(COUNTS, epochs=7), "epochs: saved '7', here '6'"),
        (lambda: _criterion(COUNTS, warmup=2), "warmup: saved '2', here '1'"),
        (lambda: _criterion(COUNTS, defer_at=3), "phase_starts: saved"),
    ],
)
def test_a_foreign_state_is_refused_with_the_reason(saved, message):
    other = saved()
    state = (other.criterion if isinstance(other, Run) else other).state_dict()
    criterion = Run("cvs", "paper").criterion
    before = copy.deepcopy(criterion.state_dict())
    with pytest.raises(cw.CheckpointError, match=message):
        criterion.load_state_dict(state)
    after = criterion.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)


def _criterion(counts: list[int], **settings: Any) -> cw.Criterion:
    given = {"epochs": EPOCHS, "defer_at": 4, "warmup": 1, "slopes": "paper", **settings}
    return cw.Criterion("cvs", counts, **given)


def edited(state: dict[str, Tensor], **changes: Any) -> dict[str, Tensor]:
    """The state with other values in its bytes."""
    return {**state, "_extra_state": encoded({**decoded(state["_extra_state"]), **changes})}


def test_what_is_no_criterion_state_is_refused():
    criterion = Run("cvs", "paper").criterion
    with pytest.raises(cw.CheckpointError, match="no state of a classwise Criterion"):
        criterion.load_state_dict(nn.Linear(2, 2).state_dict())
    state = criterion.state_dict()
    with pytest.raises(cw.CheckpointError, match="no state of a classwise Criterion"):
        criterion.load_state_dict({**state, "_extra_state": {"epoch": 1}})
    with pytest.raises(cw.CheckpointError, match="no state of a classwise Criterion"):
        criterion.load_state_dict({**state, "_extra_state": encoded({"epoch": 1})})
    with pytest.raises(cw.CheckpointError, match="no state of a classwise Criterion"):
        criterion.load_state_dict({**state, "_extra_state": torch.tensor([123, 7])})
    with pytest.raises(cw.CheckpointError, match="state version 99, this is 1"):
        criterion.load_state_dict(edited(state, version=99))
    with pytest.raises(cw.CheckpointError, match="in epoch 60, here epochs=6"):
        criterion.load_state_dict(edited(state, epoch=60))
    with pytest.raises(cw.CheckpointError, match="other class counts"):
        criterion.load_state_dict(
            {**state, "class_counts": state["class_counts"].flip(0)}, strict=False
        )


def test_a_state_holds_tensors_only():
    state = Run("cvs+adrw", "stable").steps(0, 7).criterion.state_dict()
    assert all(isinstance(value, Tensor) for value in state.values())


def test_once_training_goes_on_a_loaded_criterion_is_as_strict_as_any():
    saved = Run("cvs", None).steps(0, 2 * STEPS + 1).save()
    run = Run("cvs", None).load(saved).steps(2 * STEPS + 1, 2 * STEPS + 2)
    with pytest.raises(cw.StateError, match="epoch 2 is running, so 3 is next"):
        run.criterion.start_epoch(5)


def test_statistics_of_one_rank_of_two_are_not_taken_for_those_of_both():
    run = Run("cvs", "paper").steps(0, 2 * STEPS + 3)
    state = edited(run.criterion.state_dict(), synced=False, process=[1, 2])
    twin = Run("cvs", "paper").criterion
    with pytest.warns(cw.ClasswiseWarning, match="epoch 2 were saved by rank 1 of 2 without sync"):
        twin.load_state_dict(state)
    assert twin.epoch == 2
    assert twin.table().count.sum() == 0
    assert torch.equal(twin.kappa_star, run.criterion.kappa_star)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_state_of_one_process_goes_on_in_two(rank: int, monkeypatch, recwarn):
    run = Run("cvs", "paper").steps(0, 2 * STEPS + 3)
    state, twin = run.criterion.state_dict(), Run("cvs", "paper").criterion
    monkeypatch.setattr("classwise._streaming.rank", lambda group: rank)
    monkeypatch.setattr("classwise._streaming.world_size", lambda group: 2)
    twin.load_state_dict(state)
    assert not recwarn
    # Rank 0 keeps them all, so that the sum over both is what one process has seen.
    count = run.criterion.table().count
    assert torch.equal(twin.table().count, count if rank == 0 else 0 * count)


def test_a_model_saved_before_it_had_a_criterion():
    state = {f"net.{name}": value for name, value in nn.Linear(2, 5).state_dict().items()}
    model = nn.ModuleDict({"net": nn.Linear(2, 5), "criterion": Run("cvs", "paper").criterion})
    with pytest.raises(RuntimeError, match=r"Missing key\(s\).*criterion\.bin_count"):
        model.load_state_dict(state)
    model.load_state_dict(state, strict=False)
    assert torch.equal(model.state_dict()["net.weight"], state["net.weight"])
