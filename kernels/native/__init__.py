"""The CPU's own implementation of the ops, in C++: built once, used on request.

It serves models in bfloat16, and samples from logits in float32, on CPUs with AVX2, AVX-512 or AMX.
Everywhere else the reference runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.attention import RowLayout, position_blocked_attention
from kernels.decoder import DecoderStack, decode_layers, pack_layers
from kernels.kv_pages import KvPages
from kernels.native import packing, sampling
from kernels.native.build import is_whole, library_path
from kernels.normed_linear import NormedLinear, normed_linear, pack_normed_linear

CHOICES = ("auto", "native", "reference")
ISAS = ("none", "avx2", "avx512", "avx512_bf16", "amx")
_SERVED = ("cpu", torch.bfloat16)


class NativeUnavailableError(Exception):
    """The native kernels cannot run here; says why, and what would help."""


@dataclass(frozen=True)
class Selection:
    """The kernels in use, and why they are not the native ones if those were wanted."""

    name: str
    shortcoming: str = ""


def select(choice: str, num_threads: int) -> Selection:
    """Use the kernels that a setting asks for: "auto", "native" or "reference".

    Call it before models are loaded. Raises ValueError for another choice, and if "native" is
    asked for where it cannot be had.
    """
    if choice not in CHOICES:
        raise ValueError(f"kernels must be one of {', '.join(CHOICES)}, got {choice!r}")
    if choice == "reference":
        disable()
        return Selection("reference")
    try:
        return Selection(f"native ({enable(num_threads)})")
    except NativeUnavailableError as error:
        disable()
        if choice == "native":
            raise ValueError(f"kernels is 'native', but {error}") from error
        return Selection("reference", str(error))


def enable(num_threads: int) -> str:
    """Let the ops run natively from now on, on so many threads. Returns the instruction set used.

    Call it before models are loaded: weights are packed then. Raises NativeUnavailableError, and
    ValueError for less than one thread.
    """
    if num_threads < 1:
        raise ValueError(f"num_threads must be at least 1, got {num_threads}")
    path = library_path()
    if not path.is_file():
        raise NativeUnavailableError(
            "the native kernels are not built; `python -m kernels.native` builds them"
        )
    try:
        if not is_whole(path):
            raise OSError("the file has been cut off")
        torch.ops.load_library(path)
    except OSError as error:
        raise NativeUnavailableError(
            f"{path} cannot be loaded ({error}); delete it and run `python -m kernels.native`"
        ) from error
    isa = ISAS[torch.ops.slipstream.best_isa()]
    if isa == "none":
        raise NativeUnavailableError("this CPU has no AVX2 with FMA")
    torch.ops.slipstream.set_num_threads(num_threads)
    pack_layers.register(*_SERVED, packing.pack_layers)
    pack_normed_linear.register(*_SERVED, packing.pack_normed_linear)
    decode_layers.register(*_SERVED, _decode_layers)
    normed_linear.register(*_SERVED, _normed_linear)
    position_blocked_attention.register(*_SERVED, _attention)
    sampling.register()
    return isa


def disable() -> None:
    """Let the reference run again."""
    pack_layers.unregister(*_SERVED)
    pack_normed_linear.unregister(*_SERVED)
    decode_layers.unregister(*_SERVED)
    normed_linear.unregister(*_SERVED)
    position_blocked_attention.unregister(*_SERVED)
    sampling.unregister()


def _decode_layers(
    h_RH: torch.Tensor,
    stack: DecoderStack,
    layouts: Sequence[RowLayout],
    kv: KvPages,
    tap_layers: Sequence[int] = (),
    x_RX: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if stack.packed is None:
        return decode_layers.reference(h_RH, stack, layouts, kv, tap_layers, x_RX)
    h_RH, taps_RX = torch.ops.slipstream.decode(
        *(h_RH, stack.packed, x_RX, *stack.angles, *kv),
        [layout.pages_X for layout in layouts],
        [layout.positions_R for layout in layouts],
        [layout.tail_slots_RT for layout in layouts],
        [layout.first_position for layout in layouts],
        [layout.prefix_len for layout in layouts],
        [layout.trunk_len for layout in layouts],
        tap_layers,
    )
    return h_RH, taps_RX


def _normed_linear(x_RK: torch.Tensor, layer: NormedLinear) -> torch.Tensor:
    if layer.packed is None:
        return normed_linear.reference(x_RK, layer)
    return torch.ops.slipstream.project(x_RK, *layer.packed, layer.eps)


def _attention(
    q_RAD: torch.Tensor, kv: KvPages, layer: int, layout: RowLayout, scale: float
) -> torch.Tensor:
    if q_RAD.shape[-1] > packing.MAX_HEAD_DIM:
        return position_blocked_attention.reference(q_RAD, kv, layer, layout, scale)
    return torch.ops.slipstream.attend(
        *(q_RAD, *kv, layer, layout.pages_X, layout.positions_R),
        *(layout.prefix_len, layout.trunk_len, layout.tail_slots_RT, scale),
    )
