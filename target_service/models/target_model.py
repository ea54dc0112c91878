"""What the services around a model need of it, whichever family it is of.

Legend: R rows, H hidden, T taps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from kernels.attention import RowLayout
from kernels.kv_pages import KvPages
from target_service.kv_cache import KvShape


class ModelConfig(Protocol):
    """What config.json says about any model."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def head_dim(self) -> int:
        """Of a key, as it lies in the cache."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context_len(self) -> int: ...


class TargetModel(Protocol):
    """A model. Stateless: tokens, layouts and pages in, hidden states and taps out."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def weight_format(self) -> str:
        """How weights are kept: one of `WEIGHT_FORMATS`. If some are quantized, as they are."""

    @property
    def dtype(self) -> torch.dtype:
        """Of activations, and of taps."""

    @property
    def device(self) -> torch.device: ...

    @property
    def is_native(self) -> bool:
        """Whether the native kernels run its layers."""

    @property
    def kv_shape(self) -> KvShape:
        """What a slot of this model's cache holds."""

    def forward(
        self,
        tokens_R: torch.Tensor,
        layouts: Sequence[RowLayout],
        kv: KvPages,
        tap_layers: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return last hidden states [R, H] and taps [R, T * H] of the rows of many sessions."""

    def logits(self, h_RH: torch.Tensor) -> torch.Tensor:
        """Return float32 logits of hidden states, [R, V]."""
