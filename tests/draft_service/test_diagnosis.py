"""Drafters that were broken on purpose, and what is said of them.

The text is what the sound drafter drafts, so that one is always right. A broken one has its weights
but for one thing. Whoever has a trained drafter adds its mistakes to BROKEN.
"""

from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_service.alarm import ROUNDS, Alarm
from draft_service.diagnosis import UNKNOWN, Evidence, likely_cause
from draft_service.drafters import Draft
from draft_service.scoring import DraftedRounds, Scored
from protos.messages import Plan
from tests.draft_service.drafters.followed import Followed
from tests.draft_service.drafters.played_session import GREEDY, HIDDEN, LAYERS, VOCAB, load
from tests.tiny_models import FILE, write_tiny_eagle3

DRAFT_VOCAB = 24
PLAN = Plan(steps=2, draft_tokens=3)
# Ids that stay inside the vocabulary when they are taken for offsets.
IDS = torch.arange(DRAFT_VOCAB) + torch.arange(DRAFT_VOCAB) // 3


def nothing(tensors):
    """A sound drafter."""


def drafter(path, change: Callable[[dict[str, torch.Tensor]], None] = nothing):
    write_tiny_eagle3(
        path,
        hidden=HIDDEN,
        vocab=VOCAB,
        target_layers=LAYERS,
        draft_vocab_size=DRAFT_VOCAB,
        seed=9,
    )
    tensors = load_file(path / FILE)
    tensors["d2t"] = IDS - torch.arange(DRAFT_VOCAB)
    # It would tell at once, and not every checkpoint has one.
    del tensors["t2d"]
    change(tensors)
    save_file(tensors, path / FILE)
    return load(path)


def played(sound, other, spoil=lambda taps: taps) -> tuple[Alarm, Alarm]:
    """Let both follow what the sound drafter drafts; the other sees spoilt taps."""
    generator = torch.Generator().manual_seed(3)
    tokens, following = [7], 8
    sides = [(Followed.by(one), DraftedRounds(), Alarm()) for one in (sound, other)]
    for row in range(ROUNDS + 3):
        taps = torch.randn(1, 3 * HIDDEN, generator=generator).cumsum(1)
        tokens.append(following)
        drafts = []
        for (followed, rounds, alarm), seen in zip(sides, (taps, spoil(taps)), strict=True):
            for scored in rounds.commit(tokens):
                alarm.count(scored)
            followed.extend(row, tokens[-1:], seen)
            drafts.append(followed.draft(tokens, PLAN, GREEDY))
            rounds.draft(len(tokens), drafts[-1], PLAN)
        following = drafts[0].tokens[0]
    return sides[0][2], sides[1][2]


def blank_head(tensors):
    """Zeros are refused at once."""
    tensors["lm_head.weight"] = torch.full_like(tensors["lm_head.weight"], 1e-6)


def absolute_d2t(tensors):
    tensors["d2t"] = IDS


BROKEN = {
    "no head": (blank_head, "it drafts token 0 whatever the text: its output head is missing"),
    "absolute d2t": (absolute_d2t, "its d2t holds ids of target tokens, and was read as offsets"),
}


@pytest.mark.parametrize(("change", "cause"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_named(tmp_path, change, cause):
    sound, broken = drafter(tmp_path / "a"), drafter(tmp_path / "b", change)
    right, wrong = played(sound, broken)

    assert not right.is_raised
    assert wrong.is_raised
    assert cause in likely_cause(Evidence(wrong.evidence, broken.target_ids))


def test_a_d2t_where_none_belongs_is_named(tmp_path):
    """The sound drafter's tokens are the target's own."""

    def none(tensors):
        tensors["d2t"] = torch.zeros(DRAFT_VOCAB, dtype=torch.int64)

    def some(tensors):
        tensors["d2t"] = torch.full((DRAFT_VOCAB,), 45)

    sound, broken = drafter(tmp_path / "a", none), drafter(tmp_path / "b", some)
    _, wrong = played(sound, broken)

    assert "its d2t maps them to others" in likely_cause(
        Evidence(wrong.evidence, broken.target_ids)
    )


def test_wrong_taps_leave_the_usual_suspects(tmp_path):
    """Layers in another order: all drafts are plausible, and wrong."""
    sound = drafter(tmp_path / "a")
    right, wrong = played(sound, sound, lambda taps: -taps.roll(HIDDEN, dims=1))

    assert not right.is_raised
    cause = likely_cause(Evidence(wrong.evidence, sound.target_ids))
    assert cause == UNKNOWN
    assert all(part in cause for part in ("tap layers", "chat template", "vocabulary"))


@pytest.mark.parametrize(
    ("shift", "cause"), [(1, "one position further on"), (-1, "one position before")]
)
def test_drafts_of_another_position_are_named(shift, cause):
    text = [(31 * place * place + 7) % 89 for place in range(80)]
    rounds, found = DraftedRounds(), list[Scored]()
    for at in range(3, 75):
        rounds.draft(at, Draft((text[at + shift],), (0,)), PLAN)
        found += rounds.commit(text[: at + 1])

    assert sum(bool(scored.accepted) for scored in found) < 10
    assert f"its drafts fit {cause}" in likely_cause(Evidence(found))


def test_tokens_that_the_drafter_cannot_have_are_no_mistake_of_the_diagnosis():
    """NaNs draft anything."""
    rounds = [Scored(5, (token,), 0, (0, 1, 2)) for token in range(50, 90)]
    assert likely_cause(Evidence(rounds, target_ids=[1, 2])) == UNKNOWN
