"""The EAGLE-3 drafter as it is trained: the maths of draft_service's, whole sequences at a time.

Parameters have the names and shapes of a checkpoint in the format of SafeAILab and SGLang, so what
is trained is what is saved.

Legend: B samples, L rows, H hidden, X tapped width, W target's hidden, D head size, A query heads,
C key-value heads, N draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from draft_service.drafters.eagle3_config import Eagle3Config
from training.judged import ROW_BLOCK
from training.unroll import Keys, unrolled_attention


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _RmsNorm.apply(x, self.weight, self._eps)  # type: ignore[no-untyped-call]


class _RmsNorm(torch.autograd.Function):
    """As torch's, in the input's type outside and float32 inside, with half of its passes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        scale = torch.linalg.vecdot(wide, wide)[..., None].div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return torch.mul(wide, scale).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        normed = x.float() * scale
        wide = grad.float()
        weight_grad = (wide * normed).flatten(0, -2).sum(0)
        wide = wide * weight
        along = torch.linalg.vecdot(wide, normed)[..., None].div_(x.shape[-1])
        return wide.sub_(normed.mul_(along)).mul_(scale).to(x.dtype), weight_grad, None


class Attention(nn.Module):
    """Attention over rows with real taps, and over the row's own chain of guesses."""

    def __init__(self, config: Eagle3Config, length: int) -> None:
        super().__init__()
        self._head_dim = dim = config.head_dim
        inputs, hidden = 2 * config.hidden_size, config.hidden_size
        self.q_proj = nn.Linear(inputs, config.num_heads * dim, bias=False)
        self.k_proj = nn.Linear(inputs, config.num_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(inputs, config.num_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * dim, hidden, bias=False)
        # Rows come in whole blocks.
        cos_LD, sin_LD = config.rope.tables(length + ROW_BLOCK - 1, torch.float32)
        self.cos_LD: torch.Tensor
        self.sin_LD: torch.Tensor
        self.register_buffer("cos_LD", cos_LD, persistent=False)
        self.register_buffer("sin_LD", sin_LD, persistent=False)

    def forward(self, x_BL2H: torch.Tensor, earlier: Sequence[Keys]) -> tuple[torch.Tensor, Keys]:
        """Return the attended rows and their keys, which later guesses of the chain see."""
        q_BALD = self._rotate(self._heads(self.q_proj(x_BL2H)))
        keys = Keys(
            self._rotate(self._heads(self.k_proj(x_BL2H))), self._heads(self.v_proj(x_BL2H))
        )
        attended_BALD = unrolled_attention(q_BALD, [*earlier, keys])
        return self.o_proj(attended_BALD.transpose(1, 2).flatten(2)), keys

    def _heads(self, x_BLF: torch.Tensor) -> torch.Tensor:
        return x_BLF.unflatten(-1, (-1, self._head_dim)).transpose(1, 2)

    def _rotate(self, x_BALD: torch.Tensor) -> torch.Tensor:
        length = x_BALD.shape[2]
        x1, x2 = x_BALD.chunk(2, dim=-1)
        turned = torch.cat((-x2, x1), dim=-1)
        rotated = x_BALD * self.cos_LD[:length] + turned * self.sin_LD[:length]
        return rotated.to(x_BALD.dtype)


class Mlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MidLayer(nn.Module):
    """The one layer, over pairs of embedding and hidden state."""

    def __init__(self, config: Eagle3Config, length: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self._residual_is_normed = config.norm_before_residual
        self.input_layernorm = Norm(hidden, eps)
        self.hidden_norm = Norm(hidden, eps)
        self.self_attn = Attention(config, length)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.mlp = Mlp(config)

    def forward(
        self, x_BLH: torch.Tensor, h_BLH: torch.Tensor, earlier: Sequence[Keys]
    ) -> tuple[torch.Tensor, Keys]:
        normed_BLH = self.hidden_norm(h_BLH)
        residual_BLH = normed_BLH if self._residual_is_normed else h_BLH
        pair = torch.cat((x_BLH, normed_BLH), dim=-1)
        attended_BLH, keys = self.self_attn(pair, earlier)
        h_BLH = residual_BLH + attended_BLH
        return h_BLH + self.mlp(self.post_attention_layernorm(h_BLH)), keys


class DraftModule(nn.Module):
    """A drafter without its embedding, which is the target's and stays as it is."""

    def __init__(self, config: Eagle3Config, length: int) -> None:
        """For sequences of at most `length` rows. Raises ValueError for what cannot be trained."""
        super().__init__()
        _check_trainable(config)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.config = config
        if config.fc_norm:
            norms = [Norm(config.target_hidden_size, eps) for _ in config.tap_layers]
            self.fc_norm = nn.ModuleList(norms)
        if config.norm_before_fc:
            self.input_norm = Norm(config.tapped_width, eps)
        self.fc = nn.Linear(config.tapped_width, hidden, bias=False)
        self.midlayer = MidLayer(config, length)
        self.norm = Norm(hidden, eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)

    def embed(self, x_BLH: torch.Tensor) -> torch.Tensor:
        """Return the target's embeddings as every step reads them, [B, L, H]."""
        return self.midlayer.input_layernorm(x_BLH)

    def fuse(self, taps_BLX: torch.Tensor) -> torch.Tensor:
        """Return the hidden states that taps stand for, [B, L, H]."""
        config = self.config
        if config.fc_norm:
            chunks = taps_BLX.chunk(len(config.tap_layers), dim=-1)
            normed = [norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)]
            taps_BLX = torch.cat(normed, dim=-1)
        if config.norm_before_fc:
            taps_BLX = self.input_norm(taps_BLX)
        return self.fc(taps_BLX)

    def forward(
        self, x_BLH: torch.Tensor, h_BLH: torch.Tensor, earlier: Sequence[Keys]
    ) -> tuple[torch.Tensor, torch.Tensor, Keys]:
        """Return what the head reads, what the next guess is fed, [B, L, H], and the keys.

        x are the rows' tokens, embedded; h what is known of those before.
        """
        h_BLH, keys = self.midlayer(x_BLH, h_BLH, earlier)
        normed_BLH = self.norm(h_BLH)
        return normed_BLH, normed_BLH if self.config.norm_output else h_BLH, keys


def _check_trainable(config: Eagle3Config) -> None:
    wrong = {
        "bias": config.bias,
        # The embedding is the target's.
        f"hidden_size {config.hidden_size} beside a target's of {config.target_hidden_size}": (
            config.hidden_size != config.target_hidden_size
        ),
        "latent attention": config.latent is not None,
        "qk_norm": config.qk_norm,
        "tie_word_embeddings": config.tied_head,
        "use_input_layernorm_in_first_layer false": not config.first_layer_norm,
        "use_last_layernorm false": not config.last_norm,
    }
    if found := [name for name, is_so in wrong.items() if is_so]:
        raise ValueError(f"drafters with {', '.join(found)} can be served, but not trained here")
