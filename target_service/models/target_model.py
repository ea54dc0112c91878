"""What all models have in common, and what the services around one need of it.

Legend: R rows, H hidden, T taps, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F

from kernels.attention import RowLayout
from kernels.decoder import DecoderStack, decode_layers
from kernels.kv_pages import KvPages
from kernels.normed_linear import NormedLinear, normed_linear
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

    @property
    def tied_head(self) -> bool:
        """Whether the head's weight is the embedding."""


class TargetModel(ABC):
    """A model: embedding, decoder layers, head. What these consist of, its family says.

    Stateless: tokens, layouts and pages in, hidden states and taps out.
    """

    config: ModelConfig
    embedding_VH: torch.Tensor
    stack: DecoderStack
    head: NormedLinear
    weight_format: str
    """How weights are kept: one of `WEIGHT_FORMATS`. If some are quantized, as they are."""

    @property
    @abstractmethod
    def kv_shape(self) -> KvShape:
        """What a slot of this model's cache holds."""

    @property
    def dtype(self) -> torch.dtype:
        """Of activations, and of taps."""
        return self.embedding_VH.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding_VH.device

    @property
    def is_native(self) -> bool:
        """Whether the native kernels run its layers."""
        return self.stack.packed is not None

    def forward(
        self,
        tokens_R: torch.Tensor,
        layouts: Sequence[RowLayout],
        kv: KvPages,
        tap_layers: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return last hidden states [R, H] and taps [R, T * H] of the rows of many sessions."""
        h_RH = F.embedding(tokens_R, self.embedding_VH)
        return decode_layers(h_RH, self.stack, layouts, kv, tap_layers)

    def logits(self, h_RH: torch.Tensor) -> torch.Tensor:
        """Return float32 logits of hidden states, [R, V]."""
        return normed_linear(h_RH, self.head)
