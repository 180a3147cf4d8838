"""The laboratory: runs as a graph of phases, each trained once, kept in a store."""

from __future__ import annotations

from classwise.lab.execute import Resources, execute
from classwise.lab.plan import Node, Plan, Request, make_plan
from classwise.lab.store import Store

__all__ = ["Node", "Plan", "Request", "Resources", "Store", "execute", "make_plan"]
