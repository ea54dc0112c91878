"""Judged rows: side by side, and back where they were."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.made_samples import made_sample
from training.dataset import Batch
from training.judged import Judged, in_row_blocks


@given(samples=st.integers(1, 3), rows=st.integers(1, 40), steps=st.integers(1, 4), data=st.data())
def test_judged_rows_are_found_and_go_back(samples, rows, steps, data):
    """Row i is judged at step s if it was asked for and i >= s."""
    flags = st.lists(st.booleans(), min_size=samples * rows, max_size=samples * rows)
    judged_BL = torch.tensor(data.draw(flags)).view(samples, rows)
    judged = Judged.of(judged_BL, steps)
    assert len(judged.places_R) % 16 == 0
    numbers_BL = torch.arange(samples * rows).view(samples, rows)
    count = int(judged_BL.sum())
    assert torch.equal(judged.rows(numbers_BL)[:count], numbers_BL[judged_BL])
    for step, found_BL in enumerate(judged.put_back(judged.at_SR)):
        assert torch.equal(found_BL, judged_BL & (torch.arange(rows) >= step))


@given(tokens=st.integers(3, 70))
def test_rows_that_fill_up_a_block_are_answered_by_nobody(tokens):
    sample = made_sample(num_tokens=tokens, prompt=1)
    taps_BLX = torch.nn.functional.pad(sample.taps_TX, (0, 0, 0, 1))[None]
    batch = Batch(sample.tokens_N[None].long(), taps_BLX, torch.ones(1, tokens, dtype=torch.bool))
    filled = in_row_blocks(batch)
    assert (filled.tokens_BL.shape[1] - 2) % 32 == 0
    for one, other in zip(vars(batch).values(), vars(filled).values(), strict=True):
        assert torch.equal(one, other[:, :tokens])
        assert not other[:, tokens:].any()
