"""The router against its reference: the same experts in the same order, and their weights.

Legend: R rows, E experts, C choices of a row.
"""

import pytest
import torch

from kernels import experts as reference
from kernels.experts import Routing
from kernels.gpu.router import choose_experts
from tests.kernels.gpu.proofs.memory_guard import as_bytes, launch_guarded

KIMI = Routing(384, 8, scale=2.827)
DEEPSEEK = Routing(256, 8, num_groups=8, groups_kept=4, scale=2.5)
ODD = Routing(21, 3, num_groups=3, groups_kept=2, normalized=False)
every_routing = pytest.mark.parametrize(
    "routing", [KIMI, DEEPSEEK, ODD], ids=["kimi", "deepseek", "odd"]
)


def chosen(logits_RE, bias_E, routing, live_R=None):
    rows = len(logits_RE)
    live_R = torch.ones(rows, dtype=torch.int32) if live_R is None else live_R
    experts_RC = torch.full((rows, routing.choices), -7, dtype=torch.int32)
    weights_RC = torch.full((rows, routing.choices), torch.nan)
    choose_experts(logits_RE, bias_E, live_R, routing, experts_RC, weights_RC)
    return experts_RC, weights_RC


def assert_chosen_alike(logits_RE, bias_E, routing):
    ours = chosen(logits_RE, bias_E, routing)
    expected = reference.choose_experts(logits_RE, bias_E, routing)
    assert torch.equal(ours[0], expected[0])
    torch.testing.assert_close(ours[1], expected[1], rtol=1e-6, atol=0)


@every_routing
def test_experts_are_those_of_the_reference(routing):
    """With biases of both signs, and with such that all that is wanted is below zero."""
    bias_E = torch.empty(routing.num_experts).uniform_(-1, 1)
    logits_RE = torch.randn(4, routing.num_experts)
    assert_chosen_alike(logits_RE, bias_E, routing)
    assert_chosen_alike(logits_RE, bias_E - 3, routing)


@every_routing
def test_ties_go_to_the_smaller_number(routing):
    """Scores of a few values, so that most are equal, and groups are as well."""
    logits_RE = torch.randint(0, 2, (6, routing.num_experts)).float()
    assert_chosen_alike(logits_RE, torch.zeros(routing.num_experts), routing)


@every_routing
def test_what_is_no_number_is_chosen_last_and_weighs_nothing(routing):
    logits_RE = torch.randn(3, routing.num_experts) - 8
    logits_RE[0, ::2] = torch.nan
    logits_RE[1] = torch.nan
    logits_RE[2, 3:9] = torch.tensor([torch.inf, -torch.inf, 200, -200, 1e30, -1e30])
    assert_chosen_alike(logits_RE, torch.rand(routing.num_experts) / 8, routing)


def test_programs_touch_only_what_is_theirs():
    logits_RE, bias_E, live_R = torch.randn(3, 21), torch.zeros(21), torch.ones(3).int()
    experts_RC, weights_RC = torch.zeros(3, 3).int(), torch.zeros(3, 3)
    launch_guarded(
        lambda: choose_experts(logits_RE, bias_E, live_R, ODD, experts_RC, weights_RC),
        experts_RC,
        weights_RC,
    )


def test_padding_chooses_nothing():
    logits_RE, live_R = torch.randn(3, 21), torch.tensor([1, 0, 1], dtype=torch.int32)
    experts_RC, weights_RC = chosen(logits_RE, torch.zeros(21), ODD, live_R)
    assert (experts_RC[1] == -1).all()
    assert (experts_RC[[0, 2]] >= 0).all()
    assert weights_RC.isfinite().all()


@every_routing
def test_rows_do_not_feel_their_neighbours(routing):
    logits_RE, bias_E = torch.randn(5, routing.num_experts), torch.rand(routing.num_experts)
    together = chosen(logits_RE, bias_E, routing)
    for row in (slice(0, 1), slice(4, 5), slice(1, 4)):
        alone = chosen(logits_RE[row], bias_E, routing)
        for part, whole in zip(alone, together, strict=True):
            assert torch.equal(as_bytes(part), as_bytes(whole[row]))
