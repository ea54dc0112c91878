"""A prompt whose beginning is known is answered as if nobody had asked before, and drafted for."""

from __future__ import annotations

import pytest

from slipstream.client import Request
from tests.end_to_end.losslessness import answers, differing

PREFIX = [7 + 13 * i % 200 for i in range(200)]


def asked(drafter: str | None, first: int) -> Request:
    """A prompt of 200 tokens, of which the first decides whether it is known."""
    return Request(
        token_ids=[first, *PREFIX],
        sampling={"temperature": 0.7, "seed": 3},
        stopping={"max_new_tokens": 24, "ignore_eos": True},
        speculation={"steps": 3, "top_k": 2, "draft_tokens": 8, "drafter_id": drafter or ""},
        mode="off" if drafter is None else "fixed",
    )


@pytest.mark.parametrize(("drafter", "first"), [(None, 1), ("eagle", 2)])
def test_a_known_beginning_changes_no_text_and_is_drafted_for(tiny_stack, drafter, first):
    """Its taps are kept with it: a drafter follows from the first row on."""
    cold, warm = (
        answers(tiny_stack.addresses.gateway, [asked(drafter, first)])[0] for _ in range(2)
    )

    assert cold.finish.usage.cached_prompt_tokens == 0
    assert warm.finish.usage.cached_prompt_tokens == 192
    assert differing([cold], [warm]) == []
    for one in (cold, warm):
        assert (one.finish.speculation.drafted == 0) == (drafter is None)
    # From the same taps a drafter guesses the same, so it is accepted as often.
    assert warm.finish.speculation.accepted == cold.finish.speculation.accepted
