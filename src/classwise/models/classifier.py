"""A backbone and a head: what every model here is."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor, nn

__all__ = ["Classifier"]


class Classifier(nn.Module):
    """A backbone that maps inputs to features (N, F), and a head that maps those to logits (N, C).

    The parts keep their own names, so the keys of a ``state_dict`` begin with ``backbone.`` or
    ``head.``, whatever the architecture.

    Args:
        backbone: called with the inputs, returns (N, F).
        head: called with (N, F), returns (N, C).
        feature_dim: F.
        num_classes: C.
    """

    def __init__(
        self, backbone: nn.Module, head: nn.Module, *, feature_dim: int, num_classes: int
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.feature_dim = feature_dim
        self.num_classes = num_classes

    @overload
    def forward(self, x: Tensor, *, with_features: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, x: Tensor, *, with_features: Literal[True]) -> tuple[Tensor, Tensor]: ...

    @overload
    def forward(self, x: Tensor, *, with_features: bool) -> Tensor | tuple[Tensor, Tensor]: ...

    def forward(self, x: Tensor, *, with_features: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits (N, C), or logits and the features (N, F) that the head was given."""
        features = self.backbone(x)
        logits = self.head(features)
        return (logits, features) if with_features else logits
