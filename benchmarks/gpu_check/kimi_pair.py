"""Two layers of Kimi-K2.5 of the widths that one GPU of eight has: a dense one, and one of experts.

Layers are held to the reference in float32: they may be half as far from it again as the reference
is in bfloat16. That is said of the row in the middle: now and then one chooses another expert, of
two that are as good, in one of the three.

Legend: R rows, H hidden, T taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from benchmarks.gpu_check.case import Case, Sizes, bytes_of, excess_of, normal
from benchmarks.gpu_check.made_up import MadeUp, Named, Tensors, gated, matrices, norm
from kernels.attention import lay_out_rows
from kernels.decoder import decode_layers as reference
from kernels.experts import Routing
from kernels.gpu.attention_plan import plan_attention
from kernels.gpu.attention_shape import AttentionShape, StepRows, new_plan
from kernels.gpu.decoder import Places
from kernels.gpu.latent_attention import LATENT_TILINGS
from kernels.gpu.latent_decoder import decode_latent_layers, new_latent_buffers
from kernels.gpu.latent_stack import LatentStack
from kernels.gpu.pages import new_latent_pages
from kernels.gpu.runtime import tiling_of
from kernels.kv_pages import new_shared_pages
from kernels.latent_attention import LatentSizes
from kernels.quantized_linear import INT4_GROUP
from kernels.rotary import Rope
from target_service.models.deepseek import Deepseek
from target_service.models.deepseek_config import DeepseekConfig
from target_service.models.quantization import Int4Groups

_DEVICES = 8
_HEADS, _CHOICES = 8, 8
_LATENT = LatentSizes(query_rank=1536, latent=512, rotated=64, unrotated=128, value=128)
_IGNORED = ("lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.\w+_proj.*")
_ALLOWED = 1.5
NAME = "two layers of an eighth of Kimi-K2.5"


def pair_config(sizes: Sizes, slots: int) -> DeepseekConfig:
    """Return what a config.json of such a model would say; sizes for an interpreter are less."""
    return DeepseekConfig(
        hidden_size=sizes.hidden,
        num_layers=2,
        num_dense_layers=1,
        num_heads=min(_HEADS, sizes.hidden // 32),
        latent=replace(
            _LATENT,
            query_rank=min(_LATENT.query_rank, sizes.hidden),
            latent=min(_LATENT.latent, sizes.hidden),
        ),
        intermediate_size=sizes.inner // _DEVICES,
        expert_size=sizes.expert_width // _DEVICES,
        num_shared_experts=1,
        routing=Routing(_DEVICES * sizes.experts, _CHOICES, scale=2.827),
        vocab_size=sizes.vocabulary,
        rms_norm_eps=1e-5,
        tied_head=True,
        max_context_len=slots,
        rope=Rope(_LATENT.rotated, 5e4, {}, slots),
        quantization=Int4Groups(_IGNORED),
    )


def made_up(sizes: Sizes, slots: int, rows: int, device: torch.device) -> MadeUp:
    """Return the two layers with embedding and head, for texts of so many slots."""
    torch.manual_seed(0)
    config = pair_config(sizes, slots)
    checkpoint = _Checkpoint.of(config, device)
    model = checkpoint.model(config, slots, torch.bfloat16)
    return MadeUp(NAME, model, checkpoint.bytes_read(config, rows))


class _Checkpoint(NamedTuple):
    """Made-up tensors by name."""

    outside: Mapping[str, torch.Tensor]
    experts: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, config: DeepseekConfig, device: torch.device) -> _Checkpoint:
        return cls(dict(_outside(config, device)), dict(_experts(config, device)))

    def model(self, config: DeepseekConfig, slots: int, dtype: torch.dtype) -> Deepseek:
        return Deepseek(config, Tensors({**self.outside, **self.experts}, dtype), slots)

    def bytes_read(self, config: DeepseekConfig, rows: int) -> float:
        """Return what a step of so many rows reads, if they choose independently."""
        untouched = (1 - config.routing.choices / config.routing.num_experts) ** rows
        of_experts = (1 - untouched) * bytes_of(*self.experts.values())
        return bytes_of(*self.outside.values()) + of_experts


def _outside(config: DeepseekConfig, device: torch.device) -> Named:
    """Yield all tensors but those of the experts that rows choose."""
    matrix, hidden, num_experts = matrices(device), config.hidden_size, config.routing.num_experts
    yield "model.embed_tokens.weight", matrix(config.vocab_size, hidden)
    yield "model.norm.weight", norm(hidden, device)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        yield from _attention(config, f"{prefix}.self_attn", device)
        for name in ("input", "post_attention"):
            yield f"{prefix}.{name}_layernorm.weight", norm(hidden, device)
    yield from gated("model.layers.0.mlp", hidden, config.intermediate_size, matrix)
    yield from gated("model.layers.1.mlp.shared_experts", hidden, config.expert_size, matrix)
    yield "model.layers.1.mlp.gate.weight", matrix(num_experts, hidden)
    yield "model.layers.1.mlp.gate.e_score_correction_bias", torch.rand(num_experts, device=device)


def _attention(config: DeepseekConfig, prefix: str, device: torch.device) -> Named:
    sizes, heads, hidden = config.latent, config.num_heads, config.hidden_size
    shapes = {
        "q_a_proj": (sizes.query_rank, hidden),
        "q_b_proj": (heads * sizes.query_dim, sizes.query_rank),
        "kv_a_proj_with_mqa": (sizes.head_dim, hidden),
        "kv_b_proj": (heads * (sizes.unrotated + sizes.value), sizes.latent),
        "o_proj": (hidden, heads * sizes.value),
    }
    matrix = matrices(device)
    yield from ((f"{prefix}.{name}.weight", matrix(*shape)) for name, shape in shapes.items())
    yield f"{prefix}.q_a_layernorm.weight", norm(sizes.query_rank, device)
    yield f"{prefix}.kv_a_layernorm.weight", norm(sizes.latent, device)


def _experts(config: DeepseekConfig, device: torch.device) -> Named:
    """Yield experts as a checkpoint keeps them, int4 in groups of 32."""
    hidden, width = config.hidden_size, config.expert_size
    shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    for expert in range(config.routing.num_experts):
        for name, (outputs, inputs) in shapes.items():
            prefix = f"model.layers.1.mlp.experts.{expert}.{name}_proj.weight"
            words = torch.randint(-(2**31), 2**31, (outputs, inputs // 8), device=device)
            scales = torch.rand(outputs, -(-inputs // INT4_GROUP), device=device)
            yield f"{prefix}_packed", words.int()
            yield f"{prefix}_scale", (scales / (4 * inputs**0.5)).bfloat16()
            yield f"{prefix}_shape", torch.tensor([outputs, inputs])


def cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """Yield the two layers over a chain of rows."""
    rows, config = sizes.rows, pair_config(sizes._replace(vocabulary=1), sizes.rows)
    checkpoint = _Checkpoint.of(config, device)
    model, exact = (
        checkpoint.model(config, rows, dtype) for dtype in (torch.bfloat16, torch.float32)
    )
    stack = LatentStack.of(model.stack.layers, model.stack.angles, device)
    buffers = new_latent_buffers(stack, rows, device)
    pages, places = new_latent_pages(1, 2, stack.head_dim, device), _chain(stack, rows, device)
    rows_RH = normal(rows, sizes.hidden, device=device)
    h_RH, norm_H = torch.empty_like(rows_RH), norm(sizes.hidden, device)
    taps_TRH = rows_RH.new_empty(2, rows, sizes.hidden)

    def launch() -> None:
        h_RH.copy_(rows_RH)
        plan_attention(places.rows, places.plan)
        taps = {1: taps_TRH[0], 2: taps_TRH[1]}
        decode_latent_layers(h_RH, stack, places, pages, buffers, norm_H, taps)

    def excess() -> float:
        exact_TRH = _expected(exact, rows_RH)
        found, allowed = (
            (x_TRH - exact_TRH).square().mean(2).sqrt().median(1).values
            for x_TRH in (taps_TRH, _expected(model, rows_RH))
        )
        return excess_of(found, torch.zeros_like(found), _ALLOWED * allowed)

    num_bytes = int(checkpoint.bytes_read(config, rows))
    yield Case("latent layers, dense and experts", launch, (taps_TRH,), excess, num_bytes)


def _chain(stack: LatentStack, rows: int, device: torch.device) -> Places:
    """Rows of one text, each of which sees those before it."""
    ints_R = torch.arange(rows, dtype=torch.int32, device=device)
    tiling, dims = tiling_of(LATENT_TILINGS, device), (stack.head_dim, stack.latent)
    shape = AttentionShape(tiling, stack.heads, 1, *dims, len(stack.layers), sessions=1, pages=1)
    step_rows = StepRows(
        session_R=torch.zeros_like(ints_R),
        positions_R=ints_R,
        ancestors_R=torch.full((rows,), -1, device=device),
        first_row_N1=torch.tensor([0, rows], dtype=torch.int32, device=device),
        prefix_len_N=ints_R[:1],
        pages_NX=ints_R[:1, None],
    )
    plan = new_plan(shape, rows, shape.most_tiles(rows) + 4 * shape.enough_tiles, device)
    return Places(ints_R, ints_R, step_rows, plan)


def _expected(model: Deepseek, rows_RH: torch.Tensor) -> torch.Tensor:
    """Return what the reference has after each layer, in the dtype of the model, [T, R, H]."""
    kv = new_shared_pages(1, 2, 1, model.config.head_dim, model.embedding_VH)
    pages_B = torch.zeros(1, dtype=torch.int64, device=rows_RH.device)
    layout = lay_out_rows(pages_B, 0, range(-1, len(rows_RH) - 1))
    _, taps_RX = reference(rows_RH.to(model.dtype), model.stack, [layout], kv, (1, 2))
    return taps_RX.unflatten(1, (2, -1)).transpose(0, 1)
