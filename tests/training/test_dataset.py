"""Batches: every sample once an epoch, padded but not mixed, and never one that is held out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.made_samples import made_sample, record_samples, source_of
from training.dataset import Dataset


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    samples = [made_sample(f"s{n}", 5 + n % 17, 3, seed=n) for n in range(80)]
    return record_samples(tmp_path_factory.mktemp("r"), samples)


def batches_of(dataset, batch_tokens, seed):
    return [dataset.batch(group) for group in dataset.groups(batch_tokens, seed)]


@settings(max_examples=15)
@given(batch_tokens=st.integers(1, 200), seed=st.integers(0, 5))
def test_an_epoch_has_every_token_once(recorded, batch_tokens, seed):
    dataset = Dataset([recorded], held_out=False, max_len=100)
    batches = batches_of(dataset, batch_tokens, seed)
    answered = sum(int(batch.answered_BL.sum()) for batch in batches)
    assert answered == sum(sample.num_answered for sample in dataset.samples())
    assert sum(len(batch.tokens_BL) for batch in batches) == len(dataset.entries)
    assert all(batch.tokens_BL.numel() <= max(batch_tokens, 21) for batch in batches)


def test_the_split_is_whole_and_has_no_overlap(recorded):
    train, test = (Dataset([recorded], held_out=held_out, max_len=100) for held_out in (0, 1))
    ids = [{sample.facts.sample_id for sample in part.samples()} for part in (train, test)]
    assert not ids[0] & ids[1]
    assert len(ids[0] | ids[1]) == 80
    assert ids[1]


def test_the_same_seed_gives_the_same_batches(recorded):
    dataset = Dataset([recorded], held_out=False, max_len=100)
    one, two, other = (batches_of(dataset, 64, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a.tokens_BL, b.tokens_BL) for a, b in zip(one, two, strict=True))
    assert [a.tokens_BL.tolist() for a in one] != [b.tokens_BL.tolist() for b in other]


def test_what_lies_behind_a_sample_is_nobodys_answer(recorded):
    """Random taps are never zero, so a row of zeros is padding (or the last token's)."""
    for batch in batches_of(Dataset([recorded], held_out=False, max_len=100), 100, 0):
        rows = (batch.taps_BLX != 0).any(-1).sum(1)
        for answered, num_rows in zip(batch.answered_BL, rows, strict=True):
            assert int(answered.nonzero().max()) == num_rows


def test_longer_samples_are_cut(recorded):
    dataset = Dataset([recorded], held_out=False, max_len=8)
    assert max(batch.tokens_BL.shape[1] for batch in batches_of(dataset, 64, 0)) == 8


def test_token_counts_are_those_of_answers(tmp_path):
    sample = made_sample("s0", 9, 4)
    counts = Dataset(
        [record_samples(tmp_path, [sample])], held_out=sample.facts.held_out, max_len=100
    ).token_counts(50)
    assert torch.equal(counts, torch.bincount(sample.tokens_N[4:].long(), minlength=50))


def test_recordings_of_two_targets_do_not_mix(tmp_path):
    one = record_samples(tmp_path / "1", [made_sample("a")])
    two = record_samples(tmp_path / "2", [made_sample("b")], source_of(target_fingerprint="beef"))
    with pytest.raises(ValueError, match="of another target"):
        Dataset([one, two], held_out=False, max_len=10)


def test_a_recording_counts_once(recorded):
    with pytest.raises(ValueError, match="a recording is given twice"):
        Dataset([recorded, recorded / ".." / recorded.name], held_out=False, max_len=10)


def test_nothing_to_train_on_is_said(tmp_path):
    sample = next(s for n in range(99) if (s := made_sample(f"h{n}")).facts.held_out)
    with pytest.raises(ValueError, match="no samples that are to be trained on"):
        Dataset([record_samples(tmp_path, [sample])], held_out=False, max_len=10)
