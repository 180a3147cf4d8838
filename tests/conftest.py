"""What every test shares: determinism, and counts to try things on."""

import pytest
import torch

torch.set_num_threads(1)  # small tensors on a busy machine: more threads are slower


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def counts() -> list[int]:
    return [500, 120, 60, 19, 5]
