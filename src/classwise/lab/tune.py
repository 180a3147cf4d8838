"""Two-stage tuning: first what shapes the shared trunk, then what only the last epochs see.

The paper tunes gamma with whole trainings and (tau, nu) from the best gamma's trunk, which costs
O(N_gamma + N_tau * N_nu / r) trainings instead of the product (paper Sec. 5). Here it follows from
the store: a hyper-parameter that leaves the first phase alone shares it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from classwise._checks import known_name, whole_number
from classwise.errors import ArgumentError
from classwise.lab.execute import Resources, execute
from classwise.lab.plan import Node, Plan, Request, make_plan
from classwise.lab.store import Store
from classwise.recipes import Recipe
from classwise.train.config import RunConfig, to_dict, with_values
from classwise.train.observe import Observer

__all__ = ["GRID", "SAMPLERS", "Stage", "Trial", "Tuning", "stages_of", "tune", "tuning_plan"]

# The paper's search space for CVS (Sec. 6.1), and for what others have around their defaults.
GRID: dict[str, tuple[float, ...]] = {
    "gamma": (0.005, 0.01, 0.02, 0.03, 0.04),
    "tau": (0.65, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0),
    "deferred_tau": (0.65, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0),
    "nu": (0.05, 0.1, 0.15, 0.2, 0.25),
    "p": (0.99, 0.999, 0.9999),
    "max_margin": (0.3, 0.5, 0.7),
}
"""Values that are tried where none are given."""

# The same letter means something of another size in these.
_GRID_OF = {
    ("focal", "gamma"): (0.5, 1.0, 2.0, 3.0),
    ("cdt", "gamma"): (0.1, 0.2, 0.3, 0.4),
    ("vs", "gamma"): (0.05, 0.1, 0.15, 0.2, 0.3),
}

SAMPLERS = ("grid", "tpe", "random")
"""How points are chosen: all of them, or by Optuna."""

Grid = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Trial:
    """Hyper-parameters that were tried, and their balanced accuracy on the validation split."""

    hyper: Mapping[str, float]
    score: float


@dataclass(frozen=True)
class Stage:
    """One stage of the search: which hyper-parameters, what was tried, what was best."""

    names: tuple[str, ...]
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The trial with the highest score; the first one of several."""
        return max(self.trials, key=lambda trial: trial.score)

    @property
    def ties(self) -> str:
        """What to say where several trials are the best; empty if one is."""
        count = sum(trial.score == self.best.score for trial in self.trials)
        if count == 1:
            return ""
        return (
            f"{count} of {len(self.trials)} trials share the best score, and the first is taken. "
            "More validation samples, seeds or epochs may tell them apart."
        )


@dataclass(frozen=True)
class Tuning:
    """What a search found, and what it cost.

    Args:
        method: that was tuned.
        data: on which, and how it was imbalanced.
        stages: in order.
        best: the hyper-parameters found.
        epochs: trained, shared phases once.
        epochs_alone: that the same trials as separate runs would train.
        epochs_product: that the product of both stages' grids as separate runs would train.
    """

    method: str
    data: str
    stages: tuple[Stage, ...]
    best: Mapping[str, float]
    epochs: int
    epochs_alone: int
    epochs_product: int


def stages_of(method: str, grid: Grid) -> list[tuple[str, ...]]:
    """Return the names of each stage: those that change the first phase, then the others.

    >>> stages_of("cvs+adrw", {"gamma": [0.01], "tau": [0.9], "nu": [0.2]})
    [('gamma',), ('tau', 'nu')]
    """
    early, late = [], []
    for name, values in grid.items():
        if not values:
            raise ArgumentError(f"the grid of {name} is empty.")
        near = values[0] * 0.999 or 0.001  # a single value must differ from something
        first = {str(Recipe.parse(method, **{name: v}).phases[0]) for v in (*values, near)}
        (early if len(first) > 1 else late).append(name)
    return [tuple(names) for names in (early, late) if names]


def tuning_plan(
    config: RunConfig,
    grid: Grid,
    seeds: int = 1,
    *,
    sampler: str = "grid",
    trials: int = 20,
    need_data: bool = True,
) -> tuple[Plan, int]:
    """Return what a search trains, and how many runs it stands for.

    Which trunk is the best one is not known before; the first one stands for it. A search by grid
    stands for the product of the grid; what a sampler will draw, for the same runs alone.
    """
    fixed, points = dict(config.method.hyper), []
    for names in stages_of(config.method.method, grid):
        part = {name: grid[name] for name in names}
        tried = _points(part) if sampler == "grid" else _stand_ins(part, trials)
        points += [{**fixed, **point} for point in tried]
        fixed.update({name: values[0] for name, values in part.items()})
    plan = make_plan(_requests(config, points, seeds), need_data=need_data)
    return plan, (len(_points(grid)) if sampler == "grid" else len(points)) * seeds


def _stand_ins(grid: Grid, trials: int) -> list[dict[str, float]]:
    """Return as many points as a sampler will draw; which these are does not change the cost."""
    share = [(number + 0.5) / trials for number in range(trials)]
    return [{n: min(v) + s * (max(v) - min(v)) for n, v in grid.items()} for s in share]


def _points(grid: Grid) -> list[dict[str, float]]:
    return [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]


def tune(
    config: RunConfig,
    store: Store,
    *,
    grid: Grid | None = None,
    sampler: str = "grid",
    trials: int = 20,
    seeds: int = 1,
    journal: Path | None = None,
    engine: str = "local",
    resources: Resources | None = None,
    observer_for: Callable[[Node], Observer | None] = lambda node: None,
    on_done: Callable[[Node, int, int], None] = lambda node, done, of: None,
) -> Tuning:
    """Search the hyper-parameters of a method on a validation split.

    Args:
        config: of the runs; it must have a validation split.
        store: keeps the phases; what lies in it is not trained again.
        grid: values of each hyper-parameter; None is ``GRID`` for those that the method takes.
        sampler: ``"grid"`` tries all points of a stage; ``"tpe"`` and ``"random"`` draw ``trials``
            points of each stage between the smallest and largest value, with Optuna.
        trials: of each stage, unless ``sampler`` is ``"grid"``.
        seeds: runs of each point, whose scores are averaged.
        journal: Optuna's journal; survives being killed at any moment.
        engine: see ``classwise.lab.execute``, as for what follows.
        resources: of a task of Ray.
        observer_for: makes the observer of a phase.
        on_done: told each phase that is finished.
    """
    known_name("sampler", sampler, SAMPLERS)
    trials = whole_number("trials", trials, low=1)
    seeds = whole_number("seeds", seeds, low=1)
    method = config.method.method
    grid = default_grid(method) if grid is None else grid
    names = stages_of(method, grid)
    if config.data.val == 0 and config.select != "val":
        raise ArgumentError("tuning needs a validation split: set val=0.2.")
    fixed: dict[str, float] = dict(config.method.hyper)
    stages: list[Stage] = []
    tried: list[Request] = []

    def requests_of(points: Sequence[Mapping[str, float]]) -> list[Request]:
        return _requests(config, [{**fixed, **point} for point in points], seeds)

    def score(points: Sequence[Mapping[str, float]]) -> list[float]:
        records = execute(
            make_plan(requests_of(points)),
            store,
            engine=engine,
            resources=resources,
            observer_for=observer_for,
            on_done=on_done,
        )
        values = [record.epochs[-1]["val"]["balanced"] for record in records]
        return [statistics.fmean(values[i : i + seeds]) for i in range(0, len(values), seeds)]

    for stage_names in names:
        part = {name: grid[name] for name in stage_names}
        if sampler == "grid":
            points = _points(part)
            found = [Trial(p, s) for p, s in zip(points, score(points), strict=True)]
        else:
            name = _study_name(config, part, fixed, sampler, seeds)
            found = _sampled(name, part, score, sampler, trials, config.seed, journal)
        # All trials, those included that an interrupted search had scored already.
        tried += requests_of([trial.hyper for trial in found])
        stages.append(Stage(stage_names, tuple(found)))
        fixed.update(stages[-1].best.hyper)
    plan = make_plan(tried)
    product = len(_points(grid)) * seeds * plan.epochs_alone // len(plan.leaves)
    data = f"{config.data.source} {config.data.imbalance}"
    return Tuning(method, data, tuple(stages), fixed, plan.epochs, plan.epochs_alone, product)


def _sampled(
    name: str,
    grid: Grid,
    score: Callable[[Sequence[Mapping[str, float]]], list[float]],
    sampler: str,
    trials: int,
    seed: int,
    journal: Path | None,
) -> list[Trial]:
    """Score points that Optuna draws, those of the journal included."""
    from classwise.lab.journal import Search, journal_in  # noqa: PLC0415  (slow to import)

    with journal_in(journal) as storage:
        search = Search(storage, name, sampler=sampler, seed=seed, grid=grid)
        while len(search.scored) < trials:
            trial, point = search.ask()
            search.tell(trial, score([point])[0])
        return [Trial(point, value) for point, value in search.scored]


def _study_name(
    config: RunConfig, grid: Grid, fixed: Mapping[str, float], sampler: str, seeds: int
) -> str:
    """Return a name that only the same search has: a journal's scores are good for no other."""
    plain = to_dict(config)
    what = {name: plain[name] for name in ("data", "model", "method", "optim", "seed", "precision")}
    text = json.dumps([what, {n: list(v) for n, v in grid.items()}, dict(fixed), sampler, seeds])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{config.method.method} {','.join(grid)} {digest}"


def default_grid(method: str) -> dict[str, Sequence[float]]:
    """Return the grid of the hyper-parameters that a method takes.

    >>> list(default_grid("vs+tla+adrw"))
    ['gamma', 'tau', 'deferred_tau', 'nu']
    """
    base = method.partition("+")[0]
    grid = {name: _GRID_OF.get((base, name), values) for name, values in GRID.items()}
    found = {name: values for name, values in grid.items() if _takes(method, name)}
    if not found:
        raise ArgumentError(
            f"the paper's grid has nothing that {method!r} takes; name a method such as cvs+adrw, "
            "or give a grid of what it takes."
        )
    return dict(found)


def _takes(method: str, name: str) -> bool:
    Recipe.parse(method)  # an unknown method is an error, and takes nothing
    try:
        Recipe.parse(method, **{name: GRID[name][0]})
    except ArgumentError:
        return False
    return True


def _requests(
    config: RunConfig, points: Sequence[Mapping[str, float]], seeds: int
) -> list[Request]:
    return [
        Request(
            " ".join(f"{name}={value:g}" for name, value in point.items()),
            with_values(config, {**point, "seed": config.seed + seed}),
        )
        for point in points
        for seed in range(seeds)
    ]
