"""Slow oracles, written from the equations; they never import the package."""
