"""Backbones of timm, and weights from files: what fits, what does not, and what it says."""

import builtins
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import classwise as cw
from classwise.models import Classifier, CosineLinear, build
from classwise.models.weights import load_backbone, read_state

SHAPE = (3, 32, 32)


def resnet(
    pretrained: Path | bool | None = None, shape: tuple = SHAPE, name: str = "test_resnet"
) -> Classifier:
    return build(name, num_classes=5, input_shape=shape, pretrained=pretrained)


def timm_state(name: str = "test_resnet", num_classes: int = 1000) -> dict[str, Tensor]:
    return timm.create_model(name, num_classes=num_classes).state_dict()


def write(path: Path, state: Mapping[str, object]) -> Path:
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)  # type: ignore[arg-type]
    return path


def same_backbone(model: torch.nn.Module, state: Mapping[str, Tensor]) -> bool:
    loaded = {k.removeprefix("backbone."): v for k, v in model.state_dict().items()}
    wanted = {k: v for k, v in state.items() if not k.startswith(("fc.", "head."))}
    return bool(wanted) and all(torch.equal(loaded[k], v) for k, v in wanted.items())


# By name


@pytest.mark.parametrize("name", ["test_resnet", "timm:test_resnet", "test_resnet.r160_in1k"])
def test_names_of_timm_build(name: str):
    model = build(name, num_classes=5, input_shape=SHAPE, head="cosine")
    logits, features = model(torch.randn(2, *SHAPE), with_features=True)
    assert tuple(logits.shape) == (2, 5)
    assert tuple(features.shape) == (2, model.feature_dim)
    assert isinstance(model.head, CosineLinear)
    assert model.training
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    "name", ["test_vit", "test_efficientnet", "test_convnext", "test_byobnet", "test_mambaout"]
)
def test_features_are_a_vector_whatever_the_architecture(name: str):
    model = build(name, num_classes=3, input_shape=(1, 64, 64))
    logits, features = model(torch.randn(2, 1, 64, 64), with_features=True)
    assert tuple(features.shape) == (2, model.feature_dim)
    assert tuple(logits.shape) == (2, 3)


def test_features_are_those_of_timm():
    torch.manual_seed(3)
    model = resnet().eval()
    torch.manual_seed(3)
    plain = timm.create_model("test_resnet", num_classes=0).eval()
    x = torch.randn(2, *SHAPE)
    assert torch.equal(model(x, with_features=True)[1], plain(x))


def test_unknown_names_suggest_from_everywhere():
    for name, near in (
        ("resnet_50", "resnet50"),
        ("resnet33", "resnet"),
        ("small-cn", "small-cnn"),
    ):
        with pytest.raises(cw.UnknownNameError, match=f"did you mean '{near}"):
            build(name, num_classes=5, input_shape=SHAPE)
    with pytest.raises(cw.UnknownNameError, match=r"no such weights.*'resnet50.a1_in1k'"):
        build("timm:resnet50.a1_in2k", num_classes=5, input_shape=SHAPE)


def test_inputs_that_an_architecture_cannot_take():
    with pytest.raises(cw.ArgumentError, match=r"takes images .*input_shape=\(5,\)"):
        build("test_resnet", num_classes=5, input_shape=(5,))
    with pytest.raises(cw.ArgumentError, match="'test_coatnet' cannot take inputs"):
        build("test_coatnet", num_classes=5, input_shape=(3, 3, 3))


def test_without_timm_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(cw.StateError, match=r'pip install "classwise\[vision\]"') as caught:
        build("resnet50", num_classes=5, input_shape=SHAPE)
    assert "'resnet32'" in str(caught.value)


def test_a_download_without_a_network_fails_with_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(cw.StateError) as caught:
        resnet(True)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("the weights of 'test_resnet' could not be downloaded (")
    assert line.endswith("pass pretrained=FILE instead.")


# Weights from files


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("classes", [0, 5, 1000])
def test_weights_with_and_without_a_classifier(tmp_path: Path, suffix: str, classes: int):
    state = timm_state(num_classes=classes)
    torch.manual_seed(1)
    fresh = resnet()
    torch.manual_seed(1)
    model = resnet(write(tmp_path / f"w{suffix}", state))
    assert same_backbone(model, state)
    assert not same_backbone(fresh, state)
    assert torch.equal(model.state_dict()["head.weight"], fresh.state_dict()["head.weight"])


@pytest.mark.parametrize("wrap", ["state_dict", "model", "module.", "_orig_mod.module."])
def test_weights_as_other_code_leaves_them(tmp_path: Path, wrap: str):
    state = timm_state()
    if wrap.endswith("."):
        wrapped: dict[str, object] = {wrap + key: value for key, value in state.items()}
    else:
        wrapped = {wrap: state, "epoch": 3}
    assert same_backbone(resnet(write(tmp_path / "w.pth", wrapped)), state)


@pytest.mark.parametrize("name", ["resnet20", "small-cnn", "test_resnet"])
def test_weights_of_another_run_bring_the_backbone_and_not_the_head(tmp_path: Path, name: str):
    other = build(name, num_classes=9, input_shape=SHAPE, head="cosine")
    path = write(tmp_path / "model.safetensors", other.state_dict())
    model = build(name, num_classes=5, input_shape=SHAPE, pretrained=path)
    ours, theirs = model.backbone.state_dict(), other.backbone.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert tuple(model.state_dict()["head.weight"].shape) == (5, model.feature_dim)


def test_weights_of_the_widespread_cifar_code(tmp_path: Path):
    other = build("resnet20", num_classes=9, input_shape=SHAPE)
    state = {
        key.replace("backbone.", "module.").replace("head.", "module.linear."): value
        for key, value in other.state_dict().items()
    }
    path = write(tmp_path / "best.pth.tar", {"state_dict": state, "best_acc1": 70.4})
    model = build("resnet20", num_classes=5, input_shape=SHAPE, pretrained=path)
    x = torch.randn(2, *SHAPE)
    assert torch.equal(model.eval().backbone(x), other.eval().backbone(x))


def test_weights_are_adapted_to_grey_images_and_other_sizes(tmp_path: Path):
    state = timm_state()
    path = write(tmp_path / "w.pth", state)
    model = resnet(path, shape=(1, 32, 32))
    first = model.backbone.state_dict()["conv1.0.weight"]
    torch.testing.assert_close(first, state["conv1.0.weight"].sum(1, keepdim=True))
    x = torch.randn(2, 1, 32, 32)
    plain = resnet(path).eval()
    torch.testing.assert_close(model.eval().backbone(x), plain.backbone(x.expand(-1, 3, -1, -1)))
    state = timm_state("test_vit")
    grown = resnet(write(tmp_path / "vit.pth", state), shape=(3, 64, 64), name="test_vit")
    size = grown.backbone.state_dict()["pos_embed"].shape
    assert size[1] < state["pos_embed"].shape[1]
    grown = resnet(write(tmp_path / "vit.pth", state), shape=(3, 160, 160), name="test_vit")
    assert same_backbone(grown, state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv1.0.weight": None}, r"1 keys are missing \(conv1.0.weight\)"),
        ({"layer9.weight": torch.zeros(2)}, r"1 keys are unexpected \(layer9.weight\)"),
        ({"headless": torch.zeros(2)}, r"1 keys are unexpected \(headless\)"),
        ({"bn1.weight": torch.zeros(3)}, r"of another shape \(bn1.weight \(3,\) instead of"),
    ],
)
def test_a_key_that_does_not_fit_is_an_error(tmp_path: Path, change: dict, message: str):
    state = {k: v for k, v in {**timm_state(), **change}.items() if v is not None}
    with pytest.raises(cw.DataError, match=f"does not fit the model: .*{message}"):
        resnet(write(tmp_path / "w.pth", state))


def test_weights_of_another_architecture_name_a_few_keys(tmp_path: Path):
    path = write(tmp_path / "w.pth", timm_state("test_vit"))
    with pytest.raises(cw.DataError, match=r"keys are missing \(.*, \.\.\.\); .* unexpected"):
        resnet(path)
    with pytest.raises(cw.DataError, match="does not fit the model"):
        build("small-cnn", num_classes=5, input_shape=SHAPE, pretrained=path)
    path = write(tmp_path / "r.pth", timm_state())
    with pytest.raises(cw.DataError, match="does not fit the model"):
        resnet(path, name="test_vit")


class WithHead(nn.Module):
    """A backbone that calls a part of itself as classifiers are called elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 4)
        self.head = nn.Linear(4, 2)


def test_parts_of_a_backbone_may_be_called_head():
    old, new = WithHead(), WithHead()
    load_backbone(new, old.state_dict(), origin="it", classifier=("head",))
    assert all(torch.equal(new.state_dict()[k], v) for k, v in old.state_dict().items())
    run = Classifier(old, nn.Linear(2, 5), feature_dim=2, num_classes=5)
    load_backbone(fresh := WithHead(), run.state_dict(), origin="it")
    assert all(torch.equal(fresh.state_dict()[k], v) for k, v in old.state_dict().items())


def test_a_state_that_fits_is_not_rewritten():
    def adapt(state: dict[str, Tensor]) -> dict[str, Tensor]:
        raise AssertionError

    old = WithHead()
    load_backbone(old, old.state_dict(), origin="it", adapt=adapt)


class Shout:
    def __reduce__(self):
        return builtins.exec, ("raise SystemExit('ran')",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.pth", None, "is not a file"),
        ("text.pth", b"not a checkpoint", "cannot be read as a torch file"),
        ("empty.pth", b"", "cannot be read as a torch file"),
        ("code.pth", pickle.dumps(Shout(), protocol=2), "cannot be read as a torch file"),
        ("text.safetensors", b"not a checkpoint", "cannot be read as safetensors"),
        ("empty.safetensors", b"", "cannot be read as safetensors"),
    ],
)
def test_files_that_hold_no_weights(tmp_path: Path, name: str, content: bytes, message: str):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(cw.DataError, match=message):
        resnet(tmp_path / name)


@pytest.mark.parametrize("content", [{}, [1], {"epoch": 3}, {"model": {"a": 1}}, torch.zeros(2)])
def test_torch_files_without_a_state(tmp_path: Path, content: object):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(cw.DataError, match="holds no state_dict"):
        read_state(tmp_path / "w.pth")


def test_a_pickle_inside_a_torch_file_is_not_run(tmp_path: Path):
    torch.save({"state_dict": Shout()}, tmp_path / "w.pth")
    with pytest.raises(cw.DataError, match="cannot be read as a torch file that holds tensors"):
        read_state(tmp_path / "w.pth")
