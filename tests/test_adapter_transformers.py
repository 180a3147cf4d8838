"""The loss and callback for Hugging Face's Trainer, against plain loops over whole batches."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the transformers package is not installed")
pytest.importorskip("accelerate", reason="the accelerate package is not installed")

import ranks
import transformers_runs as runs

import classwise as cw
from classwise.adapters.transformers import FILE, ImbalanceLoss, class_counts_from


def value(loss: torch.Tensor) -> float:
    return float(loss.detach())


# (method, micro-batch, attached)
WAYS = [
    ("cvs", 8, False),
    ("cvs", 2, False),  # by num_items_in_batch
    ("cvs+adrw", 8, False),  # by the criterion itself
    ("cvs+adrw", 2, True),  # by the labels of the whole step
    ("focal+adrw", 2, False),
    ("cb", 4, True),
]


@pytest.mark.parametrize("kind", ["text", "tokens", "images"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_gradients_are_those_of_one_batch(kind: str, way: tuple[str, int, bool], tmp_path: Path):
    method, micro, attach = way
    network, criterion = runs.by_hand(runs.new_criterion(method), kind)
    imbalance = ImbalanceLoss(runs.new_criterion(method))
    trainer = runs.new_trainer(
        tmp_path,
        imbalance,
        kind=kind,
        attach=attach,
        settings={
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": runs.STEP // micro,
        },
    )
    trainer.train()
    assert torch.allclose(runs.head(trainer.model), runs.head(network), atol=1e-12)
    assert torch.allclose(imbalance.criterion.kappa_plus, criterion.kappa_plus, atol=1e-12)
    assert not torch.equal(criterion.kappa_plus, torch.ones(3))  # or the slopes were never used


def test_a_plain_mean_of_micro_batches_would_be_another_gradient(tmp_path: Path):
    network, _ = runs.by_hand(runs.new_criterion("cb"), "tokens")
    imbalance = ImbalanceLoss(runs.new_criterion("cb"))
    trainer = runs.new_trainer(
        tmp_path,
        imbalance,
        kind="tokens",
        settings={"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    )
    imbalance._attached = True  # past the refusal, but the labels are not seen
    trainer.train()
    assert not torch.allclose(runs.head(trainer.model), runs.head(network), atol=1e-3)


@pytest.mark.parametrize("save_steps", [4, 6], ids=["end of an epoch", "middle"])
@pytest.mark.parametrize("attach", [False, True], ids=["passed", "attached"])
def test_a_resumed_training_goes_on_exactly(save_steps: int, attach: bool, tmp_path: Path):
    settings = {"save_strategy": "steps", "save_steps": save_steps}
    first = ImbalanceLoss(runs.new_criterion())
    whole = runs.new_trainer(tmp_path, first, attach=attach, settings=settings)
    whole.train()
    second = ImbalanceLoss(runs.new_criterion())
    resumed = runs.new_trainer(tmp_path, second, attach=attach, settings=settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{save_steps}"))
    assert torch.equal(runs.head(resumed.model), runs.head(whole.model))
    for name, value in first.criterion.state_dict().items():
        assert torch.equal(value, second.criterion.state_dict()[name]), name


def test_a_checkpoint_elsewhere_is_named_or_refused(tmp_path: Path):
    settings = {"save_strategy": "steps", "save_steps": 6}

    def trainer(folder: str, imbalance: ImbalanceLoss) -> Any:
        return runs.new_trainer(tmp_path / folder, imbalance, settings=settings)

    first = trainer("a", ImbalanceLoss(runs.new_criterion()))
    first.train()
    checkpoint = str(tmp_path / "a/checkpoint-6")
    moved = str(tmp_path / "a-kept")
    shutil.copytree(checkpoint, moved)
    with pytest.raises(cw.CheckpointError, match=r"checkpoint-6/classwise.pt is not there.*resume"):
        trainer("b", ImbalanceLoss(runs.new_criterion())).train(resume_from_checkpoint=moved)
    named = trainer("c", ImbalanceLoss(runs.new_criterion(), resume_from=moved))
    named.train(resume_from_checkpoint=moved)
    assert torch.equal(runs.head(named.model), runs.head(first.model))
    # Another run that has the same step in the place where this one is looked for.
    other = trainer("d", ImbalanceLoss(runs.new_criterion("ce")))
    other.train()
    with pytest.raises(cw.CheckpointError, match="is of another run than the checkpoint"):
        trainer("d", ImbalanceLoss(runs.new_criterion())).train(resume_from_checkpoint=moved)


def test_a_checkpoint_is_written_whole_and_holds_no_code(tmp_path: Path):
    imbalance = ImbalanceLoss(runs.new_criterion())
    runs.new_trainer(tmp_path, imbalance, settings={"save_strategy": "epoch"}).train()
    folder = tmp_path / "checkpoint-12"
    saved = torch.load(folder / FILE, weights_only=True)
    assert saved["step"] == 12
    assert int(saved["criterion"]["bin_count"].sum()) == len(runs.text())
    assert not list(folder.glob("*.partial"))


def test_a_second_training_begins_anew(tmp_path: Path):
    imbalance = ImbalanceLoss(runs.new_criterion())
    trainer = runs.new_trainer(tmp_path, imbalance)
    initial = {name: v.clone() for name, v in imbalance.criterion.state_dict().items()}
    trainer.train()
    trainer.train()
    assert imbalance.criterion.epoch == runs.EPOCHS - 1
    state = SimpleNamespace(global_step=0, epoch=0, num_train_epochs=runs.EPOCHS)
    imbalance.on_train_begin(trainer.args, state, None)
    assert all(torch.equal(v, initial[n]) for n, v in imbalance.criterion.state_dict().items())


def test_a_checkpoint_that_is_not_to_be_resumed_holds_no_state(tmp_path: Path):
    settings = {"save_strategy": "epoch", "save_only_model": True}
    runs.new_trainer(tmp_path, ImbalanceLoss(runs.new_criterion()), settings=settings).train()
    assert len(list(tmp_path.glob("checkpoint-*"))) == runs.EPOCHS
    assert not list(tmp_path.rglob(FILE))


def test_it_measures_many_medium_and_few(tmp_path: Path):
    imbalance = ImbalanceLoss(runs.new_criterion())
    trainer = runs.new_trainer(
        tmp_path, imbalance, kind="tokens", compute_metrics=imbalance.compute_metrics
    )
    trainer.train()
    found = trainer.evaluate()
    logits, labels = runs.logits_of(trainer.model, "tokens", runs.tokens())
    right = (logits.argmax(1) == labels)[labels == 2]
    assert found["eval_acc_few"] == pytest.approx(float(right.double().mean()))
    assert found["eval_acc"] == pytest.approx(
        float((logits.argmax(1) == labels)[labels >= 0].double().mean())
    )
    assert {"eval_acc_balanced", "eval_ece", "eval_ece_few"} <= set(found)
    with torch.no_grad():
        expected = imbalance.criterion(logits[:8], labels[:8])
    batch = trainer.evaluate(runs.tokens()[:8])  # type: ignore[arg-type]
    assert batch["eval_loss"] == pytest.approx(float(expected), rel=1e-5)


def test_soft_labels_count_samples_and_not_their_classes(tmp_path: Path):
    imbalance = ImbalanceLoss(runs.new_criterion("cvs"))
    runs.new_trainer(tmp_path, imbalance)
    imbalance.criterion.start_epoch(0)
    logits = torch.randn(4, 3, requires_grad=True)
    hard = torch.tensor([0, 1, 2, 0])
    soft = torch.nn.functional.one_hot(hard, 3).float()
    outputs = {"logits": logits}
    expected = imbalance(outputs, hard, torch.tensor(8))
    # Trainer counts every entry that is not -100.
    assert value(imbalance(outputs, soft, torch.tensor(8 * 3))) == pytest.approx(value(expected))


def test_data_parallel_and_uncounted_items_are_scaled_as_trainer_expects(tmp_path: Path):
    imbalance = ImbalanceLoss(runs.new_criterion("cvs"))
    runs.new_trainer(tmp_path, imbalance)
    imbalance.criterion.start_epoch(0)
    logits, labels = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0])
    mean = value(imbalance((logits,), labels, None))
    assert mean == pytest.approx(value(imbalance.criterion(logits, labels)))
    # nn.DataParallel: the counts come as one number for each GPU, the loss is multiplied by 2.
    imbalance._args = SimpleNamespace(
        n_gpu=2, world_size=1, average_tokens_across_devices=True, device="cpu"
    )
    counts = torch.tensor(4).unsqueeze(0).expand(2, -1)
    assert 2 * value(imbalance((logits,), labels, counts)) == pytest.approx(mean)


class TestRefusals:
    def test_lengths_of_training_that_differ(self, tmp_path: Path):
        imbalance = ImbalanceLoss(runs.new_criterion(epochs=7))
        with pytest.raises(cw.StateError, match=r"plays over epochs=7, Trainer trains 3"):
            runs.new_trainer(tmp_path, imbalance).train()

    def test_class_weights_under_accumulation(self, tmp_path: Path):
        imbalance = ImbalanceLoss(runs.new_criterion("ce+adrw"))
        settings = {"gradient_accumulation_steps": 2}
        with pytest.raises(cw.StateError, match=r"'ce\+adrw' weighs the classes.*attach\(trainer"):
            runs.new_trainer(tmp_path, imbalance, settings=settings).train()

    def test_label_smoothing_that_trainer_drops(self, tmp_path: Path):
        imbalance = ImbalanceLoss(runs.new_criterion())
        settings = {"label_smoothing_factor": 0.1}
        with pytest.raises(cw.ArgumentError, match=r"Trainer ignores label_smoothing_factor=0.1"):
            runs.new_trainer(tmp_path, imbalance, settings=settings).train()

    def test_half_of_the_two_arguments(self, tmp_path: Path):
        imbalance = ImbalanceLoss(runs.new_criterion())
        trainer = runs.new_trainer(tmp_path, imbalance)
        trainer.compute_loss_func = None
        with pytest.raises(cw.StateError, match="trains with another loss"):
            trainer.train()
        alone = ImbalanceLoss(runs.new_criterion())
        trainer.compute_loss_func = alone
        trainer.remove_callback(imbalance)
        with pytest.raises(cw.StateError, match=r"pass it in callbacks=\[...\] too"):
            trainer.train()

    def test_a_second_trainer(self, tmp_path: Path):
        imbalance = ImbalanceLoss(runs.new_criterion())
        trainer = runs.new_trainer(tmp_path, imbalance, attach=True)
        with pytest.raises(cw.StateError, match="attached to a trainer already"):
            imbalance.attach(trainer)

    def test_what_is_no_criterion(self):
        with pytest.raises(cw.ArgumentError, match=r"must be a classwise.Criterion, got str"):
            ImbalanceLoss("cvs")  # type: ignore[arg-type]
        with pytest.raises(cw.ArgumentError, match="reduction='sum'"):
            ImbalanceLoss(runs.new_criterion(reduction="sum"))

    def test_what_is_no_trainer(self):
        with pytest.raises(cw.ArgumentError, match=r"must be a transformers.Trainer, got Linear"):
            ImbalanceLoss(runs.new_criterion()).attach(torch.nn.Linear(2, 2))  # type: ignore[arg-type]

    def test_groups_that_overlap(self):
        with pytest.raises(cw.ArgumentError, match="few=20 and many=5 overlap"):
            ImbalanceLoss(runs.new_criterion(), many=5)

    def test_being_in_the_callbacks_twice(self, tmp_path: Path):
        imbalance = ImbalanceLoss(runs.new_criterion())
        trainer = runs.new_trainer(tmp_path, imbalance)
        trainer.callback_handler.callbacks.append(imbalance)
        with pytest.raises(cw.StateError, match="in the trainer's callbacks twice"):
            trainer.train()

    @pytest.mark.parametrize("attach", [False, True], ids=["passed", "attached"])
    def test_labels_that_are_floats(self, attach: bool, tmp_path: Path):
        imbalance = ImbalanceLoss(runs.new_criterion("la"))
        trainer = runs.new_trainer(tmp_path, imbalance, attach=attach)
        rows: Any = [{**row, "labels": float(row["labels"])} for row in runs.text()]
        trainer.train_dataset = rows
        with pytest.raises(cw.ArgumentError, match=r"class indices must be int64"):
            trainer.train()

    def test_a_state_that_is_damaged(self, tmp_path: Path):
        settings = {"save_strategy": "steps", "save_steps": 6}
        runs.new_trainer(tmp_path, ImbalanceLoss(runs.new_criterion()), settings=settings).train()
        file = tmp_path / "checkpoint-6" / FILE
        whole = file.read_bytes()
        for content in (b"", b"junk", whole[:700]):
            file.write_bytes(content)
            other = ImbalanceLoss(runs.new_criterion())
            trainer = runs.new_trainer(tmp_path, other, settings=settings)
            with pytest.raises(
                cw.CheckpointError, match=r"classwise.pt cannot be read: \w+: .*\.$"
            ):
                trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
        torch.save({"step": 6}, file)
        trainer = runs.new_trainer(tmp_path, ImbalanceLoss(runs.new_criterion()), settings=settings)
        with pytest.raises(cw.CheckpointError, match=r"cannot be read: KeyError: 'log'"):
            trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))

    def test_batches_without_labels(self, tmp_path: Path):
        imbalance = ImbalanceLoss(runs.new_criterion())
        runs.new_trainer(tmp_path, imbalance)
        with pytest.raises(cw.ArgumentError, match="no 'labels'"):
            imbalance((torch.randn(2, 3),), None)

    def test_language_models(self, tmp_path: Path):
        imbalance = ImbalanceLoss(runs.new_criterion())
        trainer = runs.new_trainer(tmp_path, imbalance)
        trainer.model.loss_type = "ForCausalLM"  # type: ignore[union-attr,assignment]
        with pytest.raises(cw.ArgumentError, match="predicts the next token"):
            trainer.train()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks.run_ranks(2, runs.on_a_rank, str(tmp_path_factory.mktemp("ddp")))


@pytest.mark.slow
@pytest.mark.parametrize("micro", [4, 2], ids=["whole", "accumulated"])
@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_two_processes_train_as_one(pair: list[dict[str, Any]], kind: str, micro: int):
    network, criterion = runs.by_hand(runs.new_criterion(), kind, runs.EVEN)
    for result in pair:
        found = result[f"{kind}{micro}"]
        assert torch.allclose(found["head"], runs.head(network), atol=1e-9)
        assert torch.allclose(found["kappa"], criterion.kappa_plus, atol=1e-9)
        assert torch.allclose(found["resumed"], found["head"], atol=1e-12)
        assert torch.allclose(found["resumed_kappa"], found["kappa"], atol=1e-12)
    assert pair[0][f"{kind}{micro}"]["eval_loss"] == pair[1][f"{kind}{micro}"]["eval_loss"]


class TestClassCounts:
    def test_of_rows(self):
        rows = [{"label": 0}, {"label": 2}, {"label": 0}]
        assert class_counts_from(rows, "label").tolist() == [2, 0, 1]
        assert class_counts_from(rows, "label", num_classes=4).tolist() == [2, 0, 1, 0]
        counts = class_counts_from(runs.tokens(), "labels")
        flat = torch.cat([row["labels"] for row in runs.tokens()])
        assert counts.tolist() == [int((flat == c).sum()) for c in range(3)]

    def test_of_a_dataset(self):
        datasets = pytest.importorskip("datasets", reason="the datasets package is not installed")
        names = datasets.ClassLabel(names=["a", "b", "never"])
        features = datasets.Features({"label": names, "text": datasets.Value("string")})
        rows = {"label": [0, 1, 1, -1, 1] * 5000, "text": ["x"] * 25_000}
        dataset = datasets.Dataset.from_dict(rows, features)
        assert class_counts_from(dataset, "label", ignore=-1).tolist() == [5000, 15_000, 0]
        some = dataset.select(range(5)).with_transform(lambda batch: {"label": ["no"]})
        assert class_counts_from(some, "label", ignore=-1).tolist() == [1, 3, 0]
        with pytest.raises(cw.DataError, match=r"no column 'labels', only 'label', 'text'"):
            class_counts_from(dataset, "labels")
        with pytest.raises(cw.DataError, match=r"holds 'x', not class indices; encode it first"):
            class_counts_from(dataset, "text")
        with pytest.raises(cw.DataError, match="holds -1, which is no class index"):
            class_counts_from(dataset, "label")
        with pytest.raises(cw.ArgumentError, match=r"one data set for each split"):
            class_counts_from(datasets.DatasetDict(train=dataset), "label")
        with pytest.raises(cw.ArgumentError, match="of unknown length"):
            class_counts_from(dataset.to_iterable_dataset(), "label")

    def test_of_tokens_in_a_dataset(self):
        datasets = pytest.importorskip("datasets", reason="the datasets package is not installed")
        tags = datasets.Sequence(datasets.ClassLabel(names=["O", "PER", "LOC"]))
        dataset = datasets.Dataset.from_dict(
            {"tags": [[0, 0, 1], [0], []]}, datasets.Features({"tags": tags})
        )
        assert class_counts_from(dataset, "tags").tolist() == [3, 1, 0]

    def test_bad_rows(self):
        with pytest.raises(cw.DataError, match="a row has no 'label', it has the keys 'y'"):
            class_counts_from([{"y": 1}], "label")
        with pytest.raises(cw.DataError, match=r"holds 3; with 2 classes legal are 0 to 1"):
            class_counts_from([{"y": 3}], "y", num_classes=2)
        with pytest.raises(cw.DataError, match="holds no label"):
            class_counts_from([{"y": -100}], "y")
        with pytest.raises(cw.DataError, match="holds no label"):
            class_counts_from([], "y")
        with pytest.raises(cw.DataError, match="a row is of type int, no mapping that has 'y'"):
            class_counts_from([1, 2], "y")


def test_without_transformers_one_line_says_what_to_install():
    code = (
        "import sys; sys.modules['transformers'] = None\nimport classwise.adapters.transformers\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().splitlines()[-1] == (
        "classwise.adapters.MissingExtraError: classwise.adapters.transformers needs transformers, "
        'which is not installed: pip install "classwise[adapters]".'
    )
    assert done.stderr.count("Traceback") == 1
