"""Linear layers with 8-bit and 4-bit weights.

int8: a scale an output. Activations are quantized row by row as they come, to 15 bits, multiplied
in two parts of 8. The sums are integers, so they are exact, in any order and on any machine:

    y = (128 sum of high q_w + sum of low q_w) s_x s_w
    q_x = round(x * 16256 / max |x|) = 128 high + low,  s_x = max |x| / 16256

8 bits for activations would not do: a few inputs of a row are so large that all others vanish.

int4: a scale for every 32 inputs of an output, as in Kimi's checkpoints; weights become bfloat16
again before they are multiplied. They lie as in these checkpoints (compressed-tensors,
"pack-quantized"): word i of an output is the sum over j of (q[8 i + j] + 8) << 4 j, j < 8.

Legend: R rows, N outputs, K inputs, G groups of 32 inputs, X words of 8 inputs.
"""

from __future__ import annotations

from copy import copy

import torch
import torch.nn.functional as F

from kernels.linear import DenseLinear, Linear, of_bias

INT4_GROUP = 32
_INT8_MAX = 127
_LOW_PART = 128
_INT4_MAX = 7
_INT4_ZERO = 8
_WORD_INPUTS = 8
# A row of zeros has some scale.
_SMALLEST = 1e-10


class Int8Linear:
    """Weights of 8 bits, activations of 15."""

    def __init__(self, weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> None:
        """Quantize a weight: the nearest of 255 steps up to the largest of each output."""
        self.q_NK, self.scale_N1 = quantize_rows(weight_NK, _INT8_MAX)
        self.q_NK = self.q_NK.char()
        self.bias_N = bias_N
        self.like = weight_NK.new_empty(0)

    def __call__(self, x_RK: torch.Tensor) -> torch.Tensor:
        q_RK, scale_R1 = quantize_rows(x_RK, _INT8_MAX * _LOW_PART)
        high_RK = (q_RK + _LOW_PART // 2) >> 7
        low_RK = q_RK - _LOW_PART * high_RK
        high_RN, low_RN = ((part @ self.q_NK.int().T).float() for part in (high_RK, low_RK))
        # Rounded once, as a fused multiply-add does.
        sums_RN = (high_RN.double() * _LOW_PART + low_RN.double()).float()
        y_RN = sums_RN * scale_R1 * self.scale_N1[:, 0]
        if self.bias_N is not None:
            y_RN = y_RN + self.bias_N.float()
        return y_RN.to(x_RK.dtype)

    @property
    def num_outputs(self) -> int:
        return self.q_NK.shape[0]

    @property
    def num_inputs(self) -> int:
        return self.q_NK.shape[1]

    def of_outputs(self, span: slice) -> Int8Linear:
        """Return the layer of some outputs; a view."""
        part = copy(self)
        part.q_NK, part.scale_N1 = self.q_NK[span], self.scale_N1[span]
        part.bias_N = of_bias(self.bias_N, span)
        return part

    def of_inputs(self, span: slice, bias_N: torch.Tensor | None) -> Int8Linear:
        """Return what the weight does with some inputs, and another bias; a view."""
        part = copy(self)
        part.q_NK, part.bias_N = self.q_NK[:, span], bias_N
        return part


class Int4Linear:
    """Weights of 4 bits in groups of 32."""

    def __init__(self, weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> None:
        """Quantize a weight: q in [-8, 7], the largest of each group becomes 7 or -7."""
        q_NK, self.scale_NG = _quantize_groups(weight_NK)
        self.words_NX, self.num_inputs = pack_int4(q_NK), q_NK.shape[1]
        self.bias_N = bias_N
        self.like = weight_NK.new_empty(0)

    @classmethod
    def from_packed(
        cls,
        words_NX: torch.Tensor,
        scale_NG: torch.Tensor,
        shape: tuple[int, int],
        like: torch.Tensor,
        bias_N: torch.Tensor | None = None,
    ) -> Int4Linear:
        """Return the layer of a checkpoint's words and scales, which are kept as they are.

        Raises ValueError if they are not int32 words and scales of a weight [N, K] of `shape`.
        """
        outputs, inputs = shape
        needed = [[outputs, -(-inputs // each)] for each in (_WORD_INPUTS, INT4_GROUP)]
        shapes = [list(words_NX.shape), list(scale_NG.shape)]
        if shapes != needed or words_NX.dtype != torch.int32:
            raise ValueError(
                f"words ({words_NX.dtype}) and scales of shapes {shapes} are not {list(shape)} "
                f"weights in groups of {INT4_GROUP}: those have {needed}, and words are int32"
            )
        layer = cls.__new__(cls)
        layer.words_NX, layer.scale_NG, layer.num_inputs = words_NX, scale_NG, inputs
        layer.bias_N, layer.like = bias_N, like.new_empty(0)
        return layer

    @property
    def num_outputs(self) -> int:
        return len(self.words_NX)

    def of_outputs(self, span: slice) -> Int4Linear:
        """Return the layer of some outputs; a view."""
        part = copy(self)
        part.words_NX, part.scale_NG = self.words_NX[span], self.scale_NG[span]
        part.bias_N = of_bias(self.bias_N, span)
        return part

    def of_inputs(self, span: slice, bias_N: torch.Tensor | None) -> Int4Linear:
        """Return what whole groups of the weight do with their inputs, and another bias; a view.

        Raises ValueError if a group would be cut.
        """
        begin, end, _ = span.indices(self.num_inputs)
        if begin % INT4_GROUP or (end % INT4_GROUP and end < self.num_inputs):
            raise ValueError(f"inputs {begin} to {end} cut int4 weights in groups of {INT4_GROUP}")
        part = copy(self)
        part.words_NX = self.words_NX[:, begin // _WORD_INPUTS : -(-end // _WORD_INPUTS)]
        part.scale_NG = self.scale_NG[:, begin // INT4_GROUP : -(-end // INT4_GROUP)]
        part.num_inputs, part.bias_N = end - begin, bias_N
        return part

    @property
    def q_NK(self) -> torch.Tensor:  # noqa: N802
        """In [-8, 7]."""
        return unpack_int4(self.words_NX, self.num_inputs)

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight that rows of a dtype are multiplied with, [N, K]."""
        scale_NK = self.scale_NG.float().repeat_interleave(INT4_GROUP, dim=1)
        scale_NK = scale_NK[:, : self.num_inputs]
        return (self.q_NK.float() * scale_NK).to(dtype)

    def __call__(self, x_RK: torch.Tensor) -> torch.Tensor:
        return DenseLinear(self.dequantized(x_RK.dtype), self.bias_N)(x_RK)


def pack_int4(q_NK: torch.Tensor) -> torch.Tensor:
    """Return weights in [-8, 7] as int32 words, [N, X]; missing inputs are zeros."""
    padding = -q_NK.shape[1] % _WORD_INPUTS
    nibbles_NK = F.pad(q_NK.int(), (0, padding)) + _INT4_ZERO
    # Nibbles do not overlap. The last one reaches the sign, where int32 wraps around as it should.
    return (nibbles_NK.unflatten(1, (-1, _WORD_INPUTS)) << _shifts(q_NK)).sum(-1, dtype=torch.int32)


def unpack_int4(words_NX: torch.Tensor, num_inputs: int) -> torch.Tensor:
    """Return weights in [-8, 7], int8, [N, K]."""
    nibbles_NK = (words_NX[..., None] >> _shifts(words_NX) & 15).flatten(1)
    return (nibbles_NK[:, :num_inputs] - _INT4_ZERO).char()


def _shifts(like: torch.Tensor) -> torch.Tensor:
    return 4 * torch.arange(_WORD_INPUTS, dtype=torch.int32, device=like.device)


def quantize_rows(x_RK: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int32 [R, K] in [-steps, steps] and float32 scales [R, 1]: x is about q * scale."""
    x32_RK = x_RK.float()
    largest_R1 = x32_RK.abs().amax(-1, keepdim=True).clamp_(min=_SMALLEST)
    # A true division: `steps / tensor` would be its reciprocal times steps, which can differ.
    q_RK = torch.round(x32_RK * (torch.full_like(largest_R1, steps) / largest_R1))
    return q_RK.clamp_(-steps, steps).int(), largest_R1 / steps


def _quantize_groups(weight_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    outputs, inputs = weight_NK.shape
    padded = F.pad(weight_NK.float(), (0, -inputs % INT4_GROUP)).unflatten(1, (-1, INT4_GROUP))
    scale_NG1 = padded.abs().amax(-1, keepdim=True).clamp_(min=_SMALLEST) / _INT4_MAX
    # As checkpoints keep them.
    scale_NG1 = scale_NG1.bfloat16().float()
    q_NK = torch.round(padded / scale_NG1).clamp_(-8, _INT4_MAX).char()
    return q_NK.view(outputs, -1)[:, :inputs].contiguous(), scale_NG1[..., 0].contiguous()


WEIGHT_FORMATS = ("dense", "int8", "int4")


def new_linear(
    weight_format: str, weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None
) -> Linear:
    """Return a layer that keeps its weight in a format. Raises ValueError for an unknown one."""
    match weight_format:
        case "dense":
            return DenseLinear(weight_NK, bias_N)
        case "int8":
            return Int8Linear(weight_NK, bias_N)
        case "int4":
            return Int4Linear(weight_NK, bias_N)
    raise ValueError(f"weights must be one of {', '.join(WEIGHT_FORMATS)}, got {weight_format!r}")
