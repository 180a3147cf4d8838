"""Hyper-parameters: their ranges, and one table of defaults with the source of each."""

from __future__ import annotations

from dataclasses import dataclass

from classwise._checks import number

__all__ = ["ALIASES", "CRITERION_KEYWORDS", "DEFAULTS", "RANGES", "Default", "checked"]


@dataclass(frozen=True)
class Range:
    """What a hyper-parameter means and which values are legal."""

    meaning: str
    low: float = 0.0
    high: float = float("inf")
    low_open: bool = False
    high_open: bool = False


RANGES: dict[str, Range] = {
    "tau": Range("strength of the additive adjustment tau * log(pi)"),
    "deferred_tau": Range("tau from T0 on"),
    "gamma": Range("exponent of the multiplicative adjustment; for focal, of 1 - p"),
    "nu": Range("exponent of the weights pi^-nu"),
    "p": Range("of the effective number (1 - p^N) / (1 - p)", high=1, high_open=True),
    "max_margin": Range("margin of the smallest class, on cosines"),
    "scale": Range("inverse temperature of cosine logits", low_open=True),
    "strength": Range("numerator of the influence factor", low_open=True),
    "start": Range(
        "fraction of training after which the influence factor begins", high=1, high_open=True
    ),
    "weight": Range("of LADE's regulariser"),
    "remine": Range("of the squared term in LADE's regulariser"),
}


@dataclass(frozen=True)
class Default:
    """A default value and where it comes from."""

    value: float
    source: str


_LDAM_CODE = "published code of LDAM-DRW (Cao et al. 2019)"
_PAPER_BEST = "best on CIFAR-100-LT, ratio 100, in the paper's sensitivity analysis"

# (part of the grammar, hyper-parameter) -> default. "drw", "adrw" and "tla" are parts as well.
DEFAULTS: dict[tuple[str, str], Default] = {
    ("cb", "p"): Default(0.9999, _LDAM_CODE),
    ("drw", "p"): Default(0.9999, _LDAM_CODE),
    ("adrw", "nu"): Default(0.2, _PAPER_BEST + ", protocol (c)"),
    ("focal", "gamma"): Default(2.0, "Lin et al. 2017; the CIFAR-LT code bases use 1"),
    ("la", "tau"): Default(1.0, "Menon et al. 2021"),
    ("cdt", "gamma"): Default(0.2, "Bag of Tricks for Long-Tailed Visual Recognition (2021)"),
    ("vs", "tau"): Default(1.0, "published scripts of the paper, CIFAR-100-LT, ratio 100"),
    ("vs", "gamma"): Default(0.05, "published scripts of the paper, CIFAR-100-LT, ratio 100"),
    ("ldam", "max_margin"): Default(0.5, _LDAM_CODE + "; 0.3 for ImageNet-LT and iNaturalist"),
    ("ldam", "scale"): Default(30.0, _LDAM_CODE),
    ("ala", "scale"): Default(30.0, "Zhao et al. 2022"),
    ("ib", "strength"): Default(1000.0, "published code of Park et al. 2021"),
    ("ib", "start"): Default(0.5, "published code of Park et al. 2021: epoch 100 of 200"),
    ("lade", "weight"): Default(0.1, "published code of Hong et al. 2021, CIFAR-100-LT"),
    ("lade", "remine"): Default(0.1, "published code of Hong et al. 2021, Places-LT; CIFAR: 0.01"),
    ("mla", "gamma"): Default(0.01, _PAPER_BEST),
    ("cla", "tau"): Default(0.9, _PAPER_BEST),
    ("cvs", "gamma"): Default(0.01, _PAPER_BEST),
    ("cvs", "tau"): Default(0.9, _PAPER_BEST),
}


def checked(name: str, value: object) -> float:
    """Return the value of a hyper-parameter if it is legal."""
    r = RANGES[name]
    return number(name, value, low=r.low, high=r.high, low_open=r.low_open, high_open=r.high_open)


# What Criterion takes beside hyper-parameters, to recognise a misspelt one.
CRITERION_KEYWORDS = (
    "class_counts",
    "epochs",
    "defer_at",
    "warmup",
    "slopes",
    "reduction",
    "normalize",
    "ignore_index",
    "label_smoothing",
    "process_group",
    "allow_empty",
)

# Names that other code bases use for what is called something else here.
ALIASES: dict[str, str] = {
    "cls_num_list": "class_counts",
    "samples_per_class": "class_counts",
    "img_num_per_cls": "class_counts",
    "tro": "nu",
    "beta": "p",
    "max_m": "max_margin",
    "s": "scale",
    "t_reweight": "defer_at",
}
