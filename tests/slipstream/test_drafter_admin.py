"""Shares and rules as people write them."""

import pytest

from protos.draft_pb2 import DrafterScore, ListDraftersResponse, PromotionRule
from slipstream.drafter_admin import parse_share, promotion_rule
from slipstream.drafter_table import accept_length


@pytest.mark.parametrize(
    ("text", "share"), [("20%", 0.2), ("0.2", 0.2), ("0%", 0), ("100%", 1), ("2.5%", 0.025)]
)
def test_a_share_is_a_percentage_or_a_number(text, share):
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "x", "20 percent", "20%%", "20%x", "-1%", "inf", "nan"])
def test_anything_else_is_no_share(text):
    with pytest.raises(ValueError, match=r"a share is written 20% or 0\.2, got"):
        parse_share(text)


def test_a_rule_is_said_in_words():
    rule = promotion_rule(("better-by", "5%"), "99%", 1000)

    assert rule == PromotionRule(better_by=0.05, confidence=0.99, max_rounds=1000)
    with pytest.raises(ValueError, match="must be `better-by X%`, got 'faster-by 5%'"):
        promotion_rule(("faster-by", "5%"), "95%", 1000)


def test_an_accept_length_nobody_can_be_sure_of_says_so():
    score = DrafterScore(
        rounds=3, accept_length=2, accept_length_low=-float("inf"), accept_length_high=float("inf")
    )
    assert accept_length(score) == "2.00"
    assert accept_length(ListDraftersResponse().drafters.add().score) == "no rounds"
