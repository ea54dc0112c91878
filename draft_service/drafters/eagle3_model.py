"""The EAGLE-3 drafter's maths: one Llama layer over (next token, hidden state) pairs.

    h = fc(taps)                         the target's hidden state; for a guessed row, its feedback
    x = [norm(embedding), norm(h)]       the embedding first
    h = h + attention(x)
    h = h + mlp(norm(h))
    logits = head(norm(h))               and h is the feedback, the hidden state of the next guess

Row i is position i: it joins the target's hidden state of token i with the embedding of token
i + 1. (Li et al., "EAGLE-3", arXiv 2503.01840; the switches are those of SGLang and vLLM.)

Legend: R rows, H hidden, X tapped width, W target's hidden, A query heads, C key-value heads,
D head size, V target's vocabulary, N drafter's vocabulary, P positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from draft_service.drafters.eagle3_cache import Eagle3Cache
from draft_service.drafters.eagle3_tensors import Eagle3Tensors
from kernels.attention import RowLayout, lay_out_rows, position_blocked_attention
from kernels.elementwise import rms_norm, rotate, silu_mul
from kernels.linear import ROW_BLOCK, Linear, padded_rows
from protos.messages import MAX_TREE_NODES

Norm = Callable[[torch.Tensor], torch.Tensor]
Angles = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class States:
    """What rows come out as: what the head reads, and what the next guess is fed."""

    normed_RH: torch.Tensor
    feedback_RH: torch.Tensor

    def last(self) -> States:
        """Return the last row alone, a copy: it must not keep the others alive."""
        return States(self.normed_RH[-1:].clone(), self.feedback_RH[-1:].clone())


class Eagle3Model:
    """The drafter's weights. Stateless: rows and a session's cache in, states out."""

    def __init__(self, tensors: Eagle3Tensors, max_context_len: int) -> None:
        self.config = config = tensors.config
        self._embedding_VH = tensors.embedding()
        self._fuse = _Fuse(tensors)
        self._layer = _MidLayer(tensors)
        self._norm = _norm(tensors, "norm", config.hidden_size, there=config.last_norm)
        self._head = Linear(tensors.head())
        self._target_ids_N = tensors.target_ids()
        tensors.check_all_used()
        # Guesses and the padding of a row block reach past the last committed token.
        length = max_context_len + MAX_TREE_NODES + ROW_BLOCK
        self._cos_PD, self._sin_PD = (
            table.to(self.device) for table in config.rope.tables(length, self.dtype)
        )

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding_VH.dtype

    @property
    def device(self) -> torch.device:
        return self._embedding_VH.device

    def new_cache(self, first_row: int) -> Eagle3Cache:
        """Return an empty cache for a session whose first row is at position `first_row`."""
        no_keys_CSD = torch.zeros(
            (self.config.num_kv_heads, 0, self.config.head_dim),
            dtype=self.dtype,
            device=self.device,
        )
        return Eagle3Cache(first_row, no_keys_CSD)

    def fuse(self, taps_RX: torch.Tensor) -> torch.Tensor:
        """Return the hidden states that rows of taps stand for, [R, H]."""
        return self._fuse(taps_RX.to(self.device, self.dtype))

    def forward(
        self, tokens_R: torch.Tensor, h_RH: torch.Tensor, position: int, cache: Eagle3Cache
    ) -> States:
        """Run consecutive rows, the first of them at `position`, and write them to the cache."""
        rows = len(tokens_R)
        padding = padded_rows(rows) - rows
        x_RH = F.embedding(F.pad(tokens_R, (0, padding)), self._embedding_VH)
        h_RH = F.pad(h_RH, (0, 0, 0, padding))
        slot, span = position - cache.first_row, slice(position, position + len(h_RH))
        layout = lay_out_rows(slot, range(-1, len(h_RH) - 1), self.device)
        cache.reserve(layout.trunk_len)
        angles = self._cos_PD[span], self._sin_PD[span]
        h_RH = self._layer(x_RH, h_RH, angles, layout, cache)[:rows]
        normed_RH = self._norm(h_RH)
        return States(normed_RH, normed_RH if self.config.norm_output else h_RH)

    def logits(self, normed_RH: torch.Tensor) -> torch.Tensor:
        """Return float32 logits over the target's vocabulary, [R, V]; -inf for tokens unknown."""
        logits_RN = self._head(normed_RH).float()
        if self._target_ids_N is None:
            return logits_RN
        logits_RV = logits_RN.new_full((len(logits_RN), self.config.vocab_size), -torch.inf)
        logits_RV[:, self._target_ids_N] = logits_RN
        return logits_RV


class _Fuse:
    """Joins the taps of a row into one hidden state."""

    def __init__(self, tensors: Eagle3Tensors) -> None:
        config = tensors.config
        width, taps = config.target_hidden_size, len(config.tap_layers)
        self._tap_norms = [
            _norm(tensors, f"fc_norm.{i}", width, there=config.fc_norm) for i in range(taps)
        ]
        joint_width = config.tapped_width
        self._joint_norm = _norm(tensors, "input_norm", joint_width, there=config.norm_before_fc)
        self._fc = Linear(*tensors.fc())

    def __call__(self, taps_RX: torch.Tensor) -> torch.Tensor:
        chunks_RW = taps_RX.chunk(len(self._tap_norms), dim=-1)
        normed = [norm(chunk) for norm, chunk in zip(self._tap_norms, chunks_RW, strict=True)]
        return self._fc(self._joint_norm(torch.cat(normed, dim=-1)))


class _MidLayer:
    def __init__(self, tensors: Eagle3Tensors) -> None:
        config = tensors.config
        hidden = config.hidden_size
        self._residual_is_normed = config.norm_before_residual
        self._embedding_norm = _norm(
            tensors, "midlayer.input_layernorm", hidden, there=config.first_layer_norm
        )
        self._hidden_norm = _norm(tensors, "midlayer.hidden_norm", hidden)
        self._post_norm = _norm(tensors, "midlayer.post_attention_layernorm", hidden)
        self._attention = _Attention(tensors)
        self._mlp = _Mlp(tensors)

    def __call__(
        self,
        x_RH: torch.Tensor,
        h_RH: torch.Tensor,
        angles: Angles,
        layout: RowLayout,
        cache: Eagle3Cache,
    ) -> torch.Tensor:
        normed_RH = self._hidden_norm(h_RH)
        residual_RH = normed_RH if self._residual_is_normed else h_RH
        pair_R2H = torch.cat((self._embedding_norm(x_RH), normed_RH), dim=-1)
        h_RH = residual_RH + self._attention(pair_R2H, angles, layout, cache)
        return h_RH + self._mlp(self._post_norm(h_RH))


class _Attention:
    def __init__(self, tensors: Eagle3Tensors) -> None:
        config = tensors.config
        self._head_dim = config.head_dim
        prefix, pair = "midlayer.self_attn", 2 * config.hidden_size
        q_width, kv_width = (
            heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads)
        )
        self._q = _linear(tensors, f"{prefix}.q_proj", q_width, pair)
        self._k = _linear(tensors, f"{prefix}.k_proj", kv_width, pair)
        self._v = _linear(tensors, f"{prefix}.v_proj", kv_width, pair)
        self._o = _linear(tensors, f"{prefix}.o_proj", config.hidden_size, q_width)

    def __call__(
        self, pair_R2H: torch.Tensor, angles: Angles, layout: RowLayout, cache: Eagle3Cache
    ) -> torch.Tensor:
        q_RAD, k_RCD, v_RCD = (
            project(pair_R2H).view(len(pair_R2H), -1, self._head_dim)
            for project in (self._q, self._k, self._v)
        )
        cache.write(layout.prefix_len, rotate(k_RCD, *angles), v_RCD)
        keys_CSD, values_CSD = cache.keys_CSD, cache.values_CSD
        scale = self._head_dim**-0.5
        out_RAD = position_blocked_attention(
            rotate(q_RAD, *angles), keys_CSD, values_CSD, layout, scale
        )
        return self._o(out_RAD.flatten(1))


class _Mlp:
    def __init__(self, tensors: Eagle3Tensors) -> None:
        hidden, inner = tensors.config.hidden_size, tensors.config.intermediate_size
        self._gate = _linear(tensors, "midlayer.mlp.gate_proj", inner, hidden)
        self._up = _linear(tensors, "midlayer.mlp.up_proj", inner, hidden)
        self._down = _linear(tensors, "midlayer.mlp.down_proj", hidden, inner)

    def __call__(self, x_RH: torch.Tensor) -> torch.Tensor:
        return self._down(silu_mul(self._gate(x_RH), self._up(x_RH)))


def _linear(tensors: Eagle3Tensors, name: str, outputs: int, inputs: int) -> Linear:
    weight = tensors.take(f"{name}.weight", outputs, inputs)
    return Linear(weight, tensors.bias(f"{name}.bias", outputs))


def _norm(tensors: Eagle3Tensors, name: str, width: int, *, there: bool = True) -> Norm:
    """Return a norm, or the identity where the drafter has none."""
    if not there:
        return lambda x_RH: x_RH
    weight_H = tensors.take(f"{name}.weight", width)
    eps = tensors.config.rms_norm_eps
    return lambda x_RH: rms_norm(x_RH, weight_H, eps)
