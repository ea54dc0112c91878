"""A drafter on recorded conversations has the rounds that it would have had with the target."""

import pytest
import torch

from draft_service.drafters import Draft
from draft_service.drafters.ngram import NgramDrafter
from protos.messages import Plan
from tests.training.made_samples import made_sample
from training.calibration import Calibration
from training.evaluate import report_of
from training.replay import replay

PLAN = Plan(steps=3, top_k=1, draft_tokens=4)
COLUMNS = torch.arange(12)


class Oracle(NgramDrafter):
    """Knows how every sample goes on, is right for `right` tokens, and notes what it is told."""

    def __init__(self, samples, right):
        super().__init__("oracle", 50, 1000)
        self.texts = [sample.tokens_N.tolist() for sample in samples]
        self.right = right
        self.rows = {}

    def extend(self, batch):
        for rows in batch:
            told = self.rows.setdefault(rows.follower, [])
            assert rows.base_len == len(told)
            told += rows.tokens
        super().extend(batch)

    def draft(self, batch):
        return [self._draft(wanted) for wanted in batch]

    def _draft(self, wanted):
        known = len(wanted.tokens)
        (text,) = [text for text in self.texts if text[:known] == list(wanted.tokens)]
        tokens = [*text[known : known + self.right], *[49] * 3][:3]
        return Draft(tuple(tokens), (0, 1, 2), (-0.1, -0.2, -0.3))


def samples_of(*lengths, prompt=4):
    return [
        made_sample(f"s{n}", length, prompt, seed=n, vocab=49) for n, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_rounds_fall_as_they_would_with_the_target(right):
    """The first token of an answer is the prompt's; then each round commits what is right, and one
    more. A round that could not be judged to its end is none."""
    samples = samples_of(30, 17, 6)
    rounds = list(replay(Oracle(samples, right), samples, COLUMNS, PLAN, at_once=2))
    for sample in samples:
        lengths = [one.scored.committed_len for one in rounds if one.sample is sample]
        last = len(sample.tokens_N) - 3
        assert lengths == list(range(5, last + 1, right + 1))
    assert all(one.scored.accepted == right for one in rounds)


def test_a_drafter_is_told_all_rows_once_and_in_order():
    samples = samples_of(40, 25)
    oracle = Oracle(samples, 2)
    rounds = list(replay(oracle, samples, COLUMNS, PLAN))
    told = sorted(oracle.rows.values(), key=len, reverse=True)
    for sample, tokens in zip(samples, told, strict=True):
        committed = max(r.scored.committed_len for r in rounds if r.sample is sample)
        assert tokens[: committed - 1] == sample.tokens_N[1:committed].tolist()


def test_every_answer_of_a_conversation_is_played():
    sample = made_sample("two", 40, vocab=49, answers=((5, 15), (25, 40)))
    rounds = list(replay(Oracle([sample], 3), [sample], COLUMNS, PLAN))
    assert [one.scored.committed_len for one in rounds] == [6, 10, 26, 30, 34]


def test_how_many_play_at_once_changes_nothing():
    samples = samples_of(30, 17, 6, 23, 41)
    played = [
        [one.scored for one in replay(Oracle(samples, 1), samples, COLUMNS, PLAN, at_once=n)]
        for n in (1, 3, 16)
    ]
    assert sorted(played[0]) == sorted(played[1]) == sorted(played[2])


def test_the_report_says_accept_length_by_task_and_position():
    samples = [
        made_sample("a", 30, vocab=49),
        made_sample("b", 30, seed=1, vocab=49, task="code", temperature=0.7),
    ]
    found = report_of(replay(Oracle(samples, 2), samples, COLUMNS, PLAN), 3).as_json()
    assert found["scores"].keys() == {
        "all",
        "greedy",
        "temperature 0.7",
        "chat, greedy",
        "code, temperature 0.7",
    }
    card = found["scores"]["all"]
    assert (card["accept_length"], card["accepted_by_position"]) == (3.0, [1.0, 1.0, 0.0])
    assert card["sessions"] == 2


def test_calibration_sees_drafts_up_to_the_first_wrong_one():
    samples = samples_of(30)
    calibration = Calibration.of(replay(Oracle(samples, 1), samples, COLUMNS, PLAN))
    assert calibration.accepted_N.tolist() == [1.0, 0.0] * (len(calibration.accepted_N) // 2)


@pytest.mark.parametrize("truth", [0.5, 1.0, 3.0])
def test_the_temperature_under_which_outcomes_came_is_found(truth):
    """Drafts are accepted with the probability that they would state at that temperature."""
    generator = torch.Generator().manual_seed(0)
    stated = torch.rand(40_000, generator=generator, dtype=torch.float64).clamp(0.01, 0.99)
    accepted = torch.rand(40_000, generator=generator) < (stated.logit() / truth).sigmoid()
    from training.calibration import _fit

    found = _fit(stated, accepted.double())
    assert found == pytest.approx(truth, rel=0.05)
    calibration = Calibration(stated, accepted.double(), found)
    assert calibration.expected_error(calibration.calibrated_N) < 0.02
