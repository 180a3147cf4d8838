"""Data: sources, profiles of imbalance, the selection of samples, and what is wrong with them.

    dataset = classwise.data.load("cifar100")
    prepared = classwise.data.prepare(dataset, imbalance="exp:100", val_fraction=0.1)

Importing this loads torch, numpy and nothing heavier; each source imports what it reads with.
"""

from __future__ import annotations

from classwise.data.audit import Audit, audit
from classwise.data.dataset import DataSet, Files, Split
from classwise.data.findings import Finding
from classwise.data.prepare import Prepared, prepare
from classwise.data.profiles import Profile, longtail_counts, parse_profile, select
from classwise.data.sources import Source, list_sources, load

__all__ = [
    "Audit",
    "DataSet",
    "Files",
    "Finding",
    "Prepared",
    "Profile",
    "Source",
    "Split",
    "audit",
    "list_sources",
    "load",
    "longtail_counts",
    "parse_profile",
    "prepare",
    "select",
]
