"""The Lightning callback against plain loops, uninterrupted trainings and one process."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pl = pytest.importorskip("lightning.pytorch", reason="the lightning package is not installed")

import lightning_runs as runs  # noqa: E402
import ranks  # noqa: E402
from lightning.pytorch.tuner.tuning import Tuner  # noqa: E402

import classwise as cw  # noqa: E402
from classwise.adapters._samplers import refuse_replaced_samplers  # noqa: E402
from classwise.adapters.lightning import ImbalanceCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:DeprecationWarning"),
]


def weights(module: runs.Net) -> torch.Tensor:
    return module.net.weight.detach()


@pytest.mark.parametrize("found", [False, True], ids=["given", "found"])
def test_it_trains_as_a_plain_loop_does(found: bool):
    net, criterion = runs.by_hand(runs.new_criterion())
    given = runs.new_criterion()
    module = runs.Net(given if found else None)
    callback = ImbalanceCallback(None if found else given)
    runs.fit(module, callback)
    assert torch.equal(weights(module), net.weight)
    assert torch.equal(given.kappa_plus, criterion.kappa_plus)
    assert not torch.equal(given.kappa_plus, torch.ones(3))  # or the slopes were never used
    assert given.epoch == runs.EPOCHS - 1
    assert callback.criterion is given


def test_the_state_of_a_module_is_left_as_it_was():
    module = runs.Net()
    names = set(module.state_dict())
    given = runs.new_criterion()
    runs.fit(module, ImbalanceCallback(given))
    assert module.criterion is given
    assert set(module.state_dict()) == names


class Saves(pl.Callback):
    """Save in the middle of an epoch, and at the end of another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 9:
            trainer.save_checkpoint(self.folder / "middle.ckpt")

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.current_epoch == 2:
            trainer.save_checkpoint(self.folder / "end.ckpt")


class Resumable:
    """A loader that knows how many batches it has given; Lightning keeps that in checkpoints."""

    def __init__(self) -> None:
        self.given = self.skip = 0

    def __len__(self) -> int:
        return len(runs.loader())

    def __iter__(self) -> Any:
        self.given, self.skip = self.skip % len(self), 0
        for batch in list(runs.loader())[self.given :]:
            self.given += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skip = state["given"]


@pytest.mark.parametrize("found", [False, True], ids=["given", "found"])
def test_a_resumed_fit_goes_on_exactly(found: bool, tmp_path: Path):
    def fresh() -> tuple[runs.Net, ImbalanceCallback]:
        criterion = runs.new_criterion()
        module = runs.Net(criterion if found else None)
        return module, ImbalanceCallback(None if found else criterion)

    whole, callback = fresh()
    runs.fit(whole, callback, Resumable(), callbacks=[Saves(tmp_path)])
    for name in ("middle.ckpt", "end.ckpt"):
        module, resumed = fresh()
        runs.fit(module, resumed, Resumable(), ckpt=tmp_path / name)
        assert torch.equal(weights(module), weights(whole)), name
        assert torch.equal(resumed.criterion.kappa_plus, callback.criterion.kappa_plus), name
        assert torch.equal(resumed.criterion.kappa_star, callback.criterion.kappa_star), name


def test_a_checkpoint_without_the_criterion_is_refused(tmp_path: Path):
    module = runs.Net()
    trainer = pl.Trainer(max_epochs=1, enable_checkpointing=False, **runs.QUIET)
    trainer.fit(module, runs.loader(), runs.loader())
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(cw.CheckpointError, match="no state of the criterion"):
        runs.fit(module, ImbalanceCallback(runs.new_criterion()), ckpt=tmp_path / "plain.ckpt")
    holds = runs.Net(runs.new_criterion())
    with pytest.raises(cw.CheckpointError, match=r"no state of the criterion self.criterion: the"):
        runs.fit(holds, ImbalanceCallback(), ckpt=tmp_path / "plain.ckpt")


def test_a_checkpoint_of_a_module_that_held_its_criterion_is_named(tmp_path: Path):
    trainer = runs.fit(runs.Net(runs.new_criterion()), ImbalanceCallback())
    trainer.save_checkpoint(tmp_path / "held.ckpt")
    with pytest.raises(cw.CheckpointError, match=r"module that holds its criterion as self.crit"):
        runs.fit(runs.Net(), ImbalanceCallback(runs.new_criterion()), ckpt=tmp_path / "held.ckpt")


# A last window of one micro-batch, a last micro-batch of four samples, ignored targets.
@pytest.mark.parametrize("method", ["cb", "cvs+adrw", "focal+adrw", "ce"])
@pytest.mark.parametrize("micro", [2, 4])
def test_accumulated_gradients_are_those_of_one_batch(method: str, micro: int):
    net, criterion = runs.by_hand(runs.new_criterion(method), 8, runs.ignoring())
    module, callback = runs.Net(), ImbalanceCallback(runs.new_criterion(method))
    train = runs.loader(runs.ignoring(), batch=micro)
    runs.fit(module, callback, train, accumulate_grad_batches=8 // micro)
    assert torch.allclose(weights(module), net.weight, atol=1e-12)
    assert torch.allclose(callback.criterion.kappa_plus, criterion.kappa_plus, atol=1e-12)


def test_gradients_are_clipped_after_they_are_scaled():
    module, callback = runs.Net(), ImbalanceCallback(runs.new_criterion("cb"))
    norms = []

    class Norm(pl.Callback):
        def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
            if module.net.weight.grad is not None:
                norms.append(float(module.net.weight.grad.norm()))

    runs.fit(
        module,
        callback,
        runs.loader(batch=4),
        accumulate_grad_batches=2,
        gradient_clip_val=0.05,
        callbacks=[Norm()],
    )
    assert max(norms) <= 0.05 + 1e-9


def test_the_mean_of_micro_batches_is_another_gradient():
    net, _ = runs.by_hand(runs.new_criterion("cb"), 8)
    module = runs.Net()
    callback = ImbalanceCallback(runs.new_criterion("cb"), accumulation="mean")
    runs.fit(module, callback, runs.loader(batch=4), accumulate_grad_batches=2)
    assert not torch.allclose(weights(module), net.weight, atol=1e-3)


class Twice(runs.Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch, batch_idx) + super().training_step(batch, batch_idx)


class Linear(runs.Net):
    """Trains without making the logits."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        criterion: Any = self.criterion
        return criterion.linear(batch[0], self.net.weight, self.net.bias, batch[1])


def test_a_head_without_logits_is_accumulated_exactly_too():
    net, _ = runs.by_hand(runs.new_criterion("cvs+adrw"), 8, runs.ignoring())
    module, given = Linear(), runs.new_criterion("cvs+adrw")
    train = runs.loader(runs.ignoring(), batch=2)
    runs.fit(module, ImbalanceCallback(given), train, accumulate_grad_batches=4)
    assert torch.allclose(weights(module), net.weight, atol=1e-12)
    assert "linear" not in vars(given)  # as it was


class Functional(runs.Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])


def test_a_training_with_another_loss_is_noticed():
    callback = ImbalanceCallback(runs.new_criterion(), attribute="loss_fn", metrics=False)
    with (
        pytest.warns(cw.ClasswiseWarning, match="did not call the criterion in the first batch"),
        pytest.raises(cw.StateError, match=r"not call .* in an epoch: it is self.loss_fn"),
    ):
        runs.fit(Functional(), callback)


class Tuned(runs.Net):
    """A module of which Lightning's tuner may change rate and batch size."""

    def __init__(self, criterion: torch.nn.Module | None = None) -> None:
        super().__init__(criterion)
        self.lr, self.batch_size = 0.3, 8

    def train_dataloader(self) -> Any:
        return runs.loader(batch=self.batch_size)

    def val_dataloader(self) -> Any:
        return runs.loader(runs.data(9))


@pytest.mark.parametrize("found", [False, True], ids=["given", "found"])
def test_lightnings_tuner_leaves_nothing_behind(
    found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # where the tuner puts its checkpoint
    net, criterion = runs.by_hand(runs.new_criterion())
    given = runs.new_criterion()
    module = Tuned(given if found else None)
    callback = ImbalanceCallback(None if found else given)
    quiet = {**runs.QUIET, "callbacks": [callback], "max_epochs": runs.EPOCHS}
    trainer = pl.Trainer(enable_checkpointing=False, **quiet)
    Tuner(trainer).lr_find(module, num_training=20, update_attr=False)
    trainer.fit(module)
    assert torch.equal(weights(module), net.weight)
    assert torch.equal(given.kappa_plus, criterion.kappa_plus)


def test_what_cannot_be_accumulated_exactly_is_refused():
    with pytest.raises(cw.StateError, match=r"twice in one training_step.*accumulation='mean'"):
        runs.fit(Twice(), ImbalanceCallback(runs.new_criterion()), accumulate_grad_batches=2)
    with pytest.raises(cw.StateError, match="two criteria cannot both scale"):
        runs.fit(
            runs.Net(runs.new_criterion()),
            ImbalanceCallback(),
            accumulate_grad_batches=2,
            callbacks=[ImbalanceCallback(runs.new_criterion(), attribute="other")],
        )
    # Without accumulation both are nobody's business.
    runs.fit(Twice(), ImbalanceCallback(runs.new_criterion()))


def test_after_a_training_the_criterion_is_free():
    given = runs.new_criterion()
    runs.fit(runs.Net(), ImbalanceCallback(given), accumulate_grad_batches=2)
    assert not given._forward_pre_hooks
    assert not given._forward_hooks
    assert "linear" not in vars(given)


def test_it_logs_what_measure_finds():
    module, callback = runs.Net(), ImbalanceCallback(runs.new_criterion())
    trainer = runs.fit(module, callback)
    measured = cw.measure(module.eval(), runs.loader(runs.data(9)), runs.COUNTS)
    errors = cw.calibration_error(measured.table, measured.shots)
    logged = trainer.callback_metrics
    for name in ("many", "medium", "few", "balanced"):
        assert logged[f"val/acc_{name}"] == pytest.approx(float(measured.accuracy[name]))
    assert logged["val/acc"] == pytest.approx(float(measured.accuracy["overall"]))
    assert logged["val/ece"] == pytest.approx(float(errors.ece))
    for name in ("many", "medium", "few"):
        assert logged[f"val/ece_{name}"] == pytest.approx(float(errors.group_ece[name]))
    (tested,) = trainer.test(module, runs.loader(runs.data(9)), verbose=False)
    assert tested["test/acc_few"] == pytest.approx(float(measured.accuracy["few"]))


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the compiler, about itself
@pytest.mark.parametrize("found", [False, True], ids=["given", "found"])
def test_compiled_modules_are_trained_and_measured_alike(found: bool):
    net, _ = runs.by_hand(runs.new_criterion("cb"))
    logged = []
    for compiled in (False, True):
        given = runs.new_criterion("cb")
        module: Any = runs.Net(given if found else None)
        trainer = runs.fit(
            torch.compile(module, backend="eager") if compiled else module,  # type: ignore[arg-type]
            ImbalanceCallback(None if found else given),
            runs.loader(batch=4),
            accumulate_grad_batches=2,
        )
        assert torch.allclose(weights(module), net.weight, atol=1e-12)
        logged.append({name: float(v) for name, v in trainer.callback_metrics.items()})
    assert logged[0] == pytest.approx(logged[1])
    assert "val/acc_few" in logged[0]


def test_cosine_logits_are_scaled_and_ignored_targets_left_out():
    module, callback = runs.Net(), ImbalanceCallback(runs.new_criterion("ldam"))
    trainer = runs.fit(module, callback)
    (found,) = trainer.validate(module, runs.loader(runs.ignoring()), verbose=False)
    inputs, target = runs.ignoring().tensors
    logits = 30 * module(inputs).detach()
    counted = target != -100
    right = (logits.argmax(1) == target)[counted]
    assert found["val/acc"] == pytest.approx(float(right.double().mean()))
    bins = cw.ClassBins(3)
    bins.update(logits[counted], target[counted])
    error = cw.calibration_error(bins.compute(), None).ece
    assert found["val/ece"] == pytest.approx(float(error))


def test_what_is_put_into_a_checkpoint_does_not_change_with_the_training():
    callback = ImbalanceCallback(runs.new_criterion())
    callback.criterion.start_epoch(0)
    checkpoint: dict[str, Any] = {}
    callback.on_save_checkpoint(None, None, checkpoint)  # type: ignore[arg-type]
    (saved,) = checkpoint["classwise"].values()
    callback.criterion(torch.randn(8, 3, requires_grad=True), torch.zeros(8).long())
    assert int(saved["bin_count"].sum()) == 0
    assert int(callback.criterion.table().count.sum()) == 8


def test_batch_samplers_that_lightning_makes_anew_are_refused():
    ours = torch.utils.data.DataLoader(runs.data(), batch_sampler=Epochs())
    connector = SimpleNamespace(use_distributed_sampler=True)
    trainer = SimpleNamespace(
        world_size=2, _accelerator_connector=connector, train_dataloader={"a": [ours]}
    )
    with pytest.raises(cw.StateError, match="put its distributed sampler around Epochs"):
        refuse_replaced_samplers(trainer)
    trainer.train_dataloader = runs.loader()
    refuse_replaced_samplers(trainer)


def test_thresholds_of_the_groups_can_be_set():
    trainer = runs.fit(runs.Net(), ImbalanceCallback(runs.new_criterion(), many=10, few=5))
    assert set(trainer.callback_metrics) == {
        *("val/acc", "val/acc_balanced", "val/ece"),
        *("val/acc_many", "val/ece_many", "val/acc_medium", "val/ece_medium"),
    }


def test_several_loaders_are_measured_apart():
    module, callback = runs.Net(), ImbalanceCallback(runs.new_criterion())
    trainer = pl.Trainer(
        max_epochs=runs.EPOCHS, callbacks=[callback], enable_checkpointing=False, **runs.QUIET
    )
    other = runs.data(5)
    trainer.fit(module, runs.loader(), [runs.loader(runs.data(9)), runs.loader(other)])
    measured = cw.measure(module, runs.loader(other), runs.COUNTS)
    assert trainer.callback_metrics["val/acc_few/dataloader_idx_1"] == pytest.approx(
        float(measured.accuracy["few"])
    )


class Aside(runs.Net):
    """Validates without the criterion."""

    callback: ImbalanceCallback | None = None

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        if self.callback is not None:
            self.callback.update(self(batch[0]), batch[1])


def test_a_validation_without_the_criterion_is_noticed():
    callback = ImbalanceCallback(runs.new_criterion())
    with pytest.raises(cw.StateError, match="val: nothing was measured"):
        runs.fit(Aside(), callback)
    module = Aside()
    module.callback = ImbalanceCallback(runs.new_criterion())
    trainer = runs.fit(module, module.callback)
    assert "val/acc_few" in trainer.callback_metrics
    runs.fit(Aside(), ImbalanceCallback(runs.new_criterion(), metrics=False))


def test_wrong_use_is_refused():
    with pytest.raises(cw.ArgumentError, match=r"Net holds no classwise.Criterion"):
        runs.fit(runs.Net(), ImbalanceCallback())
    module = runs.Net(runs.new_criterion())
    module.second = runs.new_criterion()
    with pytest.raises(cw.ArgumentError, match=r"several criteria: criterion, second"):
        runs.fit(module, ImbalanceCallback(attribute="third"))
    with pytest.raises(cw.StateError, match=r"plays over epochs=5, Trainer\(max_epochs=7\)"):
        runs.fit(runs.Net(), ImbalanceCallback(runs.new_criterion()), max_epochs=7)
    endless: dict[str, Any] = {"max_epochs": -1, "max_steps": 99}
    with pytest.raises(cw.StateError, match=r"epoch 5 begins, .* plays over epochs=5"):
        runs.fit(runs.Net(), ImbalanceCallback(runs.new_criterion()), **endless)
    used = ImbalanceCallback(runs.new_criterion())
    runs.fit(runs.Net(), used)
    with pytest.raises(cw.StateError, match="has been trained with up to epoch 4; make another"):
        runs.fit(runs.Net(), used)
    twice = ImbalanceCallback(runs.new_criterion())
    with pytest.raises(cw.StateError, match=r"two ImbalanceCallbacks play self.criterion"):
        runs.fit(runs.Net(), twice, callbacks=[twice])
    with pytest.raises(cw.ArgumentError, match="attribute=3 must be a name"):
        ImbalanceCallback(attribute=3)  # type: ignore[arg-type]
    with pytest.raises(cw.ArgumentError, match="few=20 and many=5 overlap"):
        ImbalanceCallback(many=5)
    with pytest.raises(cw.ArgumentError, match=r"must be a classwise.Criterion or None, got str"):
        ImbalanceCallback("cvs")  # type: ignore[arg-type]
    with pytest.raises(cw.UnknownNameError, match=r"accumulation='sum' is unknown"):
        ImbalanceCallback(accumulation="sum")
    with pytest.raises(cw.StateError, match="no criterion yet"):
        _ = ImbalanceCallback().criterion


class Epochs(torch.utils.data.Sampler[list[int]]):
    """A batch sampler that wants to know the epoch."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def __iter__(self) -> Any:
        return iter([[0, 1], [2, 3]])

    def __len__(self) -> int:
        return 2


def test_batch_samplers_are_told_the_epoch():
    sampler = Epochs()
    train = torch.utils.data.DataLoader(runs.data(), batch_sampler=sampler)
    runs.fit(runs.Net(), ImbalanceCallback(runs.new_criterion()), train)
    assert sorted(set(sampler.told)) == list(range(runs.EPOCHS))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    folder = tmp_path_factory.mktemp("ddp")
    return ranks.run_ranks(2, runs.on_a_rank, str(folder)), folder


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cvs+adrw", "focal+adrw"])
def test_two_ranks_with_accumulation_train_as_one_process(pair: Any, method: str):
    results, _ = pair
    # Rank 0 has the even samples, rank 1 the odd: two micro-batches of 4 on both are 16 in a row.
    net, criterion = runs.by_hand(runs.new_criterion(method), 16, runs.ignoring())
    for result in results:
        assert torch.allclose(result[method]["weight"], net.weight, atol=1e-9)
        assert torch.allclose(result[method]["kappa"], criterion.kappa_plus, atol=1e-9)


@pytest.mark.slow
def test_two_ranks_measure_once(pair: Any):
    results, _ = pair
    values = [result["cvs+adrw"]["acc_few"] for result in results]
    assert values[0] == values[1]
    expected = (results[0]["logits"].argmax(1) == results[0]["target"]).double().mean()
    for result in results:
        assert result["validated"] == pytest.approx(float(expected))


@pytest.mark.slow
def test_rank_zero_saves_the_statistics_of_both(pair: Any):
    _, folder = pair
    saved = torch.load(folder / "two.ckpt", weights_only=True)
    criterion = runs.new_criterion()
    criterion.load_state_dict(
        {
            name.removeprefix("criterion."): value
            for name, value in saved["state_dict"].items()
            if name.startswith("criterion.")
        }
    )
    counted = int((runs.ignoring().tensors[1] != -100).sum())
    assert int(criterion.table().count.sum()) == counted


@pytest.mark.slow
def test_a_sampler_that_lightning_replaces_is_refused(pair: Any):
    for result in pair[0]:
        assert "put its distributed sampler around WeightedRandomSampler" in result["refused"]
        assert "use_distributed_sampler=False" in result["refused"]


def test_without_lightning_one_line_says_what_to_install():
    code = (
        "import sys; sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\n"
        "import classwise.adapters.lightning"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().splitlines()[-1] == (
        "classwise.adapters.MissingExtraError: classwise.adapters.lightning needs lightning, which "
        'is not installed: pip install "classwise[adapters]".'
    )
    assert done.stderr.count("Traceback") == 1
