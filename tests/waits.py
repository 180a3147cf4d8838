"""What makes the host wait for the device: seen on the CPU, where nothing has to wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select"}
WAITS |= {"unique", "_unique2", "unique_dim", "bincount", "unique_consecutive"}


class Recorder(TorchDispatchMode):
    """Collects the operations that would make the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.operations += 1
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        if name in WAITS or by_mask:
            self.waits.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def recorded() -> Iterator[Recorder]:
    """Record, but for the range check of targets: it looks at values on the CPU only."""
    with mock.patch("classwise._checks._check_range"), Recorder() as recorder:
        yield recorder
