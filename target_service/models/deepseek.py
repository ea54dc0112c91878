"""The DeepSeek-V3 family on one device: DeepSeek-V3, Kimi-K2 and the text model of Kimi-K2.5.

Latent attention over one key a token that is its own value, experts chosen by a router, the first
layers dense; weights of experts may be int4. A checkpoint's layers for predicting more than one
token are not read. Taps are the residual stream at the input of a layer, un-normed.

Legend: P positions, E rotated part of a head, M key with its latent, H hidden, V vocabulary.
"""

from __future__ import annotations

from kernels.decoder import DecoderStack
from kernels.latent_attention import latent_angles
from target_service.kv_cache import KvShape
from target_service.models.checkpoint_linears import CheckpointLinears, read_tensor
from target_service.models.deepseek_config import DeepseekConfig
from target_service.models.deepseek_layer import decoder_layer
from target_service.models.target_model import TargetModel
from target_service.weights import Checkpoint


class Deepseek(TargetModel):
    """The model. The native kernels run none: they have no latent attention."""

    config: DeepseekConfig

    def __init__(
        self,
        config: DeepseekConfig,
        weights: Checkpoint,
        max_context_len: int,
        weight_format: str = "dense",
    ) -> None:
        """Raises ValueError for another format than "dense" if the checkpoint is quantized."""
        self.config = config
        self.weight_format = weight_format if config.quantization is None else "int4"
        shape = (config.vocab_size, config.hidden_size)
        self.embedding_VH = read_tensor(weights, "model.embed_tokens.weight", *shape)
        linears = CheckpointLinears(weights, self.embedding_VH, config.quantization, weight_format)
        cos_PE, sin_PE = config.rope.tables(max_context_len, self.dtype)
        cos_PM, sin_PM = latent_angles(cos_PE, sin_PE, config.latent)
        self.stack = DecoderStack(
            [decoder_layer(config, linears, i) for i in range(config.num_layers)],
            (cos_PM.to(self.device), sin_PM.to(self.device)),
        )
        self.head = linears.head(config, self.embedding_VH)

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
