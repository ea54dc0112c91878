"""The draft vocabulary: the most frequent tokens, and offsets that every engine understands."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.draft_vocab import DraftVocab

counts = st.lists(st.integers(0, 9), min_size=1, max_size=30)


@given(counts, st.data())
def test_no_token_left_out_weighs_more_than_one_kept(counts, data):
    """And what is covered is told by what was chosen, not by what weighs."""
    size = data.draw(st.integers(1, len(counts)))
    weights = data.draw(st.permutations(counts))
    vocab = DraftVocab.choose(torch.tensor(weights), torch.tensor(counts), size)
    kept = vocab.ids_N.tolist()
    assert kept == sorted(set(kept))
    left_out = [weight for token, weight in enumerate(weights) if token not in kept]
    assert max(left_out, default=0) <= min(weights[token] for token in kept)
    assert vocab.coverage == pytest.approx(
        sum(counts[token] for token in kept) / max(sum(counts), 1)
    )


@given(counts, st.data())
def test_d2t_t2d_and_draft_ids_agree(counts, data):
    size = data.draw(st.integers(1, len(counts)))
    vocab = DraftVocab.choose(torch.tensor(counts), torch.tensor(counts), size)
    tensors = vocab.tensors()
    assert vocab.draft_ids()[vocab.ids_N].tolist() == list(range(size))
    assert int((vocab.draft_ids() >= 0).sum()) == size
    if size == len(counts):
        assert tensors == {}
        return
    assert torch.equal(tensors["d2t"] + torch.arange(size), vocab.ids_N)
    assert torch.equal(tensors["t2d"].nonzero().flatten(), vocab.ids_N)


def test_a_size_beyond_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"must be in \[1, 3\], got 4"):
        DraftVocab.choose(torch.tensor([1, 2, 3]), torch.tensor([1, 2, 3]), 4)
