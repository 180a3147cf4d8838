"""Random numbers that depend on nothing but what is named.

Every draw of the data pipeline comes from a generator that is seeded with a hash of what the draw
is for: ("shuffled", seed, epoch), or ("crop-flip", seed, epoch, batch). So there is no state to
save, the order of calls does not matter, and every rank can draw what another one draws.
"""

from __future__ import annotations

import hashlib

import torch

__all__ = ["generator_for", "seed_for"]


def seed_for(*purpose: str | int) -> int:
    """Return a seed in [0, 2^63) that is a hash of ``purpose``.

    >>> seed_for("shuffled", 0, 1) == seed_for("shuffled", 0, 1) != seed_for("shuffled", 0, 2)
    True
    """
    text = "\x1f".join(map(repr, purpose))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator_for(*purpose: str | int) -> torch.Generator:
    """Return a generator on the CPU, seeded with a hash of ``purpose``."""
    return torch.Generator().manual_seed(seed_for(*purpose))
