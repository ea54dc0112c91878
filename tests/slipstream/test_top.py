"""What `slipstream top` shows is how counters grew from one look to the next."""

import io

import pytest
from rich.console import Console

from protos.draft_pb2 import DraftLoad
from protos.target_pb2 import GetTargetResponse, TargetLoad
from slipstream.top import Look, view


def target(**load) -> GetTargetResponse:
    return GetTargetResponse(
        model_name="m", weights="int8", kernels="reference", load=TargetLoad(**load)
    )


def shown(before: Look, now: Look) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(view(before, now))
    return console.export_text()


BEFORE = Look(
    10.0,
    target(steps=5, prompt_rows=100, root_rows=5, committed_tokens=10, accepted_by_position=[5]),
    DraftLoad(batches=1, extended_rows=100, grown_rows=3),
)
NOW = Look(
    12.0,
    target(
        sessions=3,
        queued=1,
        steps=9,
        prompt_rows=140,
        root_rows=13,
        draft_rows=16,
        committed_tokens=30,
        accepted_by_position=[11, 6],
        kv_tokens_reserved=640,
        kv_tokens_total=1280,
        kv_tokens_cached=64,
        prompt_tokens=200,
        cached_prompt_tokens=50,
        preemptions=7,
    ),
    DraftLoad(sessions=2, batches=7, extended_rows=110, grown_rows=33, kv_tokens_total=640),
)


@pytest.mark.parametrize(
    "expected",
    [
        "m, int8, reference",
        "3, of which 1 wait for a step",
        "640 of 1280 tokens, 64 more remembered",
        "tokens/s         10.0",
        "10.0 of prompts, 2.0 roots, 4.0 drafts",
        # 20 tokens were committed, 12 of them drafts: 8 rounds.
        "accept length    2.50  0.75 0.75",
        "25 % of all prompts",
        "preemptions      7",
        "batches/s      3.0",
        "5.0 real, 15.0 guessed",
        "0 of 640 tokens",
    ],
)
def test_it_shows_what_happened_between_two_looks(expected):
    assert expected in shown(BEFORE, NOW)


def test_idle_services_divide_nothing_by_nothing():
    empty = Look(1.0, target(), DraftLoad()), Look(2.0, target(), DraftLoad())
    assert "no steps" in shown(*empty)
    assert "no rounds" in shown(*empty)
    assert "0 of 0 tokens" in shown(*empty)


@pytest.mark.parametrize("part", ["target", "draft"])
def test_a_service_that_does_not_answer_is_said_to(part):
    gone = Look(
        2.0, *(None if part == name else getattr(NOW, name) for name in ("target", "draft"))
    )
    for pair in ((BEFORE, gone), (gone, Look(3.0, NOW.target, NOW.draft))):
        shown(*pair)
    assert "does not answer" in shown(BEFORE, gone)
