"""A decoder layer of the DeepSeek-V3 family: latent attention, and experts beside a shared one.

    y = sum over the chosen experts of weight expert(x)  +  shared(x)

The first layers have one dense feed-forward layer in place of both.

Legend: E experts.
"""

from __future__ import annotations

from kernels.decoder import DecoderLayer
from kernels.experts import Expert, Mixture
from kernels.latent_attention import (
    LatentKeys,
    LatentOutput,
    LatentQueries,
    NormedDown,
    latent_scale,
)
from kernels.linear import DenseLinear, JoinedLinear, Linear
from target_service.models.checkpoint_linears import CheckpointLinears
from target_service.models.deepseek_config import DeepseekConfig


def decoder_layer(config: DeepseekConfig, linears: CheckpointLinears, index: int) -> DecoderLayer:
    """Return a layer. Raises ValueError for tensors that are missing or of another shape."""
    prefix = f"model.layers.{index}"
    is_dense = index < config.num_dense_layers
    queries, keys, output = _attention(config, linears, f"{prefix}.self_attn")
    gate, up, down = _feed_forward(config, linears, f"{prefix}.mlp", is_dense)
    input_norm, post_norm = (
        linears.tensor(f"{prefix}.{name}_layernorm.weight", config.hidden_size)
        for name in ("input", "post_attention")
    )
    return DecoderLayer(
        q=queries,
        k=keys,
        v=keys,
        o=output,
        gate=gate,
        up=up,
        down=down,
        input_norm_H=input_norm,
        post_norm_H=post_norm,
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
        scale=latent_scale(config.rope, config.latent),
        experts=None if is_dense else _mixture(config, linears, f"{prefix}.mlp"),
    )


def _attention(
    config: DeepseekConfig, linears: CheckpointLinears, prefix: str
) -> tuple[LatentQueries, LatentKeys, LatentOutput]:
    sizes, heads = config.latent, config.num_heads
    ups = linears.matrix(
        f"{prefix}.kv_b_proj", heads * (sizes.unrotated + sizes.value), sizes.latent
    )
    key_up_ALN, value_up_AVL = sizes.ups(ups)
    query_down, query_up = _query_parts(config, linears, prefix)
    keys = LatentKeys(
        NormedDown(
            linears(f"{prefix}.kv_a_proj_with_mqa", sizes.head_dim, config.hidden_size),
            linears.tensor(f"{prefix}.kv_a_layernorm.weight", sizes.latent),
            config.rms_norm_eps,
        )
    )
    out = linears(f"{prefix}.o_proj", config.hidden_size, heads * sizes.value)
    queries = LatentQueries(query_down, query_up, key_up_ALN)
    return queries, keys, LatentOutput(value_up_AVL, out, sizes.rotated)


def _query_parts(
    config: DeepseekConfig, linears: CheckpointLinears, prefix: str
) -> tuple[NormedDown | None, Linear]:
    """Return the way from hidden to queries, by a smaller vector if the model has one."""
    rank, outputs = config.latent.query_rank, config.num_heads * config.latent.query_dim
    if not rank:
        return None, linears(f"{prefix}.q_proj", outputs, config.hidden_size)
    down = NormedDown(
        linears(f"{prefix}.q_a_proj", rank, config.hidden_size),
        linears.tensor(f"{prefix}.q_a_layernorm.weight", rank),
        config.rms_norm_eps,
    )
    return down, linears(f"{prefix}.q_b_proj", outputs, rank)


def _feed_forward(
    config: DeepseekConfig, linears: CheckpointLinears, prefix: str, is_dense: bool
) -> tuple[Linear, Linear, Linear]:
    """Return gate, up and down of the dense layer, or of the shared expert."""
    if is_dense:
        return _gated(linears, prefix, config.hidden_size, config.intermediate_size)
    width = config.num_shared_experts * config.expert_size
    return _gated(linears, f"{prefix}.shared_experts", config.hidden_size, width)


def _mixture(config: DeepseekConfig, linears: CheckpointLinears, prefix: str) -> Mixture:
    num_experts = config.routing.num_experts
    router_EH = linears.unrounded(f"{prefix}.gate.weight", num_experts, config.hidden_size)
    # A step of bfloat16 is wider than what often lies between two experts.
    bias_E = linears.unrounded(f"{prefix}.gate.e_score_correction_bias", num_experts)
    experts = [_expert(config, linears, f"{prefix}.experts.{i}") for i in range(num_experts)]
    return Mixture(DenseLinear(router_EH), bias_E, config.routing, experts)


def _expert(config: DeepseekConfig, linears: CheckpointLinears, prefix: str) -> Expert:
    gate, up, down = _gated(linears, prefix, config.hidden_size, config.expert_size)
    return Expert(JoinedLinear(gate, up), down)


def _gated(
    linears: CheckpointLinears, prefix: str, hidden: int, width: int
) -> tuple[Linear, Linear, Linear]:
    gate, up = (linears(f"{prefix}.{name}_proj", width, hidden) for name in ("gate", "up"))
    return gate, up, linears(f"{prefix}.down_proj", hidden, width)
