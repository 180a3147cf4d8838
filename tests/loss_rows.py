"""One row for each loss and set of constants, and batches to try them on."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from reference import losses as reference
from torch import Tensor, nn

import classwise as cw
from classwise import terms
from classwise.losses import LOSSES

COUNTS = [500, 60, 19, 5]
CLASSES = len(COUNTS)
SAMPLES = 6


@dataclass
class Batch:
    logits: Tensor
    target: Tensor
    features: Tensor

    def to(self, dtype: torch.dtype) -> "Batch":
        """Cast, as leaves that ask for gradients."""
        logits, features = (
            x.detach().to(dtype).requires_grad_() for x in (self.logits, self.features)
        )
        soft = self.target.is_floating_point()
        return Batch(logits, self.target.to(dtype) if soft else self.target, features)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Of a random combination of the losses, which is the loss itself where it is a scalar."""
        generator = torch.Generator().manual_seed(1)
        mix = torch.rand(loss.shape, generator=generator, dtype=torch.float64) if loss.ndim else 1
        total = (loss.double() * mix).sum()
        leaves = [self.logits, self.features]
        found = torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


@dataclass(frozen=True)
class Row:
    """One loss with constants that depend on the counts, and the same from the oracle."""

    loss: str
    constants: Callable[[list[int]], dict[str, Any]]
    oracle: Callable[..., Tensor]  # (logits, target, features, counts, **options)
    alpha: Callable[[list[int]], list[float]] = lambda counts: [1.0] * len(counts)
    stops_gradients: bool = False

    @property
    def takes(self) -> set[str]:
        return set(inspect.signature(LOSSES[self.loss].function).parameters)

    def call(self, batch: Batch, counts: list[int] = COUNTS, **options: Any) -> Tensor:
        constants = self.constants(counts)
        return LOSSES[self.loss].function(*self.inputs(batch), **constants, **options)

    def module(self, counts: list[int] = COUNTS, **options: Any) -> nn.Module:
        return LOSSES[self.loss].module(**self.constants(counts), **options)

    def expected(self, batch: Batch, counts: list[int] = COUNTS, **options: Any) -> Tensor:
        return self.oracle(batch.logits, batch.target, batch.features, counts, **options)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        given = (batch.logits, batch.target)
        return (*given, batch.features) if "features" in self.takes else given


def inverse_root(counts: list[int]) -> list[float]:
    return reference.power_weights(counts, 0.5)


def vs_row(name: str, **hyper: float) -> Row:
    def expected(z: Tensor, y: Tensor, h: Tensor, n: list[int], **options: Any) -> Tensor:
        return reference.vs_loss(z, y, getattr(reference, name)(n, **hyper), **options)

    return Row(
        "vs",
        lambda n: {"terms": getattr(terms, name)(n, **hyper)},
        expected,
        lambda n: getattr(reference, name)(n, **hyper)["alpha"],
    )


def weighted_ldam(counts: list[int]) -> cw.Terms:
    return terms.ldam(counts).replace(alpha=inverse_root(counts), delta=[0.1] * len(counts))


ROWS: dict[str, Row] = {
    "ce": vs_row("ce"),
    "balanced": vs_row("balanced"),
    "vs": vs_row("vs", tau=1.25, gamma=0.15),
    "ldam": Row(
        "vs",
        lambda n: {"terms": weighted_ldam(n)},
        lambda z, y, h, n, **o: reference.vs_loss(
            z,
            y,
            reference.ldam(n, 0.5, 30.0) | {"alpha": inverse_root(n), "delta": [0.1] * len(n)},
            **o,
        ),
        inverse_root,
    ),
    "focal": Row(
        "focal",
        lambda n: {"gamma": 2.0},
        lambda z, y, h, n, **o: reference.focal_loss(z, y, gamma=2.0, weight=[1.0] * len(n), **o),
    ),
    "focal-weighted": Row(
        "focal",
        lambda n: {"gamma": 0.5, "weight": inverse_root(n)},
        lambda z, y, h, n, **o: reference.focal_loss(z, y, gamma=0.5, weight=inverse_root(n), **o),
        inverse_root,
    ),
    "influence": Row(
        "influence",
        lambda n: {"strength": 10.0, "weight": inverse_root(n)},
        lambda z, y, h, n, **o: reference.influence_loss(
            z, y, h, weight=inverse_root(n), strength=10.0, **o
        ),
        inverse_root,
    ),
    "influence-detached": Row(
        "influence",
        lambda n: {"strength": 10.0, "eps": 0.1, "detach": True},
        lambda z, y, h, n, **o: reference.influence_loss(
            z, y, h, weight=[1.0] * len(n), strength=10.0, eps=0.1, detach=True, **o
        ),
        stops_gradients=True,
    ),
    "lade": Row(
        "lade",
        lambda n: {"class_counts": n, "weight": 0.3, "remine": 0.2},
        lambda z, y, h, n, **o: reference.lade_loss(z, y, n, weight=0.3, remine=0.2, **o),
    ),
    "ala": Row(
        "ala",
        lambda n: {"class_counts": n, "scale": 20.0, "weight": inverse_root(n)},
        lambda z, y, h, n, **o: reference.ala_loss(
            z, y, n, scale=20.0, weight=inverse_root(n), **o
        ),
        inverse_root,
        stops_gradients=True,
    ),
}
KINDS = ("ignored", "soft")  # some indices ignored, or probabilities
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

every_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
every_kind = pytest.mark.parametrize("kind", KINDS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def rows_where(condition: Callable[[Row], bool]) -> pytest.MarkDecorator:
    chosen = {key: row for key, row in ROWS.items() if condition(row)}
    return pytest.mark.parametrize("row", chosen.values(), ids=chosen)


every_reducing_row = rows_where(lambda row: "reduction" in row.takes)
every_dense_row = rows_where(lambda row: row.loss in ("vs", "focal", "ala"))
every_flat_row = rows_where(lambda row: row.loss not in ("vs", "focal", "ala"))
# A stopped gradient is not the derivative; those are compared with the oracle only.
every_differentiable_row = rows_where(lambda row: not row.stops_gradients)
# Enough of them where a test is slow and the constants do not matter.
ONE_EACH = {key: ROWS[key] for key in ("vs", "ldam", "focal-weighted", "influence", "lade", "ala")}
one_row_each = pytest.mark.parametrize("row", ONE_EACH.values(), ids=ONE_EACH)


def make_batch(
    kind: str = "index", samples: int = SAMPLES, dtype: torch.dtype = torch.float64
) -> Batch:
    logits = torch.empty(samples, CLASSES, dtype=torch.float64).uniform_(-1, 1)
    features = torch.randn(samples, 3, dtype=torch.float64)
    if kind == "soft":
        target = torch.randn(samples, CLASSES, dtype=torch.float64).softmax(1)
    else:
        target = torch.arange(samples) % CLASSES
    if kind == "ignored":
        target[::3] = -100
    if kind == "all ignored":
        target[:] = -100
    return Batch(logits, target, features).to(dtype)


def assert_close(actual: Tensor, expected: Tensor, rtol: float) -> None:
    """Relative to the largest entry, which for a scalar is itself."""
    actual, expected = actual.detach().double(), expected.detach().double()
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, rtol=0, atol=rtol * scale + 1e-12)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
