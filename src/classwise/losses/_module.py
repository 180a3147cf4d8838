"""Modules whose numbers must keep their precision, and modules that hold class terms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from classwise.terms import Terms, checked_terms

__all__ = ["KeepsPrecision", "TermsModule", "moved"]


class KeepsPrecision(nn.Module):
    """A module that moves between devices but is not cast.

    ``model.half()`` must not round a log-prior or a count that happens to live inside ``model``.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return super()._apply(lambda tensor: moved(tensor, fn), recurse)


def moved(tensor: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply the ``fn`` of ``nn.Module._apply``, but let it change the device only."""
    if tensor.dtype == torch.float64 and fn(torch.zeros(())).device.type == "mps":
        tensor = tensor.float()  # the widest that MPS has
    result = fn(tensor)
    return result if result.dtype == tensor.dtype else tensor.to(device=result.device)


class TermsModule(KeepsPrecision):
    """A module with class terms that follow it from device to device.

    The four vectors are buffers outside the ``state_dict``; ``terms`` is made of them.
    """

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        self._terms = checked_terms(terms)
        for field in dataclasses.fields(terms):
            self.register_buffer(field.name, getattr(terms, field.name), persistent=False)

    @property
    def terms(self) -> Terms:
        """The class terms in force."""
        return self._terms

    def _use_terms(self, terms: Terms) -> None:
        self._terms = terms
        for field in dataclasses.fields(terms):
            setattr(self, field.name, getattr(terms, field.name))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._use_terms(self._terms.map(lambda vector: moved(vector, fn)))
        return self
