"""Experts against their formula in float64, and their rows in any company.

Legend: R rows, C choices of a row, Q = R C pairs, T tiles, E experts, H hidden, F width.
"""

import pytest
import torch
import torch.nn.functional as F

from kernels import experts as reference
from kernels.gpu import experts
from kernels.gpu.expert_plan import ExpertPlan, max_tiles, plan_experts, plan_pieces
from kernels.gpu.expert_scratch import new_scratch, parts_of, tile_for
from kernels.gpu.expert_weights import stack_experts
from kernels.gpu.experts import mix_experts
from kernels.linear import DenseLinear, JoinedLinear
from kernels.quantized_linear import new_linear
from tests.kernels.gpu.interpreted.test_linear import normal, twice, unwritten
from tests.kernels.gpu.interpreted.test_w4_linear import (
    any_layer,
    dequantized,
    layer_of,
    twice_the_layer,
)
from tests.kernels.gpu.proofs.memory_guard import as_bytes, launch_guarded, memory_guard

ROUNDED = 2**-8


def scale(layer):
    """Make outputs as large as inputs."""
    if isinstance(layer, DenseLinear):
        layer.weight_NK = layer.weight_NK / layer.weight_NK.shape[1] ** 0.5
    else:
        layer.scale_NG = (layer.scale_NG / layer.q_NK.shape[1] ** 0.5).bfloat16().float()


def dense(outputs, inputs):
    return DenseLinear(normal(outputs, inputs))


def exact_weight(layer):
    weight_NK = layer.weight_NK if isinstance(layer, DenseLinear) else dequantized(layer)
    return weight_NK.double()


class Mixture:
    """Experts as the reference would have them, and packed."""

    def __init__(self, num, hidden, width, new_gate_up=any_layer, new_down=any_layer):
        self.gate_up = [new_gate_up(2 * width, hidden) for _ in range(num)]
        self.down = [new_down(hidden, width) for _ in range(num)]
        for layer in (*self.gate_up, *self.down):
            scale(layer)
        self.weights = tuple(
            stack_experts(layers, torch.device("cpu")) for layers in (self.gate_up, self.down)
        )

    @property
    def reference(self):
        return [reference.Expert(*both) for both in zip(self.gate_up, self.down, strict=True)]

    def scratch(self, rows, choices):
        """Filled with what must not be felt."""
        scratch = new_scratch(rows, choices, *self.weights)
        for part in (scratch.gate_up_PQN, scratch.activation_QF, scratch.down_PQH):
            part.fill_(torch.nan)
        for part in scratch.plan[:4]:
            part.fill_(7)
        return scratch

    def __call__(self, x_RH, experts_RC, weights_RC, shared_RH=None):
        out_RH = unwritten(*x_RH.shape)
        scratch = self.scratch(*experts_RC.shape)
        mix_experts(x_RH, experts_RC, weights_RC, self.weights, shared_RH, scratch, out_RH)
        return out_RH

    def exact(self, x_RH, experts_RC, weights_RC, shared_RH=None):
        """The formula in float64, with nothing rounded but weights."""
        total_RH = torch.zeros(x_RH.shape, dtype=torch.float64)
        for row, numbers in enumerate(experts_RC.tolist()):
            for number, weight in zip(numbers, weights_RC[row].double(), strict=True):
                if number >= 0:
                    both = exact_weight(self.gate_up[number]) @ x_RH[row].double()
                    gate_F, up_F = both.chunk(2)
                    activation_F = F.silu(gate_F) * up_F
                    total_RH[row] += weight * (exact_weight(self.down[number]) @ activation_F)
        return total_RH if shared_RH is None else total_RH + shared_RH


def assert_near(y_RH, exact_RH):
    """Four roundings to bfloat16, of gate, up, their product and an expert's output."""
    allowed = 4 * ROUNDED * exact_RH.abs().amax(-1, keepdim=True)
    assert torch.all((y_RH.double() - exact_RH).abs() <= allowed)
    assert (y_RH.double() - exact_RH).norm() <= 1.5 * ROUNDED * exact_RH.norm()


def assert_rounded_alike(y_RH, expected_RH):
    """The same roundings: a sum in another order moves one of some hundred by one place."""
    torch.testing.assert_close(y_RH, expected_RH, rtol=2 * ROUNDED, atol=0.02)
    assert (y_RH != expected_RH).float().mean() < 0.01


def choices_of(rows, choices, num_experts):
    experts_RC = torch.stack([torch.randperm(num_experts)[:choices] for _ in range(rows)])
    return experts_RC.int(), torch.rand(rows, choices) + 0.1


@pytest.mark.parametrize("tile_rows", [16, 32])
@pytest.mark.parametrize(("rows", "num_experts"), [(1, 24), (40, 5), (300, 7)])
def test_a_plan_is_a_sort(rows, num_experts, tile_rows):
    experts_RC, _ = choices_of(rows, 4, num_experts)
    experts_RC[torch.rand(rows, 4) < 0.1] = -1
    experts_RC[experts_RC == num_experts - 1] = 0
    pieces = plan_pieces(4 * rows, num_experts, tile_rows).values()
    plan = ExpertPlan(
        *(torch.full(piece.shape, -5, dtype=piece.dtype) for piece in pieces), tile_rows
    )
    launch_guarded(lambda: plan_experts(experts_RC, num_experts, plan), *plan[:4])
    experts_Q = experts_RC.flatten()
    order_Q = torch.sort(experts_Q, stable=True).indices[(experts_Q < 0).sum() :]
    assert torch.equal(plan.order_Q[: len(order_Q)], order_Q.int())
    found = [
        pair
        for expert, begin, count in zip(*(part.tolist() for part in plan[1:4]), strict=True)
        for pair in plan.order_Q[begin : begin + count].tolist()
        if count and experts_Q[pair] == expert and count <= tile_rows
    ]
    assert found == order_Q.tolist()


def test_there_are_tiles_enough_for_the_worst_case():
    """Every expert with one pair more than full tiles, or one with all."""
    assert max_tiles(8, 384, 16) == 8
    assert max_tiles(384, 384, 16) == 384
    assert max_tiles(4 * 17, 4, 16) == 8
    assert max_tiles(100, 1, 16) == 7


@pytest.mark.parametrize("has_shared", [False, True])
@pytest.mark.parametrize("new_layer", [any_layer, dense], ids=["int4", "bf16"])
def test_a_mixture_of_odd_sizes(new_layer, has_shared):
    mixture = Mixture(5, 50, 35, new_layer, new_layer)
    experts_RC, weights_RC = choices_of(9, 3, 5)
    experts_RC[2, 1], experts_RC[4] = -1, -1
    x_RH, shared_RH = normal(9, 50), normal(9, 50) if has_shared else None
    y_RH = mixture(x_RH, experts_RC, weights_RC, shared_RH)
    assert_near(y_RH, mixture.exact(x_RH, experts_RC, weights_RC, shared_RH))
    expected_RH = reference.mix_experts(x_RH, experts_RC, weights_RC, mixture.reference, shared_RH)
    assert_rounded_alike(y_RH, expected_RH)
    nothing_H = torch.zeros(50).bfloat16() if shared_RH is None else shared_RH[4]
    assert torch.equal(y_RH[4], nothing_H)


@pytest.mark.parametrize(("hidden", "width"), [(7168, 64), (128, 2048)])
def test_a_mixture_of_kimis_inputs(hidden, width):
    """7168 of gate and up, 2048 of down; all outputs of each are there."""
    mixture, (experts_RC, weights_RC) = Mixture(1, hidden, width), choices_of(3, 1, 1)
    x_RH = normal(3, hidden)
    assert_near(mixture(x_RH, experts_RC, weights_RC), mixture.exact(x_RH, experts_RC, weights_RC))


@pytest.mark.parametrize("new_layer", [any_layer, dense], ids=["int4", "bf16"])
def test_programs_touch_only_what_is_theirs(new_layer):
    mixture = Mixture(3, 40, 24, new_layer, new_layer)
    experts_RC, weights_RC = choices_of(18, 2, 3)
    x_RH, out_RH, scratch = normal(18, 40), unwritten(18, 40), mixture.scratch(18, 2)
    launch_guarded(
        lambda: mix_experts(x_RH, experts_RC, weights_RC, mixture.weights, None, scratch, out_RH),
        out_RH,
    )
    assert_near(out_RH, mixture.exact(x_RH, experts_RC, weights_RC))


def at_the_end(weight, num):
    """The one expert of a weight as the last of so many; the memory of all others is untouched."""
    parts = [part.new_empty(num, *part.shape[1:]) for part in weight if torch.is_tensor(part)]
    for part, last in zip(parts, weight, strict=False):
        part[-1] = last[0]
    return type(weight)(*parts, *weight[len(parts) :])


def plan_one(experts_RC, num_experts, plan):
    """The plan of one pair. To an interpreter a program an expert is not free."""
    for part, value in zip(plan[:4], (0, experts_RC[0, 0], 0, 1), strict=True):
        part.fill_(value)


@pytest.mark.parametrize("new_layer", [any_layer, dense], ids=["int4", "bf16"])
def test_an_expert_beyond_what_32_bits_count_is_found(new_layer, monkeypatch):
    """As the last ones of a layer in bfloat16 of Kimi's widths."""
    mixture, x_RH, ones_RC = (
        Mixture(1, 512, 64, new_layer, new_layer),
        normal(1, 512),
        torch.ones(1, 1),
    )
    expected_RH = mixture(x_RH, torch.tensor([[0]], dtype=torch.int32), ones_RC)
    last = 2**31 // max(weight[0].numel() for weight in mixture.weights)
    mixture.weights = tuple(at_the_end(weight, last + 1) for weight in mixture.weights)
    monkeypatch.setattr(experts, "plan_experts", plan_one)
    with memory_guard():
        y_RH = mixture(x_RH, torch.tensor([[last]], dtype=torch.int32), ones_RC)
    assert torch.equal(y_RH, expected_RH)


def dense_halves(outputs, order_G):
    return DenseLinear(twice(normal(outputs, 16 * len(order_G)), 1, order_G))


@pytest.mark.parametrize(
    ("halves", "new_layer"),
    [(twice_the_layer, any_layer), (dense_halves, dense)],
    ids=["int4", "bf16"],
)
def test_a_row_has_the_same_bits_in_any_company(halves, new_layer):
    """Alone, among rows with the same experts, and in a prompt with wide tiles."""
    hidden, width, rows, choices = 2112, 20, 34, 1
    order_G = torch.randperm(hidden // 32)
    x_RH = twice(normal(rows, hidden // 2), -1, order_G)
    mixture = Mixture(2, hidden, width, lambda outputs, _: halves(outputs, order_G), new_layer)
    experts_RC, weights_RC = choices_of(rows, choices, 2)
    gate_up = mixture.weights[0]
    assert parts_of(gate_up, choices) > 1
    assert tile_for(rows * choices, gate_up) != tile_for(choices, gate_up)
    together_RH = mixture(x_RH, experts_RC, weights_RC)
    assert together_RH.ne(0).float().mean() > 0.5
    for some in (slice(33, 34), slice(2, 20)):
        alone_RH = mixture(x_RH[some], experts_RC[some], weights_RC[some])
        assert torch.equal(as_bytes(alone_RH), as_bytes(together_RH[some]))


def test_the_mixture_may_take_the_place_of_the_shared_output():
    mixture, (experts_RC, weights_RC) = Mixture(3, 40, 24), choices_of(5, 2, 3)
    x_RH, shared_RH = normal(5, 40), normal(5, 40)
    expected_RH = mixture(x_RH, experts_RC, weights_RC, shared_RH)
    scratch = mixture.scratch(5, 2)
    launch_guarded(
        lambda: mix_experts(
            x_RH, experts_RC, weights_RC, mixture.weights, shared_RH, scratch, shared_RH
        ),
        shared_RH,
    )
    assert torch.equal(shared_RH, expected_RH)


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ([new_linear("int8", normal(4, 8))], "dense weights, not Int8Linear"),
        ([DenseLinear(normal(4, 8), normal(4))], "experts without biases"),
        ([JoinedLinear(any_layer(4, 8), dense(4, 8))], "all int4, without biases"),
        ([layer_of(torch.zeros(4, 8).char(), torch.full((4, 1), 1.001))], "bfloat16 would round"),
    ],
)
def test_other_experts_are_refused(layers, named):
    with pytest.raises(ValueError, match=named):
        stack_experts(layers, torch.device("cpu"))
