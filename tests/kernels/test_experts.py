"""The router and the mixture of experts against what they are said to be.

Legend: R rows, E experts, C choices of a row, H hidden, F width of an expert.
"""

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from kernels.experts import Expert, Mixture, Routing, choose_experts, mix_experts
from kernels.linear import DenseLinear

KIMI = Routing(384, 8, scale=2.827)
DEEPSEEK = Routing(256, 8, num_groups=8, groups_kept=4, scale=2.5)
every_routing = pytest.mark.parametrize("routing", [KIMI, DEEPSEEK], ids=["kimi", "deepseek"])


def small_experts(num, hidden, width, dtype=torch.float32):
    def layer(outputs, inputs):
        return DenseLinear(torch.randn(outputs, inputs, dtype=dtype) / inputs**0.5)

    return [Expert(layer(2 * width, hidden), layer(hidden, width)) for _ in range(num)]


@every_routing
def test_the_router_is_that_of_transformers(routing):
    config = DeepseekV3Config(
        hidden_size=48,
        n_routed_experts=routing.num_experts,
        num_experts_per_tok=routing.choices,
        n_group=routing.num_groups,
        topk_group=routing.groups_kept,
        norm_topk_prob=True,
        routed_scaling_factor=routing.scale,
    )
    theirs, x_RH = DeepseekV3TopkRouter(config), torch.randn(33, 48)
    torch.nn.init.normal_(theirs.weight, std=0.2)
    theirs.e_score_correction_bias.uniform_(-1, 1)
    with torch.no_grad():
        logits_RE, *expected = theirs(x_RH)
    ours = choose_experts(logits_RE, theirs.e_score_correction_bias, routing)
    # Theirs are in no order.
    weights_RE, expected_RE = torch.zeros(2, 33, routing.num_experts)
    weights_RE.scatter_(1, ours[0].long(), ours[1])
    expected_RE.scatter_(1, expected[1], expected[0])
    torch.testing.assert_close(weights_RE, expected_RE)


@every_routing
def test_the_bias_steers_the_choice_only(routing):
    logits_RE, bias_E = torch.randn(5, routing.num_experts), torch.zeros(routing.num_experts)
    bias_E[17] = 10.0
    experts_RC, weights_RC = choose_experts(logits_RE, bias_E, routing)
    assert (experts_RC[:, 0] == 17).all()
    scores_RC = torch.sigmoid(logits_RE).gather(1, experts_RC.long())
    torch.testing.assert_close(
        weights_RC, routing.scale * scores_RC / scores_RC.sum(-1, keepdim=True)
    )


@pytest.mark.parametrize("routing", [KIMI, DEEPSEEK, Routing(13, 13, normalized=False)], ids=str)
def test_a_row_chooses_the_same_to_the_bit_in_any_company(routing):
    """`torch.sigmoid` gives what lies at the end of a tensor other bits."""
    generator = torch.Generator().manual_seed(0)
    logits_RE = torch.randn(200, routing.num_experts, generator=generator)
    bias_E = torch.zeros(routing.num_experts)
    experts_RC, weights_RC = choose_experts(logits_RE, bias_E, routing)
    for row in range(200):
        alone = choose_experts(logits_RE[row : row + 1], bias_E, routing)
        assert torch.equal(alone[0], experts_RC[row : row + 1])
        assert torch.equal(alone[1], weights_RC[row : row + 1])


def test_ties_go_to_the_smaller_number():
    experts_RC, _ = choose_experts(torch.zeros(2, 256), torch.zeros(256), DEEPSEEK)
    assert experts_RC.tolist() == [list(range(8))] * 2


@every_routing
def test_what_is_no_number_is_chosen_last_and_weighs_nothing(routing):
    logits_RE = torch.full((2, routing.num_experts), torch.nan)
    logits_RE[0, 40] = 1.0
    experts_RC, weights_RC = choose_experts(logits_RE, torch.zeros(routing.num_experts), routing)
    assert experts_RC[0, 0] == 40
    assert weights_RC.isfinite().all()
    assert weights_RC[0, 1:].eq(0).all()
    assert weights_RC[1].eq(0).all()
    assert all(len(set(row)) == routing.choices for row in experts_RC.tolist())


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((10, 2, 3), "equal groups"), ((12, 8, 3), "too few"), ((4, 1, 4, 2), "two best")],
)
def test_a_routing_that_cannot_be_is_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        Routing(*numbers)


@pytest.mark.parametrize("has_shared", [False, True])
def test_a_mixture_is_its_formula(has_shared):
    experts = small_experts(5, 24, 16)
    x_RH, shared_RH = torch.randn(7, 24), torch.randn(7, 24) if has_shared else None
    experts_RC = torch.stack([torch.randperm(5)[:3] for _ in range(7)]).int()
    experts_RC[2, 1], experts_RC[4] = -1, -1
    weights_RC = torch.rand(7, 3)
    y_RH = mix_experts(x_RH, experts_RC, weights_RC, experts, shared_RH)
    for row in range(7):
        exact_H = torch.zeros(24, dtype=torch.float64)
        for number, weight in zip(experts_RC[row].tolist(), weights_RC[row], strict=True):
            if number >= 0:
                gate_up, down = experts[number].gate_up, experts[number].down
                gate_F, up_F = (gate_up.weight_NK.double() @ x_RH[row].double()).chunk(2)
                exact_H += weight * (
                    down.weight_NK.double() @ (torch.nn.functional.silu(gate_F) * up_F)
                )
        if shared_RH is not None:
            exact_H += shared_RH[row]
        torch.testing.assert_close(y_RH[row].double(), exact_H, rtol=1e-5, atol=1e-5)


def test_a_row_has_the_same_bits_in_any_company():
    experts, bias_E = small_experts(6, 40, 24, torch.bfloat16), torch.zeros(6)
    x_RH, shared_RH = torch.randn(40, 40).bfloat16(), torch.randn(40, 40).bfloat16()
    chosen = choose_experts(torch.randn(40, 6), bias_E, Routing(6, 2))
    together_RH = mix_experts(x_RH, *chosen, experts, shared_RH)
    for rows in (slice(0, 1), slice(39, 40), slice(5, 23)):
        alone_RH = mix_experts(
            x_RH[rows], *(part[rows] for part in chosen), experts, shared_RH[rows]
        )
        assert torch.equal(alone_RH, together_RH[rows])


def test_a_mixture_routes_in_float32():
    """Of two experts that a bfloat16 cannot tell apart, the better one is chosen."""
    experts, shared_RH = small_experts(2, 32, 16, torch.bfloat16), torch.zeros(1, 32).bfloat16()
    x_RH = torch.ones(1, 32).bfloat16()
    router_EH = torch.full((2, 32), 1 / 32)
    router_EH[1] += 1e-5
    mixture = Mixture(DenseLinear(router_EH), torch.zeros(2), Routing(2, 1), experts)

    found_RH = mixture(x_RH, shared_RH)

    assert router_EH.bfloat16().unique().numel() == 1
    assert torch.equal(found_RH, experts[1](x_RH))
    assert not torch.equal(found_RH, experts[0](x_RH))
