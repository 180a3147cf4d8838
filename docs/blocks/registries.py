"""Data sources, models and the paper's tables and figures, from their registries."""

from __future__ import annotations

from blocks.markdown import table
from classwise.data import list_sources
from classwise.models import list_models
from classwise.paper import list_exhibits
from classwise.paper.load import load_all


def sources() -> str:
    """Return the sources of data."""
    rows = [[f"`{source.form}`", source.summary] for source in list_sources()]
    return table(["URI", "what it reads"], rows)


def models() -> str:
    """Return the models."""
    rows = [[f"`{row.name}`", row.title, row.inputs, row.source] for row in list_models()]
    return table(["model", "what it is", "takes", "source"], rows)


def exhibits() -> str:
    """Return the paper's tables and figures: their runs, and what these need."""
    rows = [
        [f"`{row['name']}`", row["title"], row["runs"], row["trainable"], row["needs"]]
        for row in list_exhibits()
    ]
    return table(["name", "what it shows", "runs", "of these trainable", "the others need"], rows)


def needs() -> str:
    """Return what the runs need that cannot be trained with what is bundled."""
    found = {need.name: need for item in load_all() for c in item.cells for need in c.needs}
    rows = [
        [f"`{name}`", need.what, "its data" if need.expands else "more than data"]
        for name, need in found.items()
    ]
    return table(["name", "what is needed", "waits for"], rows)
