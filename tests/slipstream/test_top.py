"""What `slipstream top` shows is how counters grew from one look to the next."""

import io

import pytest
from rich.console import Console

from protos.draft_pb2 import DRAFTER_STATE_ALARM, DraftLoad, ListDraftersResponse
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
    ListDraftersResponse(load=DraftLoad(batches=1, extended_rows=100, grown_rows=3)),
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
    ListDraftersResponse(
        load=DraftLoad(
            sessions=2, batches=7, extended_rows=110, grown_rows=33, kv_tokens_total=640
        ),
        default_drafter_id="a",
        drafters=[
            {
                "drafter_id": "a",
                "kind": "eagle3",
                "score": {
                    "rounds": 200,
                    "accepted": 230,
                    "accepted_by_position": [150, 80],
                    "accept_length": 2.15,
                    "accept_length_low": 2.05,
                    "accept_length_high": 2.25,
                },
            },
            {"drafter_id": "b", "state": DRAFTER_STATE_ALARM, "refusal": "never right; head"},
        ],
        canary={"drafter_id": "b", "share": 0.2},
        shadow={"candidate_id": "b", "incumbent_id": "a", "outcome": "not better", "rounds": 0},
    ),
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
        "a (default)  eagle3",
        "2.15 ± 0.10    0.75 0.40",
        "ALARM b: never right; head",
        "canary b: 20.0% of sessions",
        "shadow b of a: not better",
    ],
)
def test_it_shows_what_happened_between_two_looks(expected):
    assert expected in shown(BEFORE, NOW)


def test_idle_services_divide_nothing_by_nothing():
    empty = Look(1.0, target(), ListDraftersResponse()), Look(2.0, target(), ListDraftersResponse())
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
