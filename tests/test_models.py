"""Models against a network written out by hand, counts by arithmetic, a few steps of learning."""

import copy
import inspect
import math
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from reference import models as oracle
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import classwise as cw
from classwise import models
from classwise.models import CifarResNet, Classifier, CosineLinear, Mlp, SmallCnn, build
from classwise.models.resnet_cifar import BasicBlock

CIFAR = {"num_classes": 10, "input_shape": (3, 32, 32)}
DIGITS = {"num_classes": 10, "input_shape": (1, 8, 8)}


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


# CIFAR ResNets


def expected_size(depth: int, classes: int) -> int:
    """Count by the layers of the publication: weights 3 x 3, two numbers per normalised channel."""
    blocks = (depth - 2) // 6
    total, before = 3 * 16 * 9 + 2 * 16, 16
    for channels in (16, 32, 64):
        for _ in range(blocks):
            total += before * channels * 9 + channels * channels * 9 + 2 * 2 * channels
            before = channels
    return total + 64 * classes + classes


@pytest.mark.parametrize(
    ("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)]
)
def test_sizes_are_those_of_the_publication(depth: int, millions: float):
    model = build(f"resnet{depth}", **CIFAR)
    assert size(model) == expected_size(depth, 10)
    assert size(model) / 1e6 == pytest.approx(millions, abs=0.03)


def test_size_of_resnet32():
    assert size(build("resnet32", **CIFAR)) == 464_154
    assert size(build("resnet32", num_classes=100, input_shape=(3, 32, 32))) == 470_004


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_resnet_is_the_network_written_out_by_hand(train: bool):
    model = build("resnet32", num_classes=7, input_shape=(3, 12, 12)).double()
    for module in model.modules():  # so that no scale is 1 and no statistic 0
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            for values in (module.weight.data, module.running_var):
                values.uniform_(0.5, 1.5)
            for values in (module.bias.data, module.running_mean):
                values.normal_()
    model.train(train)
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    for key in ("backbone.conv1.weight", "backbone.layer2.0.conv1.weight", "head.bias"):
        state[key].requires_grad_()
    x = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    expected = oracle.cifar_resnet(x, state, 32, train=train)
    logits = model(x)
    torch.testing.assert_close(logits, expected)
    probe = torch.randn(3, 7, dtype=torch.float64)
    (logits * probe).sum().backward()
    (expected * probe).sum().backward()
    parameters = dict(model.named_parameters())
    for key, value in state.items():
        if value.requires_grad:
            torch.testing.assert_close(parameters[key].grad, value.grad)


@pytest.mark.parametrize("shape", [(2, 16, 6, 6), (2, 16, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shortcut_is_option_a_exactly(shape: tuple[int, ...], dtype: torch.dtype):
    block = BasicBlock(16, 32, 2).to(dtype)
    nn.init.zeros_(block.bn2.weight)  # only the shortcut is left
    x = torch.rand(shape).to(dtype)
    assert torch.equal(block(x), oracle.option_a(x, 32))
    assert size(block) == 16 * 32 * 9 + 32 * 32 * 9 + 4 * 32


def test_depths_that_do_not_exist():
    with pytest.raises(cw.ArgumentError, match=r"depth=30 must be 6 n \+ 2"):
        CifarResNet(30)


def test_weights_start_kaiming_normal_and_normalisation_as_the_identity():
    model = build("resnet32", **CIFAR)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 2000:
            deviation = math.sqrt(2 / (module.in_channels * 9))
            assert float(module.weight.detach().std()) == pytest.approx(deviation, rel=0.1)
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert torch.equal(module.bias, torch.zeros_like(module.bias))
    head = model.head
    assert isinstance(head, nn.Linear)
    assert float(head.weight.detach().std()) == pytest.approx(math.sqrt(2 / 64), rel=0.1)
    assert bool((head.bias.abs() <= 1 / 8).all())


def test_channels_last_changes_the_layout_and_nothing_else():
    model = build("resnet20", **CIFAR).double()
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    expected = model(x)
    seen: list[bool] = []
    model = model.to(memory_format=torch.channels_last)
    for module in model.modules():
        if isinstance(module, BasicBlock):
            module.register_forward_hook(
                lambda _m, _i, out: seen.append(
                    out.is_contiguous(memory_format=torch.channels_last)
                )
            )
    torch.testing.assert_close(
        model(x.contiguous(memory_format=torch.channels_last)), expected, check_stride=False
    )
    assert len(seen) == 9
    assert all(seen)


# Heads


def test_cosine_head_is_its_definition():
    head = CosineLinear(6, 4).double()
    features = torch.randn(5, 6, dtype=torch.float64) * torch.logspace(-3, 3, 5).double()[:, None]
    torch.testing.assert_close(head(features), oracle.cosines(features, head.weight.detach()))
    head.weight.data *= 7
    assert bool((head(features).abs() <= 1 + 1e-12).all())


def test_cosine_head_starts_with_uniform_directions_of_length_one():
    weight = CosineLinear(64, 1000).weight.detach()
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(1000))
    # A uniform number has kurtosis 9/5, a normal one 3; normalising hardly moves it.
    assert float((weight**4).mean() / (weight**2).mean() ** 2) == pytest.approx(1.8, abs=0.1)


def test_cosine_head_is_exact_under_autocast():
    head, features = CosineLinear(64, 10), torch.randn(8, 64)
    with torch.autocast("cpu", torch.bfloat16):
        logits, of_rounded = head(features), head(features.bfloat16())
    assert logits.dtype == of_rounded.dtype == torch.float32
    assert torch.equal(logits, head(features))


def test_cosine_head_of_nothing_is_zero():
    head = CosineLinear(4, 3)
    features = torch.zeros(2, 4, requires_grad=True)
    logits = head(features)
    logits.sum().backward()
    assert torch.equal(logits, torch.zeros(2, 3))
    assert features.grad is not None
    assert bool(torch.isfinite(features.grad).all())


# Every model


MODELS = [
    ("resnet20", (3, 16, 16), "linear"),
    ("resnet20", (1, 28, 28), "cosine"),
    ("small-cnn", (1, 8, 8), "linear"),
    ("small-cnn", (3, 28, 28), "cosine"),
    ("mlp", (12,), "linear"),
    ("mlp:32,16", (1, 8, 8), "cosine"),
]
every_model = pytest.mark.parametrize(("name", "shape", "head"), MODELS)


@every_model
def test_logits_features_and_what_the_head_makes_of_them(name: str, shape: tuple, head: str):
    model = build(name, num_classes=5, input_shape=shape, head=head).eval()
    x = torch.randn(3, *shape)
    logits, features = model(x, with_features=True)
    assert tuple(logits.shape) == (3, model.num_classes) == (3, 5)
    assert tuple(features.shape) == (3, model.feature_dim)
    assert torch.equal(logits, model.head(features))
    assert torch.equal(logits, model(x))
    assert isinstance(model.head, CosineLinear if head == "cosine" else nn.Linear)


@every_model
def test_the_seed_decides_everything(name: str, shape: tuple, head: str):
    def fresh(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return build(name, num_classes=5, input_shape=shape, head=head).state_dict()

    one, same, other = fresh(1), fresh(1), fresh(2)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@every_model
def test_a_copy_is_equal_and_independent(name: str, shape: tuple, head: str):
    model = build(name, num_classes=5, input_shape=shape, head=head).eval()
    twin = copy.deepcopy(model)
    x = torch.randn(2, *shape)
    assert torch.equal(model(x), twin(x))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for parameter in twin.parameters():
        parameter.data.zero_()
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@every_model
@pytest.mark.usefixtures("_fresh_compiler")
def test_compiles_to_one_graph(name: str, shape: tuple, head: str):
    model = build(name, num_classes=5, input_shape=shape, head=head)
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    x, target = torch.randn(4, *shape), torch.tensor([0, 1, 2, 4])
    with torch.autocast("cpu", torch.bfloat16):
        for some in (model, compiled):
            logits, features = some(x, with_features=True)
            (F.cross_entropy(logits.float(), target) + features.float().mean()).backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, ours.grad, rtol=0.05, atol=0.02)


@pytest.mark.parametrize(("name", "shape"), [("small-cnn", (1, 6, 6)), ("mlp:8,4", (5,))])
@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_gradients_are_differences(name: str, shape: tuple, head: str):
    model = build(name, num_classes=3, input_shape=shape, head=head).double()
    x, target = torch.randn(4, *shape, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    parameters = list(model.parameters())
    F.cross_entropy(model(x), target).backward()
    direction = [torch.randn_like(p) for p in parameters]
    grads = [p.grad for p in parameters if p.grad is not None]
    slope = sum(float((g * d).sum()) for g, d in zip(grads, direction, strict=True))
    values, step = [], 1e-6
    for sign in (1, -2):  # +h, then -h
        for p, d in zip(parameters, direction, strict=True):
            p.data += sign * step * d
        values.append(F.cross_entropy(model(x), target).item())
    assert slope == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5)


@pytest.mark.parametrize(("name", "shape"), [("small-cnn", (3, 16, 16)), ("mlp", (7,))])
def test_an_output_of_a_small_network_does_not_depend_on_its_neighbours(name: str, shape: tuple):
    model = build(name, num_classes=3, input_shape=shape).train()
    x = torch.randn(6, *shape)
    torch.testing.assert_close(model(x)[:2], model(x[:2]))


def test_keys_of_a_state_are_stable():
    keys = list(build("resnet20", **CIFAR).state_dict())
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert keys[:6] == ["backbone.conv1.weight", *(f"backbone.bn1.{k}" for k in norm)]
    assert keys[6] == "backbone.layer1.0.conv1.weight"
    assert keys[-3:] == ["backbone.layer3.2.bn2.num_batches_tracked", "head.weight", "head.bias"]
    assert list(build("small-cnn", **DIGITS, head="cosine").state_dict()) == [
        "backbone.stages.0.weight",
        "backbone.stages.1.weight",
        "backbone.stages.1.bias",
        "backbone.stages.3.weight",
        "backbone.stages.4.weight",
        "backbone.stages.4.bias",
        "backbone.project.1.weight",
        "backbone.project.1.bias",
        "head.weight",
    ]
    assert list(build("mlp", num_classes=3, input_shape=(9,)).state_dict()) == [
        f"{layer}.{kind}"
        for layer in ("backbone.layers.1", "backbone.layers.3", "head")
        for kind in ("weight", "bias")
    ]


# Small networks


@pytest.mark.parametrize(
    ("shape", "flat"),
    [
        ((1, 8, 8), 32 * 16),
        ((1, 28, 28), 128 * 16),
        ((3, 32, 32), 128 * 16),
        ((3, 64, 64), 128 * 16),
        ((3, 64, 16), 128 * 4),
        ((1, 4, 4), 32 * 16),
        ((2, 1, 3), 32 * 3),
    ],
)
def test_small_cnn_halves_to_four_by_four(shape: tuple, flat: int):
    backbone = SmallCnn(shape)
    project = backbone.project[1]
    assert isinstance(project, nn.Linear)
    assert project.in_features == flat
    assert tuple(backbone(torch.randn(2, *shape)).shape) == (2, 128)


@pytest.mark.parametrize(("name", "epochs"), [("small-cnn", 8), ("mlp", 12)])
def test_digits_are_learned_quickly(name: str, epochs: int):
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    y = torch.tensor(labels)
    train, test = torch.randperm(len(y)).split([1397, 400])
    model = build(name, **DIGITS)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * (1 - epoch / epochs)
        for batch in train[torch.randperm(len(train))].split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    right = model(x[test]).argmax(1) == y[test]
    assert float(right.float().mean()) > (0.97 if name == "small-cnn" else 0.95)


def test_widths_of_an_mlp():
    assert build("mlp:64,32,16", num_classes=3, input_shape=(5,)).feature_dim == 16
    model = build("mlp", num_classes=3, input_shape=(5,))
    assert size(model) == 5 * 256 + 256 + 256 * 128 + 128 + 128 * 3 + 3
    with pytest.raises(cw.ArgumentError, match="must name the width"):
        Mlp((5,), hidden=())


# The registry


@pytest.mark.parametrize(
    ("shape", "kind", "name"),
    [
        ((3, 32, 32), "images", "resnet32"),
        ((1, 32, 32), "images", "resnet32"),
        ((1, 8, 8), "images", "small-cnn"),
        ((1, 28, 28), "images", "small-cnn"),
        ((3, 64, 64), "images", "small-cnn"),
        ((3, 65, 20), "images", "resnet50"),
        ((30,), "table", "mlp"),
        ((3, 224, 224), "files", "resnet50"),
    ],
)
def test_auto_chooses_by_what_the_data_is(shape: tuple, kind: str, name: str):
    assert models.resolve("auto", shape, kind) == name
    assert models.resolve("resnet110", shape, kind) == "resnet110"


def test_auto_needs_a_kind_of_data_that_exists():
    with pytest.raises(cw.UnknownNameError, match="did you mean 'images'"):
        models.resolve("auto", (3, 32, 32), "image")


def test_every_model_of_the_registry_is_listed_and_builds():
    rows = models.list_models()
    assert [row.name for row in rows] == [*models.MODELS, "timm:NAME"]
    assert all(row.title and row.inputs for row in rows)
    for name in models.MODELS:
        assert isinstance(build(name, **CIFAR), Classifier)
    assert list(inspect.signature(build).parameters) == [
        "name",
        "num_classes",
        "input_shape",
        "head",
        "pretrained",
    ]


def test_importing_models_leaves_timm_and_torchvision_alone():
    code = "import sys, classwise.models as m; m.list_models(); m.build('mlp', num_classes=2, "
    code += "input_shape=(3,)); print({'timm', 'torchvision'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("resnet32", {"num_classes": 1}, "num_classes=1 must be at least 2"),
        ("resnet32", {"head": "cosin"}, "head='cosin' is unknown, did you mean 'cosine'"),
        ("resnet32", {"input_shape": (3,)}, "takes images .*'mlp' takes any shape"),
        ("small-cnn", {"input_shape": (3,)}, "takes images"),
        ("small-cnn", {"input_shape": (3, 0, 4)}, "input_shape=0 must be at least 1"),
        ("mlp", {"input_shape": 3}, "input_shape=3 must be"),
        ("mlp", {"input_shape": (3, 3)}, r"must be \(channels, H, W\)"),
        ("mlp:8,x", {}, "widths are whole numbers"),
        ("mlp:8,", {}, "widths are whole numbers"),
        ("mlp:0", {}, "widths are whole numbers"),
        ("resnet32", {"pretrained": True}, "no weights of 'resnet32' to download"),
        ("resnet32", {"pretrained": 3}, "pretrained=3 must be the path"),
        (32, {}, "model=32 is unknown"),
    ],
)
def test_what_is_wrong_is_named(name: str, change: dict, message: str):
    with pytest.raises(cw.ArgumentError, match=message):
        build(name, **{**CIFAR, **change})
