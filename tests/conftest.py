"""What every test shares: determinism, and counts to try things on."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def counts() -> list[int]:
    return [500, 120, 60, 19, 5]
