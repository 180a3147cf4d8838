"""What the paper's tables and figures are made of: frozen data, read from TOML by ``load``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from classwise.paper._toml import Scalar

__all__ = [
    "KINDS",
    "METRICS",
    "SOURCES",
    "Cell",
    "Figure",
    "Inconsistency",
    "Metric",
    "Need",
    "Panel",
    "PaperProtocol",
    "Reported",
    "Series",
    "Table",
    "setting_name",
]

SOURCES = ("paper", "published script", "first-measurements", "unknown: tune")
"""Where a value of a run can come from."""

KINDS = ("lines", "heatmap", "reliability", "slopes", "bound")
"""How a figure is drawn."""


@dataclass(frozen=True)
class Metric:
    """What a number of the paper measures.

    Args:
        title: as a column is called.
        unit: of the number.
        high: the largest that is possible.
        column: the column of a result row that answers it at the last epoch; empty if none does.
        best: likewise at the best epoch.
    """

    title: str
    unit: str = "%"
    high: float = 100.0
    column: str = ""
    best: str = ""


METRICS: dict[str, Metric] = {
    "balanced": Metric("All", column="last", best="best"),
    "many": Metric("Many", column="many", best="best_many"),
    "medium": Metric("Med.", column="medium", best="best_medium"),
    "few": Metric("Few", column="few", best="best_few"),
    "train_seconds": Metric("Training", "s/epoch", float("inf")),
    "train_memory": Metric("Training, memory", "MB", float("inf")),
    "slope_seconds": Metric("Slopes", "s/epoch", float("inf")),
    "slope_seconds_share": Metric("Slopes, share of the time"),
    "slope_memory": Metric("Slopes, memory", "MB", float("inf")),
    "slope_memory_share": Metric("Slopes, share of the memory"),
}


@dataclass(frozen=True)
class Reported:
    """A number that the paper prints.

    Args:
        mean: over its seeds.
        spread: what it prints after the plus-minus sign, None where it prints none.
    """

    mean: float
    spread: float | None = None

    def __str__(self) -> str:
        return _printed(self.mean) + ("" if self.spread is None else f" ± {_printed(self.spread)}")


def _printed(value: float) -> str:
    """Return a number with one decimal, or with more where the paper prints more."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:g}"


@dataclass(frozen=True)
class Need:
    """What a run wants that does not come with classwise.

    Args:
        name: in ``needs.toml``.
        what: in words.
        expands: whether the training loop can express the run once it is there.
    """

    name: str
    what: str
    expands: bool

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class Inconsistency:
    """Something in the paper's numbers that does not fit, known and kept as printed.

    Args:
        code: of the note that describes it, such as P3.
        kind: "group-mean" (All is not the mean of the groups), "split" (the groups are cut
            elsewhere) or "backbone" (the number is of another network).
        what: in words.
        groups: classes in the groups that it does follow, for a "split".
    """

    code: str
    kind: str
    what: str
    groups: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PaperProtocol:
    """A training protocol of the paper.

    Args:
        name: as cells name it.
        title: what it is.
        source: where it is described.
        train: the protocol of ``classwise.train`` that expresses it, or empty.
        needs: what it wants.
        settings: what is known of it, where the training loop cannot express it.
    """

    name: str
    title: str
    source: str
    train: str
    needs: tuple[Need, ...]
    settings: Mapping[str, Scalar]


@dataclass(frozen=True)
class Cell:
    """One run of the paper, but for the seed: a number of a table or a point of a figure.

    Args:
        item: the table or figure, ``"table-3"``.
        name: unique in it, ``"a/ce+drw/cifar100-exp-100"``.
        title: as the paper calls the row or the series.
        part: name of the block of rows, or of the panel.
        dataset: "cifar10", "cifar100", "fashion-mnist", "imagenet-lt" or "inaturalist".
        imbalance: "exp", "step" or "as-is".
        ratio: the imbalance ratio, None for "as-is".
        protocol: name of a ``PaperProtocol``; None for a cited number.
        method: in the grammar of recipes; None for one that classwise does not have.
        settings: of this run alone, by their names in a ``RunConfig``.
        at: settings that the figure varies.
        source: of ``settings`` and ``at``.
        needs: what the run wants.
        reported: numbers that the paper prints, by metric.
        groups: classes with many, medium and few shots, where the paper says so.
        exceptions: known troubles with the numbers.
        cited: the paper that the numbers are copied from, or empty.
        note: anything else.
    """

    item: str
    name: str
    title: str
    part: str
    dataset: str
    imbalance: str
    ratio: float | None = None
    protocol: str | None = None
    method: str | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    at: Mapping[str, Scalar] = field(default_factory=dict)
    source: str = ""
    needs: tuple[Need, ...] = ()
    reported: Mapping[str, Reported] = field(default_factory=dict)
    groups: tuple[int, ...] | None = None
    exceptions: tuple[Inconsistency, ...] = ()
    cited: str = ""
    note: str = ""

    @property
    def setting(self) -> str:
        """Data set, imbalance and ratio in one word, ``"cifar100-exp-100"``."""
        return setting_name(self.dataset, self.imbalance, self.ratio)

    @property
    def expands(self) -> bool:
        """Whether the training loop can express the run."""
        return self.method is not None and all(need.expands for need in self.needs)


def setting_name(dataset: str, imbalance: str, ratio: float | None) -> str:
    """Return data set, imbalance and ratio in one word."""
    return dataset if ratio is None else f"{dataset}-{imbalance}-{ratio:g}"


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Args:
        number: in the order of the paper's source.
        label: in LaTeX.
        title: what is in it.
        parts: name and title of the blocks of rows.
        columns: name of each column and the metrics in it.
        cells: row by row.
        seeds: that the paper averages over; 0 where it does not say.
        selected_on: split that the paper's best epoch is chosen on, or empty.
        note: anything else.
    """

    number: int
    label: str
    title: str
    parts: Mapping[str, str]
    columns: Mapping[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
    seeds: int
    selected_on: str
    note: str

    @property
    def name(self) -> str:
        """``"table-3"``."""
        return f"table-{self.number}"


@dataclass(frozen=True)
class Series:
    """A line of a panel (one cell for each point) or a run of which it shows something."""

    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Panel:
    """A panel of a figure.

    Args:
        name: its letter.
        title: above it.
        x: what the horizontal axis shows: a setting that is varied, "epoch" or "confidence".
        y: what the vertical axis shows.
        hue: the second setting that is varied, of a heatmap, or empty.
        groups: groups of classes of which each is drawn apart.
        series: what is drawn.
        best_at: where the paper says that the best value is, or None.
    """

    name: str
    title: str
    x: str
    y: str
    hue: str
    groups: tuple[str, ...]
    series: tuple[Series, ...]
    best_at: float | None


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, or a study of our own that is described in the same way.

    Args:
        name: ``"figure-7"``, or ``"study-slopes"``.
        label: in LaTeX; empty for a study.
        title: what is in it.
        kind: one of ``KINDS``.
        panels: what is drawn.
        reported: "none" where its numbers exist only as an image, which the source does not
            have; "text" where the text quotes some of them.
        note: anything else.
    """

    name: str
    label: str
    title: str
    kind: str
    panels: tuple[Panel, ...]
    reported: str
    note: str

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All runs, panel by panel."""
        return tuple(self._cells())

    def _cells(self) -> Iterator[Cell]:
        for panel in self.panels:
            for series in panel.series:
                yield from series.cells
