"""The EAGLE-3 drafter's maths: one decoder layer over (next token, hidden state) pairs.

    h = fc(taps)                         the target's hidden state; for a guessed row, its feedback
    x = [norm(embedding), norm(h)]       the embedding first
    h = h + attention(x)
    h = h + mlp(norm(h))
    logits = head(norm(h))               and h is the feedback, the hidden state of the next guess

Row i is position i: it joins the target's hidden state of token i with the embedding of token
i + 1. (Li et al., "EAGLE-3", arXiv 2503.01840; the switches are those of SGLang and vLLM.)

Legend: R rows, H hidden, X tapped width, W target's hidden, V target's vocabulary, N drafter's
vocabulary, P positions, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from draft_service.drafters.eagle3_layer import angles, decoder_layer
from draft_service.drafters.eagle3_tensors import Eagle3Tensors
from kernels.attention import RowLayout
from kernels.decoder import Angles, DecoderStack, decode_layers
from kernels.elementwise import rms_norm
from kernels.kv_pages import KvPages, new_pages, num_pages_for
from kernels.linear import DenseLinear
from kernels.normed_linear import NormedLinear, normed_linear
from protos.messages import MAX_TREE_NODES

Norm = Callable[[torch.Tensor], torch.Tensor]


class Eagle3Model:
    """The drafter's weights. Stateless: rows and pages in, states out."""

    def __init__(self, tensors: Eagle3Tensors, max_context_len: int) -> None:
        self.config = config = tensors.config
        self.max_context_len = max_context_len
        self._embedding_VH = tensors.embedding()
        self._fuse = _Fuse(tensors)
        # Guesses reach past the last committed token.
        length = max_context_len + MAX_TREE_NODES
        cos_PD, sin_PD = angles(config, length, self.dtype)
        self._layer = _MidLayer(tensors, (cos_PD.to(self.device), sin_PD.to(self.device)))
        self._norm_output, self._head = _output(tensors)
        self._target_ids_N = tensors.target_ids()
        tensors.check_all_used()

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding_VH.dtype

    @property
    def target_ids(self) -> list[int] | None:
        """The target's id of each draft token; None if they are the same."""
        return None if self._target_ids_N is None else self._target_ids_N.tolist()

    @property
    def device(self) -> torch.device:
        return self._embedding_VH.device

    def new_kv(self, num_tokens: int) -> KvPages:
        """Return the KV cache of all sessions, for so many of their tokens together."""
        config, like = self.config, self._embedding_VH
        pages = num_pages_for(num_tokens)
        return new_pages(pages, 1, config.num_kv_heads, config.head_dim, like)

    def fuse(self, taps_RX: torch.Tensor) -> torch.Tensor:
        """Return the hidden states that rows of taps stand for, [R, H]."""
        return self._fuse(taps_RX.to(self.device, self.dtype))

    def forward(
        self,
        tokens: Sequence[int],
        h_RH: torch.Tensor,
        layouts: Sequence[RowLayout],
        kv: KvPages,
    ) -> torch.Tensor:
        """Run rows of one session after the other, and write them where their layouts say.

        Returns what the head reads, and what the next guess is fed, [R, H].
        """
        tokens_R = torch.tensor(tokens, device=self.device)
        x_RH = F.embedding(tokens_R, self._embedding_VH)
        return self._norm_output(self._layer(x_RH, h_RH, layouts, kv))

    def logits(self, h_RH: torch.Tensor) -> torch.Tensor:
        """Return float32 logits over the target's vocabulary, [R, V]; -inf for tokens unknown."""
        logits_RN = normed_linear(h_RH, self._head)
        if self._target_ids_N is None:
            return logits_RN
        logits_RV = logits_RN.new_full((len(logits_RN), self.config.vocab_size), -torch.inf)
        logits_RV[:, self._target_ids_N] = logits_RN
        return logits_RV


def _output(tensors: Eagle3Tensors) -> tuple[Norm, NormedLinear]:
    """Return what follows the layer, and the head. The last norm belongs to one or the other."""
    config = tensors.config
    linear = DenseLinear(tensors.head())
    if config.norm_output or not config.last_norm:
        norm = _norm(tensors, "norm", config.hidden_size, there=config.last_norm)
        return norm, NormedLinear(linear)
    norm_H = tensors.take("norm.weight", config.hidden_size)
    return lambda h_RH: h_RH, NormedLinear(linear, norm_H, config.rms_norm_eps)


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
        self._fc = NormedLinear(DenseLinear(*tensors.fc()))

    def __call__(self, taps_RX: torch.Tensor) -> torch.Tensor:
        chunks_RW = taps_RX.chunk(len(self._tap_norms), dim=-1)
        normed = [norm(chunk) for norm, chunk in zip(self._tap_norms, chunks_RW, strict=True)]
        joint_RX = self._joint_norm(torch.cat(normed, dim=-1))
        return normed_linear(joint_RX, self._fc).to(taps_RX.dtype)


class _MidLayer:
    def __init__(self, tensors: Eagle3Tensors, turns: Angles) -> None:
        config = tensors.config
        hidden = config.hidden_size
        self._residual_is_normed = config.norm_before_residual
        self._embedding_norm = _norm(
            tensors, "midlayer.input_layernorm", hidden, there=config.first_layer_norm
        )
        self._hidden_norm = _norm(tensors, "midlayer.hidden_norm", hidden)
        self._stack = DecoderStack([decoder_layer(tensors)], turns)

    def __call__(
        self, x_RH: torch.Tensor, h_RH: torch.Tensor, layouts: Sequence[RowLayout], kv: KvPages
    ) -> torch.Tensor:
        normed_RH = self._hidden_norm(h_RH)
        residual_RH = normed_RH if self._residual_is_normed else h_RH
        pair_R2H = torch.cat((self._embedding_norm(x_RH), normed_RH), dim=-1)
        return decode_layers(residual_RH, self._stack, layouts, kv, (), pair_R2H)[0]


def _norm(tensors: Eagle3Tensors, name: str, width: int, *, there: bool = True) -> Norm:
    """Return a norm, or the identity where the drafter has none."""
    if not there:
        return lambda x_RH: x_RH
    weight_H = tensors.take(f"{name}.weight", width)
    eps = tensors.config.rms_norm_eps
    return lambda x_RH: rms_norm(x_RH, weight_H, eps)
