"""Small random decoder layers of every kind, and a session that decodes rows with them.

Legend: R rows, H hidden, X inputs of q, k and v, D head size, N outputs, K inputs, P positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate

import torch

from kernels.attention import RowLayout, lay_out_rows
from kernels.decoder import DecoderLayer, DecoderStack, decode_layers
from kernels.kv_pages import KvPages, new_pages, values_of_pages
from kernels.linear import DenseLinear, Linear
from kernels.quantized_linear import INT4_GROUP, Int4Linear, new_linear
from kernels.rotary import Rope

POSITIONS = 400
LINEARS = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Kind:
    """What decoder layers differ in. `given` is the width of x if that comes from outside."""

    hidden: int = 48
    query_heads: int = 4
    key_heads: int = 2
    head_dim: int = 16
    inner: int = 64
    layers: int = 2
    biased: Sequence[str] = ()
    head_norms: bool = False
    given: int | None = None

    def with_heads_of(self, head_dim: int) -> Kind:
        return replace(self, head_dim=head_dim)

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return outputs and inputs of every linear layer."""
        queries, keys = self.query_heads * self.head_dim, self.key_heads * self.head_dim
        width = self.given or self.hidden
        attention = {"q": (queries, width), "k": (keys, width), "v": (keys, width)}
        gates = {"gate": (self.inner, self.hidden), "up": (self.inner, self.hidden)}
        return {
            **attention,
            "o": (self.hidden, queries),
            **gates,
            "down": (self.hidden, self.inner),
        }


KINDS = {
    "llama": Kind(),
    "qwen2": Kind(query_heads=3, key_heads=1, head_dim=8, inner=33, biased=("q", "k", "v")),
    "qwen3": Kind(query_heads=2, head_dim=64, inner=100, head_norms=True),
    "all_biases": Kind(hidden=33, query_heads=5, key_heads=5, inner=17, biased=LINEARS),
    "some_biases": Kind(query_heads=20, key_heads=1, biased=("v", "up", "o"), layers=3),
    "eagle3": Kind(given=96, inner=50, layers=1, head_norms=True),
}


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def random_layer(kind: Kind, weight_format: str, seed: int) -> DecoderLayer:
    """A layer that changes the residual stream about as much as it is large."""
    linears = {
        name: new_linear(
            weight_format,
            normal(outputs, inputs, seed=seed + place) * (2 / inputs**0.5),
            normal(outputs, seed=seed + place + 10) if name in kind.biased else None,
        )
        for place, (name, (outputs, inputs)) in enumerate(kind.shapes().items())
    }
    head_norms = [1 + normal(kind.head_dim, seed=seed + i) / 4 for i in (20, 21)]
    input_norm_H, post_norm_H = (1 + normal(kind.hidden, seed=seed + i) / 4 for i in (22, 23))
    return DecoderLayer(
        **linears,
        post_norm_H=post_norm_H,
        head_dim=kind.head_dim,
        eps=1e-5,
        input_norm_H=input_norm_H if kind.given is None else None,
        q_norm_D=head_norms[0] if kind.head_norms else None,
        k_norm_D=head_norms[1] if kind.head_norms else None,
    )


def random_stack(kind: Kind, weight_format: str = "dense") -> DecoderStack:
    """Layers packed for the implementation in use."""
    layers = [random_layer(kind, weight_format, 100 * index) for index in range(kind.layers)]
    angles = Rope(kind.head_dim, 10000.0, {}, 2048).tables(POSITIONS, torch.bfloat16)
    return DecoderStack(layers, angles)


def in_float32(stack: DecoderStack) -> DecoderStack:
    """The same weights for activations in float32."""
    layers = [replace(layer, **_parts_in_float32(layer)) for layer in stack.layers]
    cos_PD, sin_PD = stack.angles
    return DecoderStack(layers, (cos_PD.float(), sin_PD.float()))


def _parts_in_float32(layer: DecoderLayer) -> dict[str, Linear | torch.Tensor]:
    parts = {field.name: getattr(layer, field.name) for field in fields(layer)}
    tensors = {name: x.float() for name, x in parts.items() if isinstance(x, torch.Tensor)}
    return tensors | {name: _linear_in_float32(parts[name]) for name in LINEARS}


def _linear_in_float32(linear: Linear) -> Linear:
    bias_N = None if linear.bias_N is None else linear.bias_N.float()
    if isinstance(linear, DenseLinear):
        return DenseLinear(linear.weight_NK.float(), bias_N)
    if isinstance(linear, Int4Linear):
        scale_NK = linear.scale_NG.repeat_interleave(INT4_GROUP, 1)[:, : linear.q_NK.shape[1]]
        return DenseLinear((linear.q_NK * scale_NK).bfloat16().float(), bias_N)
    return linear


@dataclass(frozen=True)
class Inputs:
    """Rows of the residual stream, and of x for layers that are given it."""

    h_RH: torch.Tensor
    x_RX: torch.Tensor | None

    @classmethod
    def random(cls, kind: Kind, rows: int, seed: int = 0) -> Inputs:
        given = None if kind.given is None else normal(rows, kind.given, seed=seed + 1)
        return cls(normal(rows, kind.hidden, seed=seed), given)

    def __len__(self) -> int:
        return len(self.h_RH)

    def __getitem__(self, rows: slice | list[int]) -> Inputs:
        return Inputs(self.h_RH[rows], None if self.x_RX is None else self.x_RX[rows])

    def to(self, dtype: torch.dtype) -> Inputs:
        return Inputs(self.h_RH.to(dtype), None if self.x_RX is None else self.x_RX.to(dtype))

    @classmethod
    def joined(cls, parts: Sequence[Inputs]) -> Inputs:
        """Return the rows of all, one after the other."""
        given = [part.x_RX for part in parts if part.x_RX is not None]
        return cls(torch.cat([part.h_RH for part in parts]), torch.cat(given) if given else None)


def chain(rows: int) -> list[int]:
    return list(range(-1, rows - 1))


# Where the five pages of each session lie among all: in no order, and apart.
PAGES = ([7, 2, 9, 0, 4], [1, 8, 3, 6, 5])


def empty_pages(kind: Kind, stack: DecoderStack) -> KvPages:
    """Return room for two sessions."""
    like = stack.layers[0].post_norm_H
    return new_pages(10, kind.layers, kind.key_heads, kind.head_dim, like)


class Session:
    """Five pages, and how many of their slots hold text."""

    def __init__(
        self,
        kind: Kind,
        stack: DecoderStack,
        first_position: int = 0,
        *,
        kv: KvPages | None = None,
        place: int = 0,
    ) -> None:
        self.stack = stack
        self.first_position = first_position
        self.length = 0
        self.kv = kv or empty_pages(kind, stack)
        self.pages_X = torch.tensor(PAGES[place])

    def layout(self, parents: Sequence[int]) -> RowLayout:
        """Return the layout of a tree after the text."""
        return lay_out_rows(self.pages_X, self.length, parents, self.first_position)

    def look(
        self, rows: Inputs, parents: Sequence[int], taps: Sequence[int] = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return h and taps of the nodes of a tree after the text, which gets no longer by it."""
        layouts = [self.layout(parents)]
        return decode_layers(rows.h_RH, self.stack, layouts, self.kv, taps, rows.x_RX)

    def read(
        self, rows: Inputs, sizes: Sequence[int], taps: Sequence[int] = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append rows to the text, chunk after chunk, and return h and taps of all of them."""
        results = []
        for size, end in zip(sizes, accumulate(sizes), strict=True):
            results.append(self.look(rows[end - size : end], chain(size), taps))
            self.length += size
        h_RH, taps_RX = (torch.cat(parts) for parts in zip(*results, strict=True))
        return h_RH, taps_RX

    def text(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of the text, [L, C, S, D] each."""
        layers = [self.kv.of_session(i, self.pages_X) for i in range(len(self.stack.layers))]
        keys_LCSD = torch.stack([keys_CSD for keys_CSD, _ in layers])
        values_LCSD = torch.stack([values_of_pages(values_CBJD2) for _, values_CBJD2 in layers])
        return keys_LCSD[:, :, : self.length], values_LCSD[:, :, : self.length]
