"""The DeepSeek-V3 family on one device: DeepSeek-V3, Kimi-K2 and the text model of Kimi-K2.5.

Latent attention over one key a token that is its own value, experts chosen by a router, the first
layers dense; weights of experts may be int4. A checkpoint's layers for predicting more than one
token are not read. Taps are the residual stream at the input of a layer, un-normed.

Legend: R rows, H hidden, E rotated part of a head, P positions, T taps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from kernels.attention import RowLayout
from kernels.decoder import DecoderStack, decode_layers
from kernels.kv_pages import KvPages
from kernels.latent_attention import latent_angles
from kernels.normed_linear import NormedLinear, normed_linear
from kernels.quantized_linear import new_linear
from target_service.kv_cache import KvShape
from target_service.models.checkpoint_linears import CheckpointLinears
from target_service.models.deepseek_config import DeepseekConfig
from target_service.models.deepseek_layer import decoder_layer
from target_service.weights import Weights


class Deepseek:
    """The model. Stateless: tokens, layouts and pages in, hidden states and taps out."""

    def __init__(
        self,
        config: DeepseekConfig,
        weights: Weights,
        max_context_len: int,
        weight_format: str = "dense",
    ) -> None:
        """Raises ValueError for another format than "dense" if the checkpoint is quantized."""
        self.config = config
        self._weight_format = weight_format
        shape = (config.vocab_size, config.hidden_size)
        self._embedding_VH = weights["model.embed_tokens.weight"]
        linears = CheckpointLinears(weights, self._embedding_VH, config.quantization, weight_format)
        cos_PE, sin_PE = config.rope.tables(max_context_len, self.dtype)
        cos_PM, sin_PM = latent_angles(cos_PE, sin_PE, config.latent)
        self.stack = DecoderStack(
            [decoder_layer(config, linears, i) for i in range(config.num_layers)],
            (cos_PM.to(self.device), sin_PM.to(self.device)),
        )
        tied = config.tied_head
        head = new_linear(weight_format, self._embedding_VH) if tied else linears("lm_head", *shape)
        norm_H = linears.tensor("model.norm.weight", config.hidden_size)
        self.head = NormedLinear(head, norm_H, config.rms_norm_eps)

    @property
    def weight_format(self) -> str:
        """How weights are kept; some of a quantized checkpoint's are not, as it says."""
        return self._weight_format if self.config.quantization is None else "int4"

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding_VH.dtype

    @property
    def device(self) -> torch.device:
        return self._embedding_VH.device

    @property
    def is_native(self) -> bool:
        """Whether the native kernels run its layers: they have no latent attention."""
        return self.stack.packed is not None

    @property
    def kv_shape(self) -> KvShape:
        """What a slot of this model's cache holds: one key of all heads, which is its value."""
        return KvShape(
            self.config.num_layers,
            num_kv_heads=1,
            head_dim=self.config.head_dim,
            dtype=self.dtype,
            device=self.device,
            keys_are_values=True,
        )

    def forward(
        self,
        tokens_R: torch.Tensor,
        layouts: Sequence[RowLayout],
        kv: KvPages,
        tap_layers: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return last hidden states [R, H] and taps [R, T * H] of the rows of many sessions."""
        h_RH = F.embedding(tokens_R, self._embedding_VH)
        return decode_layers(h_RH, self.stack, layouts, kv, tap_layers)

    def logits(self, h_RH: torch.Tensor) -> torch.Tensor:
        """Return float32 logits of hidden states, [R, V]."""
        return normed_linear(h_RH, self.head)
