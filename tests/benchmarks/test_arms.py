"""An arm is asked for as it is named, and all arms share the seed."""

from __future__ import annotations

import pytest

from benchmarks.arms import AUTO, PLAIN, SIX_TASKS, Arm, Wish, fixed_arms, parse_plan, plan_of
from protos.messages import Plan
from slipstream.generate import Prompt, read_prompts

WISH = Wish(16, "mine")


@pytest.mark.parametrize("text", ["3x1", "3x1x4x5", "ax1x2", "", "-1x1x2"])
def test_what_is_no_plan_is_named(text):
    with pytest.raises(ValueError, match="STEPSxTOP_KxDRAFT_TOKENS"):
        parse_plan(text)


def test_a_plan_over_a_limit_names_it():
    with pytest.raises(ValueError, match="draft_tokens"):
        parse_plan("3x1x65")


def test_an_arm_is_named_as_it_is_read():
    arm = Arm.fixed(Plan(3, 2, 7))
    assert parse_plan(arm.name) == arm.plan


def test_a_chain_has_all_its_nodes_unless_told_otherwise():
    assert plan_of(4, 1, None) == Plan(4, 1, 5)
    assert plan_of(4, 1, 3) == Plan(4, 1, 3)


def test_an_arm_given_twice_runs_once():
    assert len(fixed_arms([Plan(2, 1, 3), Plan(2, 1, 3)])) == 1


def test_only_plain_decoding_names_no_drafter():
    """A drafter that is named must exist, even where nothing is drafted."""
    asked = {
        arm.name: arm.options(WISH).request(Prompt("x", "")).to_proto().speculation
        for arm in (PLAIN, AUTO, Arm.fixed(Plan(3, 2, 7)))
    }
    assert [asked[name].drafter_id for name in ("plain", "auto", "3x2x7")] == ["", "mine", "mine"]
    fixed = asked["3x2x7"]
    assert (fixed.steps, fixed.top_k, fixed.draft_tokens) == (3, 2, 7)
    assert not asked["auto"].HasField("steps")


def test_all_arms_have_one_seed():
    arms = (PLAIN, AUTO, Arm.fixed(Plan(3, 2, 7)))
    assert len({arm.options(WISH).sampling["seed"] for arm in arms}) == 1


@pytest.mark.parametrize("forced", [None, 2.5])
def test_forced_answers_are_as_long_as_they_may_be(forced):
    """They may hit upon a stop token that the model would not have chosen."""
    stopping = AUTO.options(Wish(16, "", forced)).stopping
    assert stopping["ignore_eos"] is (forced is not None)


def test_the_prompts_that_come_along_are_ten_of_each_of_six_tasks():
    prompts = read_prompts(None, SIX_TASKS)
    counts = {task: sum(p.task == task for p in prompts) for task in {p.task for p in prompts}}
    assert sorted(counts) == ["chat", "code", "copy-edit", "maths", "multi-turn", "summarise"]
    assert all(count >= 10 for count in counts.values())
    assert len({p.text + str(p.messages) for p in prompts}) == len(prompts)


def test_they_are_short_enough_for_a_small_model():
    """A token has more than three characters of such texts: at most 300 tokens."""
    for prompt in read_prompts(None, SIX_TASKS):
        length = len(prompt.text) + sum(len(m["content"]) for m in prompt.messages)
        assert length <= 900
