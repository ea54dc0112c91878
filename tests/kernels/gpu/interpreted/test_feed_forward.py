"""Buffers of feed-forward layers: those of a bucket lie in those of the largest step."""

import torch

from kernels.experts import Routing
from kernels.gpu.expert_scratch import scratch_bytes
from kernels.gpu.expert_weights import stack_experts
from kernels.gpu.feed_forward import Experts, FeedForward, new_feed_forward_buffers
from kernels.gpu.stack import Weight
from tests.kernels.gpu.interpreted.test_linear import normal
from tests.kernels.gpu.interpreted.test_w4_linear import any_layer

CPU = torch.device("cpu")
HIDDEN, WIDTH, EXPERTS, ROWS = 2112, 200, 2, 34


def layer() -> FeedForward:
    gate_up, down = (
        stack_experts([any_layer(*shape) for _ in range(EXPERTS)], CPU)
        for shape in ((2 * WIDTH, HIDDEN), (HIDDEN, WIDTH))
    )
    router, bias_E = Weight(normal(EXPERTS, HIDDEN), None), torch.zeros(EXPERTS)
    shared = Weight(normal(2 * WIDTH, HIDDEN), None), Weight(normal(HIDDEN, WIDTH), None)
    return FeedForward(*shared, Experts(router, bias_E, Routing(EXPERTS, 1), gate_up, down))


def test_memory_is_enough_for_every_number_of_rows():
    """Fewer rows may need more: their sums have parts, which a prompt's programs add themselves."""
    one = layer()
    weights = one.experts.gate_up, one.experts.down
    assert scratch_bytes(ROWS - 2, 1, *weights) > scratch_bytes(ROWS, 1, *weights)
    buffers = new_feed_forward_buffers([one], ROWS, CPU)
    for rows in range(1, ROWS + 1):
        scratch = buffers.rows(rows).choice.scratch
        assert scratch.gate_up_PQN.shape[1] == scratch.plan.order_Q.numel() == rows
        assert scratch.down_PQH.is_contiguous()


def test_layers_without_experts_need_no_room_for_choices():
    dense = layer()._replace(experts=None)
    assert new_feed_forward_buffers([dense], ROWS, CPU).rows(3).choice is None
