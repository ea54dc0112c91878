"""The native ops as torch sees them: shapes without numbers, and what they refuse.

Legend: R rows, H hidden, X inputs of q, k and v, A query heads, C key-value heads, D head size,
L layers, K inputs, N outputs.
"""

import pytest
import torch

from kernels.attention import lay_out_rows
from kernels.kv_pages import new_pages
from kernels.normed_linear import NormedLinear
from kernels.quantized_linear import new_linear
from tests.kernels.implementations import least, running
from tests.kernels.tiny_decoder import KINDS, normal, random_stack

BF16 = torch.bfloat16


@pytest.fixture(scope="module", autouse=True)
def _native():
    with running(least()):
        yield


def empty(*shape, dtype=BF16):
    return torch.zeros(*shape, dtype=dtype)


def named(value):
    """A test by what is changed."""
    return "+".join(value) if isinstance(value, dict) else None


def layout(rows, *, in_tree=False):
    parents = [-1, *([0] * (rows - 1) if in_tree else range(rows - 1))]
    return lay_out_rows(torch.tensor([1]), 0, parents)


def decode_arguments(name="llama", *, in_tree=False):
    """What `decode` is given for three rows of a tiny model."""
    kind, rows = KINDS[name], layout(3, in_tree=in_tree)
    stack = random_stack(kind)
    kv = new_pages(2, kind.layers, kind.key_heads, kind.head_dim, empty(0))
    return {
        "h": normal(3, kind.hidden, seed=1),
        "stack": stack.packed,
        "x": normal(3, kind.given, seed=2) if kind.given else None,
        "cos": stack.angles[0],
        "sin": stack.angles[1],
        "keys": kv.keys_PLCKD,
        "values": kv.values_PLCJD2,
        "pages": [rows.pages_X],
        "positions": [rows.positions_R],
        "tail_slots": [rows.tail_slots_RT],
        "first_positions": [0],
        "prefix_lens": [0],
        "trunk_lens": [rows.trunk_len],
        "tap_layers": [0, 2],
    }


def decode(arguments):
    return torch.ops.slipstream.decode(**arguments)


def attend_arguments(*, in_tree=False, heads=4, head_dim=16):
    rows = layout(3, in_tree=in_tree)
    kv = new_pages(2, 1, 2, head_dim, empty(0))
    return {
        "q": normal(3, heads, head_dim, seed=3),
        "keys": kv.keys_PLCKD,
        "values": kv.values_PLCJD2,
        "layer": 0,
        "pages": rows.pages_X,
        "positions": rows.positions_R,
        "prefix_len": 0,
        "trunk_len": rows.trunk_len,
        "tail_slots": rows.tail_slots_RT,
        "scale": 0.25,
    }


def attend(arguments):
    return torch.ops.slipstream.attend(**arguments)


def on_meta(arguments):
    return {name: to_meta(x) for name, x in arguments.items()}


def to_meta(x):
    if isinstance(x, list):
        return [to_meta(part) for part in x]
    return x.to("meta") if isinstance(x, torch.Tensor) else x


def shapes(results):
    tensors = results if isinstance(results, tuple) else (results,)
    return [(x.shape, x.dtype) for x in tensors]


@pytest.mark.parametrize("in_tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize(
    ("op", "arguments_of"), [(decode, decode_arguments), (attend, attend_arguments)]
)
def test_shapes_alone_are_those_of_the_results(op, arguments_of, in_tree):
    arguments = arguments_of(in_tree=in_tree)
    found = op(on_meta(arguments))
    assert shapes(found) == shapes(op(arguments))
    assert all(x.device.type == "meta" for x in (found if isinstance(found, tuple) else [found]))


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
def test_shapes_alone_of_a_projection_are_those_of_the_result(dtype):
    layer, x_RK = (
        NormedLinear(new_linear("dense", normal(7, 33, seed=4))),
        empty(3, 33, dtype=dtype),
    )
    found = torch.ops.slipstream.project(x_RK.to("meta"), *layer.packed, 0.0)
    assert shapes(found) == shapes(torch.ops.slipstream.project(x_RK, *layer.packed, 0.0))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"h": empty(3, 47)}, "h must be"),
        ({"h": empty(3, 48, dtype=torch.float32)}, "h must be"),
        ({"cos": empty(400, 8)}, "cos must be"),
        ({"sin": empty(399, 16)}, "sin must be"),
        ({"positions": [torch.arange(2)]}, "the layouts have 2 rows, h has 3"),
        ({"positions": [torch.arange(0)]}, "at least one row"),
        ({"positions": [torch.arange(3).int()]}, "positions must be"),
        (
            {"keys": empty(2, 1, 2, 64, 16), "values": empty(2, 1, 2, 32, 16, 2)},
            "keys must be pages x 2 x 2 x",
        ),
        (
            {"keys": empty(2, 2, 3, 64, 16), "values": empty(2, 2, 3, 32, 16, 2)},
            "keys must be pages x 2 x 2 x",
        ),
        (
            {"keys": empty(2, 2, 2, 64, 8), "values": empty(2, 2, 2, 32, 8, 2)},
            "keys must be pages x 2 x 2 x",
        ),
        ({"values": empty(2, 2, 2, 64, 16)}, "values must be"),
        ({"keys": empty(2, 2, 64, 2, 16).transpose(2, 3)}, "not contiguous"),
        ({"prefix_lens": [62]}, "the session has 64 slots, rows reach 65"),
        ({"pages": [torch.tensor([2])]}, "pages must be in .0, 2., got 2"),
        ({"pages": [torch.tensor([-1])]}, "pages must be in .0, 2., got -1"),
        ({"pages": [torch.tensor([1]).int()]}, "pages must be"),
        ({"pages": [torch.arange(0)]}, "the session has 0 slots"),
        ({"pages": [torch.tensor([1])] * 2}, "layouts"),
        ({"trunk_lens": []}, "layouts"),
        ({"tap_layers": [3]}, "tap.*3"),
        ({"tap_layers": [-1]}, "tap.*-1"),
        ({"first_positions": [398]}, "position"),
        ({"first_positions": [-1]}, "position"),
    ],
    ids=named,
)
def test_decode_refuses_what_does_not_fit(changed, message):
    with pytest.raises(RuntimeError, match=message):
        decode(decode_arguments() | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": empty(3, 95)}, "x must be"),
        ({"x": empty(2, 96)}, "x must be"),
        ({"x": None}, "its input x"),
    ],
    ids=named,
)
def test_decode_refuses_layers_without_their_input(changed, message):
    with pytest.raises(RuntimeError, match=message):
        decode(decode_arguments("eagle3") | {"tap_layers": []} | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": empty(3, 4, 16, dtype=torch.float32)}, "q must be"),
        ({"q": empty(3, 4, 8)}, "queries are"),
        ({"q": empty(3, 5, 16)}, "queries are"),
        ({"positions": torch.arange(4)}, "positions must be"),
        ({"values": empty(2, 1, 2, 64, 16)}, "values must be"),
        ({"keys": empty(2, 1, 2, 100, 16)}, "keys"),
        ({"layer": 1}, "layers are 1, got 1"),
        ({"pages": torch.tensor([2])}, "pages must be in .0, 2., got 2"),
        ({"prefix_len": 62}, "the session has 64 slots, rows reach 65"),
    ],
    ids=named,
)
def test_attention_refuses_what_does_not_fit(changed, message):
    with pytest.raises(RuntimeError, match=message):
        attend(attend_arguments() | changed)


@pytest.mark.parametrize(
    "tail_slots",
    [torch.zeros(2, 64, dtype=torch.long), torch.zeros(3, 64, dtype=torch.int)],
    ids=["rows", "dtype"],
)
def test_attention_refuses_paths_that_do_not_fit(tail_slots):
    with pytest.raises(RuntimeError, match="tail"):
        attend(attend_arguments(in_tree=True) | {"tail_slots": tail_slots})


def test_heads_larger_than_256_are_refused():
    with pytest.raises(RuntimeError, match="queries are"):
        attend(attend_arguments(head_dim=288))


@pytest.mark.parametrize(("inputs", "norm"), [(32, 33), (33, 32)], ids=["x", "norm"])
def test_a_projection_refuses_what_does_not_fit(inputs, norm):
    layer = NormedLinear(new_linear("dense", normal(7, 33, seed=5)))
    with pytest.raises(RuntimeError, match="must be"):
        torch.ops.slipstream.project(empty(3, inputs), layer.packed[0], torch.ones(norm), 1e-5)


@pytest.mark.parametrize(
    ("pack", "tensors"),
    [
        ("pack_bf16", [empty(7, 33)]),
        ("pack_int8", [empty(7, 33, dtype=torch.int8), torch.ones(7)]),
        ("pack_int4", [empty(7, 33, dtype=torch.int8), torch.ones(7, 2)]),
    ],
)
def test_a_weight_is_packed_with_scales_and_a_bias_of_its_size_alone(pack, tensors):
    op = getattr(torch.ops.slipstream, pack)
    op(*tensors, torch.ones(7))
    with pytest.raises(RuntimeError, match="bias"):
        op(*tensors, torch.ones(6))
    for scale in (scale[:-1] for scale in tensors[1:]):
        with pytest.raises(RuntimeError, match="scale must be"):
            op(tensors[0], scale, None)


def matrix(outputs, inputs):
    return torch.ops.slipstream.pack_bf16(empty(outputs, inputs), None)


def layer_arguments():
    """A layer of 48 hidden, 4 query heads and 2 key-value heads of 16, and 32 inner."""
    return {
        "stack": torch.ops.slipstream.new_stack(),
        "qkv": matrix(128, 48),
        "out": matrix(48, 64),
        "gate_up": matrix(64, 48),
        "down": matrix(48, 32),
        "input_norm": torch.ones(48),
        "post_norm": torch.ones(48),
        "query_norm": torch.ones(16),
        "key_norm": torch.ones(16),
        "query_heads": 4,
        "head_dim": 16,
        "eps": 1e-5,
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"head_dim": 15}, "head_dim must be even and in .2, 256., got 15"),
        ({"head_dim": 258}, "head_dim must be even and in .2, 256., got 258"),
        ({"input_norm": torch.ones(47)}, "norm"),
        ({"post_norm": torch.ones(47)}, "norm"),
        ({"query_norm": torch.ones(15)}, "norm"),
        ({"key_norm": torch.ones(15)}, "norm"),
        ({"out": (48, 63)}, "out"),
        ({"down": (47, 32)}, "down"),
    ],
    ids=named,
)
def test_a_layer_whose_parts_do_not_fit_each_other_is_refused(changed, message):
    torch.ops.slipstream.add_layer(**layer_arguments())
    changed = {
        name: matrix(*value) if isinstance(value, tuple) else value
        for name, value in changed.items()
    }
    with pytest.raises(RuntimeError, match=message):
        torch.ops.slipstream.add_layer(**layer_arguments() | changed)
