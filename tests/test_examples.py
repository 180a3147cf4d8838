"""The examples run on little data, and do what their first lines say."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent
NEEDS = {
    "lightning_loop": ["lightning"],
    "plain_pytorch": [],
    "segmentation": [],
    "sklearn_pipeline": ["skorch", "sklearn"],
    "tabular_sklearn": ["skorch", "sklearn"],
    "timm_loop": ["timm"],
    "transformers_trainer": ["transformers", "accelerate"],
    "which_prior": [],
}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    # timm steps its schedule before the first epoch's optimiser does.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
]


def example(name: str) -> Any:
    """Return an example as a module; skip the test where its packages are not installed."""
    for package in NEEDS[name]:
        pytest.importorskip(package, reason=f"the {package} package is not installed")
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run_here():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_runs_and_marks_what_it_adds(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = (ROOT / f"examples/{name}.py").read_text(encoding="utf-8")
    path, stores = tmp_path / "rows.json", "--json" in source
    found = example(name).main(["--quick", *(["--json", str(path)] if stores else [])])
    assert found
    assert capsys.readouterr().out.strip()
    if stores:
        assert json.loads(path.read_text(encoding="utf-8"))["rows"] == found
    if "sklearn" not in name:  # there the estimator is all
        assert "# <-" in source
    assert f"examples/{name}.py [--quick]" in source


def test_the_plain_loop_resumes_as_if_it_had_not_stopped(tmp_path: Path):
    plain = example("plain_pytorch")
    whole, _, _ = plain.train(tmp_path / "whole.pt", 4)
    plain.train(tmp_path / "half.pt", 4, until=2)
    resumed, _, _ = plain.train(tmp_path / "half.pt", 4)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_dense_example_counts_pixels_that_are_labelled(tmp_path: Path):
    dense = example("segmentation")
    inputs, label = dense.images(50, 0)
    assert inputs.shape == (50, 1, 32, 32)
    shares = (label[label != dense.IGNORED].bincount() / label.numel()).tolist()
    assert 0 < shares[2] < 0.01 < shares[1] < shares[0]
    assert 0 < (label == dense.IGNORED).float().mean() < 0.05

    class Perfect(nn.Module):
        def forward(self, _: Any) -> Any:
            truth = dense.images(200, 1)[1]
            scores = nn.functional.one_hot(truth.where(truth < 3, 0), 3).movedim(-1, 1).float()
            # Wherever nothing is labelled it says "spot", which must not count.
            scores[:, 2][truth == dense.IGNORED] = 9
            return scores

    assert set(dense.measure(Perfect()).values()) == {1.0}


def test_tables_are_cut_as_they_say():
    tabular = example("tabular_sklearn")
    for name, (_, tested, largest, ratio) in tabular.TABLES.items():
        _, y, _, test_y = tabular.long_tailed(name, 3)
        counts, classes = torch.tensor(y).bincount(), int(y.max()) + 1
        assert torch.tensor(test_y).bincount().tolist() == [tested] * classes
        assert int(counts.max()) <= largest
        assert int(counts.min()) == max(largest // ratio, 1)


def test_a_timm_update_is_that_of_one_batch_of_its_micro_batches():
    timm_loop = example("timm_loop")
    cw = timm_loop.cw

    class NoSchedule:
        def step_update(self, num_updates: int) -> None:
            pass

    def softened(inputs: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return inputs, 0.8 * nn.functional.one_hot(target, 3).double() + 0.2 / 3

    def trained(batch: int, accum_steps: int) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 3).double()
        inputs, target = torch.randn(14, 4).double(), torch.tensor([0, 0, 0, 1, 2, 0, 0] * 2)
        loader = list(zip(inputs.split(batch), target.split(batch), strict=True))
        criterion = cw.Criterion("cvs+adrw", [80, 15, 5], epochs=3, defer_at=1, nu=1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        ema = timm_loop.ModelEmaV3(model)
        for epoch in range(3):
            timm_loop.train_one_epoch(
                epoch, model, loader, optimizer, criterion, NoSchedule(), softened, ema, accum_steps
            )
        return model.weight.detach()

    assert torch.allclose(trained(4, 2), trained(8, 1), atol=1e-12)
