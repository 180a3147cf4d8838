"""``digits``: 1,797 handwritten digits of 8 x 8 pixels, bundled with scikit-learn."""

from __future__ import annotations

import torch

from classwise.data._optional import needed
from classwise.data.dataset import DataSet, Split
from classwise.data.findings import Findings
from classwise.data.sources._address import Address
from classwise.data.sources._assemble import assemble
from classwise.errors import ArgumentError

__all__ = ["read"]


def read(address: Address, findings: Findings) -> DataSet:
    """Read the digits; their 17 shades of grey are spread over 0 .. 255."""
    if address.place:
        raise ArgumentError(f"digits has no place, got {str(address)!r}; write just 'digits'.")
    bundle = needed("sklearn.datasets", "scikit-learn", "digits").load_digits()
    shades = torch.from_numpy(bundle.images).mul(255 / 16).round().to(torch.uint8)
    labels = torch.from_numpy(bundle.target).long()
    return assemble("digits", [str(d) for d in range(10)], Split(shades.unsqueeze(1), labels))
