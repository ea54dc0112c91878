"""A map of draft tokens that would lead to the wrong tokens is refused, every map else accepted."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters.draft_vocabulary import check_mask, mask_of, target_ids

VOCAB = 97


def offsets(ids):
    return torch.tensor(ids) - torch.arange(len(ids))


@given(st.sets(st.integers(0, VOCAB - 1), min_size=1))
def test_offsets_lead_to_the_tokens_that_an_exporter_chose(chosen):
    """Whichever they are, if they are few or have neighbours as tokens chosen at random have."""
    ids = sorted(chosen)
    spread = all(high - low > 1 for low, high in pairwise(ids))
    if spread and len(ids) > 20:
        return

    assert target_ids(offsets(ids), len(ids), VOCAB).tolist() == ids


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_offsets_are_integers_of_any_width(dtype):
    assert target_ids(offsets([3, 4, 9]).to(dtype), 3, VOCAB).tolist() == [3, 4, 9]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_other_types_are_refused(dtype):
    with pytest.raises(ValueError, match=rf"d2t has dtype {dtype}, but offsets are integers"):
        target_ids(offsets([3, 4, 9]).to(dtype), 3, VOCAB)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3, 4, 4], "tokens 1 and 2 to 4 and 4: target tokens must ascend, each of them once"),
        ([4, 3, 9], "tokens 0 and 1 to 4 and 3"),
        ([9, 3, 4], "tokens 0 and 1 to 9 and 3"),
        ([3, 4, 97], "draft token 2 to 97, outside the target's vocabulary of 97; it holds offset"),
        ([-1, 4, 9], "draft token 0 to -1, outside"),
    ],
)
def test_tokens_twice_out_of_order_or_outside_are_refused(ids, message):
    with pytest.raises(ValueError, match=message):
        target_ids(offsets(ids), 3, VOCAB)


@pytest.mark.parametrize(("size", "vocab"), [(50, 97), (300, 2000), (32000, 128256)])
def test_tokens_in_place_of_offsets_are_noticed(size, vocab):
    """Read as offsets they lead to no two neighbours, or outside."""
    ids = sorted(random.Random(0).sample(range(vocab), size))

    with pytest.raises(ValueError, match=r"draft token i is the target's token i \+ d2t\[i\]"):
        target_ids(torch.tensor(ids), size, vocab)
    with pytest.raises(ValueError, match=r"draft token i is the target's token i \+ d2t\[i\]"):
        target_ids(torch.arange(size), size, vocab)
    assert target_ids(offsets(ids), size, vocab).tolist() == ids


def test_a_few_tokens_without_neighbours_may_be_an_accident():
    assert target_ids(offsets([3, 9, 40]), 3, VOCAB).tolist() == [3, 9, 40]


def test_a_mask_marks_the_tokens_of_the_map():
    ids = torch.tensor([3, 4, 9])

    assert mask_of(ids, 12).nonzero().flatten().tolist() == [3, 4, 9]
    check_mask(mask_of(ids, 12), ids, 12)
    check_mask(mask_of(ids, 12).to(torch.int64), ids, 12)


@pytest.mark.parametrize(
    ("marked", "message"),
    [
        ([3, 4], "disagree about 1 tokens: t2d of token 9 is False, and d2t leads to it"),
        ([3, 4, 9, 10], "about 1 .* token 10 is True, and d2t does not lead to it"),
        ([], "disagree about 3 tokens: t2d of token 3 is False"),
    ],
)
def test_a_mask_of_other_tokens_is_refused(marked, message):
    mask = torch.zeros(12, dtype=torch.bool).index_fill(0, torch.tensor(marked).long(), True)

    with pytest.raises(ValueError, match=message):
        check_mask(mask, torch.tensor([3, 4, 9]), 12)


def test_a_mask_of_another_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"t2d has shape \[11\], but vocab_size is 12"):
        check_mask(torch.zeros(11, dtype=torch.bool), torch.tensor([3]), 12)
