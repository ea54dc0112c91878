"""The decoder layer of an EAGLE-3 drafter: Llama's, or one with DeepSeek's latent attention.

Only what reads the pair (embedding, hidden state) is twice as wide as hidden: Llama's q, k and v,
and the two down-projections of latent attention.

Legend: H hidden, A heads, L latent, N a head's part that is not rotated, V a head's value,
P positions, D head size.
"""

from __future__ import annotations

import torch

from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.eagle3_tensors import Eagle3Tensors
from kernels.decoder import Angles, DecoderLayer
from kernels.latent_attention import (
    LatentKeys,
    LatentOutput,
    LatentQueries,
    LatentSizes,
    NormedDown,
    latent_angles,
    latent_scale,
)
from kernels.linear import DenseLinear


def angles(config: Eagle3Config, length: int, dtype: torch.dtype) -> Angles:
    """Return cos and sin of so many positions, [P, D] each."""
    cos_PX, sin_PX = config.rope.tables(length, dtype)
    return latent_angles(cos_PX, sin_PX, config.latent) if config.latent else (cos_PX, sin_PX)


def decoder_layer(tensors: Eagle3Tensors) -> DecoderLayer:
    """Return the layer of a checkpoint. Raises ValueError for tensors of another shape."""
    latent = tensors.config.latent
    return _latent_layer(tensors, latent) if latent else _llama_layer(tensors)


def _llama_layer(tensors: Eagle3Tensors) -> DecoderLayer:
    config = tensors.config
    hidden, dim = config.hidden_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim
    gate, up, down = _mlp(tensors)

    def norm(name: str) -> torch.Tensor | None:
        return tensors.take(f"midlayer.self_attn.{name}.weight", dim) if config.qk_norm else None

    return DecoderLayer(
        q=_linear(tensors, "self_attn.q_proj", queries, 2 * hidden),
        k=_linear(tensors, "self_attn.k_proj", keys, 2 * hidden),
        v=_linear(tensors, "self_attn.v_proj", keys, 2 * hidden),
        o=_linear(tensors, "self_attn.o_proj", hidden, queries),
        gate=gate,
        up=up,
        down=down,
        post_norm_H=_post_norm(tensors),
        head_dim=dim,
        eps=config.rms_norm_eps,
        q_norm_D=norm("q_norm"),
        k_norm_D=norm("k_norm"),
    )


def _latent_layer(tensors: Eagle3Tensors, sizes: LatentSizes) -> DecoderLayer:
    config, heads = tensors.config, tensors.config.num_heads
    query_down, latent_down = _downs(tensors, sizes)
    key_up_ALN, value_up_AVL = _ups(tensors, sizes)
    keys = LatentKeys(latent_down)
    query_up = _linear(tensors, "self_attn.q_b_proj", heads * sizes.query_dim, sizes.query_rank)
    out = _linear(tensors, "self_attn.o_proj", config.hidden_size, heads * sizes.value)
    gate, up, down = _mlp(tensors)
    return DecoderLayer(
        q=LatentQueries(query_down, query_up, key_up_ALN),
        k=keys,
        v=keys,
        o=LatentOutput(value_up_AVL, out, sizes.rotated),
        gate=gate,
        up=up,
        down=down,
        post_norm_H=_post_norm(tensors),
        head_dim=sizes.head_dim,
        eps=config.rms_norm_eps,
        scale=latent_scale(config.rope, sizes),
    )


def _downs(tensors: Eagle3Tensors, sizes: LatentSizes) -> tuple[NormedDown, NormedDown]:
    """Return the down-projections of queries and of latents, which read the pair."""
    query_XK, latent_XK = tensors.down_projections(sizes)
    eps = tensors.config.rms_norm_eps
    query_norm = tensors.take("midlayer.self_attn.q_a_layernorm.weight", sizes.query_rank)
    latent_norm = tensors.take("midlayer.self_attn.kv_a_layernorm.weight", sizes.latent)
    return (
        NormedDown(DenseLinear(query_XK), query_norm, eps),
        NormedDown(DenseLinear(latent_XK), latent_norm, eps),
    )


def _ups(tensors: Eagle3Tensors, sizes: LatentSizes) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the up-projections of each head's keys, [A, L, N], and values, [A, V, L]."""
    outputs = tensors.config.num_heads * (sizes.unrotated + sizes.value)
    name = "midlayer.self_attn.kv_b_proj.weight"
    return sizes.ups(tensors.take(name, outputs, sizes.latent))


def _mlp(tensors: Eagle3Tensors) -> tuple[DenseLinear, DenseLinear, DenseLinear]:
    """Return the dense layers; a drafter's are never experts."""
    hidden, inner = tensors.config.hidden_size, tensors.config.intermediate_size
    gate, up = (_linear(tensors, f"mlp.{name}_proj", inner, hidden) for name in ("gate", "up"))
    return gate, up, _linear(tensors, "mlp.down_proj", hidden, inner)


def _linear(tensors: Eagle3Tensors, name: str, outputs: int, inputs: int) -> DenseLinear:
    weight = tensors.take(f"midlayer.{name}.weight", outputs, inputs)
    return DenseLinear(weight, tensors.bias(f"midlayer.{name}.bias", outputs))


def _post_norm(tensors: Eagle3Tensors) -> torch.Tensor:
    name = "midlayer.post_attention_layernorm.weight"
    return tensors.take(name, tensors.config.hidden_size)
