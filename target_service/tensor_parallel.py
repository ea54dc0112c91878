"""What one of several devices holds of a model, so that what all of them find adds up to the whole.

    q, k, v, gate, up, experts    by outputs: whole heads, and parts of the width
    head                          by outputs: parts of the vocabulary
    o, down                       by the inputs that these are; what comes out is a part of a sum
    latent queries and outputs    by heads
    latent keys, router, norms    whole, as the embedding is

A slice of a layer is a layer, and is computed as one. A bias of a sum is the first device's alone.
Slices are views: of tensors that lie in files, what a slice holds is all that is ever read.

Legend: A heads, L latent, N a head's part that is not rotated, V a head's value.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kernels.decoder import DecoderLayer, DecoderStack
from kernels.experts import Expert
from kernels.latent_attention import LatentOutput, LatentQueries
from kernels.linear import DenseLinear, DivisibleLinear, JoinedLinear, Linear
from kernels.normed_linear import NormedLinear
from kernels.quantized_linear import Int4Linear, Int8Linear
from target_service.models.target_model import TargetModel

Model = TypeVar("Model", bound=TargetModel)


@dataclass(frozen=True)
class Part:
    """Which of so many equal parts."""

    rank: int
    of: int

    def span(self, count: int, what: str, unit: int = 1) -> slice:
        """Return this part of `count` things of `unit` places each.

        Raises ValueError, naming `what` they are, if they are not so many equal parts.
        """
        if count % self.of:
            raise ValueError(
                f"tensor_parallel is {self.of}, but {count} {what} are not so many equal parts"
            )
        each = count // self.of * unit
        return slice(self.rank * each, (self.rank + 1) * each)


def slice_model(model: Model, part: Part) -> Model:
    """Return a model of slices; the embedding is whole.

    Raises ValueError as `slice_layer` does.
    """
    sliced, head = copy(model), model.head
    layers = [slice_layer(layer, part) for layer in model.stack.layers]
    sliced.stack = DecoderStack(layers, model.stack.angles)
    whole = _divisible(head.linear)
    tokens = part.span(whole.num_outputs, "tokens of the vocabulary")
    sliced.head = NormedLinear(whole.of_outputs(tokens), head.norm_K, head.eps)
    return sliced


def slice_layer(layer: DecoderLayer, part: Part) -> DecoderLayer:
    """Return a device's part of a layer.

    Raises ValueError naming both numbers if heads or widths are not so many equal parts, or if
    groups of int4 weights would be cut.
    """
    latent = isinstance(layer.q, LatentQueries)
    attention = _latent_attention(layer, part) if latent else _attention(layer, part)
    return replace(layer, **attention, **_feed_forward(layer, part))


def _attention(layer: DecoderLayer, part: Part) -> dict[str, Any]:
    q, k, v = map(_divisible, (layer.q, layer.k, layer.v))
    query_span = part.span(q.num_outputs // layer.head_dim, "attention heads", layer.head_dim)
    key_span = part.span(k.num_outputs // layer.head_dim, "key-value heads", layer.head_dim)
    return {
        "q": q.of_outputs(query_span),
        "k": k.of_outputs(key_span),
        "v": v.of_outputs(key_span),
        "o": _summand(layer.o, query_span, part),
    }


def _latent_attention(layer: DecoderLayer, part: Part) -> dict[str, Any]:
    queries, output = layer.q, layer.o
    assert isinstance(queries, LatentQueries)
    assert isinstance(output, LatentOutput)
    up, (heads, value, _) = _divisible(queries.up), output.value_up_AVL.shape
    mine = part.span(heads, "attention heads")
    query_span = part.span(heads, "attention heads", up.num_outputs // heads)
    value_span = part.span(heads, "attention heads", value)
    return {
        "q": replace(queries, up=up.of_outputs(query_span), key_up_ALN=queries.key_up_ALN[mine]),
        "o": replace(
            output,
            value_up_AVL=output.value_up_AVL[mine],
            out=_summand(output.out, value_span, part),
        ),
    }


def _feed_forward(layer: DecoderLayer, part: Part) -> dict[str, Any]:
    gate, up, down = _gated(layer.gate, layer.up, layer.down, part)
    mixture = layer.experts
    if mixture is not None:
        mixture = replace(mixture, experts=[_expert(one, part) for one in mixture.experts])
    return {"gate": gate, "up": up, "down": down, "experts": mixture}


def _expert(expert: Expert, part: Part) -> Expert:
    assert isinstance(expert.gate_up, JoinedLinear), "checkpoints keep gate and up apart"
    gate, up = expert.gate_up.parts
    gate, up, down = _gated(gate, up, expert.down, part)
    return Expert(JoinedLinear(gate, up), down)


def _gated(gate: Linear, up: Linear, down: Linear, part: Part) -> tuple[Linear, Linear, Linear]:
    gate, up = _divisible(gate), _divisible(up)
    span = part.span(gate.num_outputs, "places of a feed-forward layer")
    return gate.of_outputs(span), up.of_outputs(span), _summand(down, span, part)


def _summand(layer: Linear, span: slice, part: Part) -> Linear:
    """Return what a layer does with some of its inputs."""
    whole = _divisible(layer)
    try:
        return whole.of_inputs(span, whole.bias_N if part.rank == 0 else None)
    except ValueError as error:
        raise ValueError(
            f"tensor_parallel is {part.of}, but the width is {whole.num_inputs}: {error}"
        ) from None


def _divisible(layer: Linear) -> DivisibleLinear:
    assert isinstance(layer, DenseLinear | Int8Linear | Int4Linear), "made by new_linear"
    return layer
