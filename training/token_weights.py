"""How much each token is worth to a drafter that knows only some of them.

What the target chose is a sample of what it might have chosen. Where its thoughts were recorded,
their sum is a better guess of what it will choose next time: both together are taken.

Legend: V vocabulary, R rows, W target's hidden.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from training.dataset import Dataset
from training.tap_columns import columns_of
from training.target_weights import TargetWeights
from training.teacher import TargetHead

_ROWS = 100_000
"""Enough: it is a second look at what is counted, and takes a product with the whole head."""
_BATCH_TOKENS = 1024
_NONE = torch.empty(0)


def token_weights(dataset: Dataset, target: TargetWeights) -> torch.Tensor:
    """Return how often the target chose each token, and would have by what it thought, [V]."""
    source = dataset.source
    counts_V = dataset.token_counts(source.vocab_size)
    if source.num_layers not in source.tap_layers:
        return counts_V
    head = TargetHead(target.norm_H, target.eps, target.head_VH)
    expected_V, rows = torch.zeros(source.vocab_size), 0
    for final_RW in _thoughts(dataset):
        expected_V += head.probs(final_RW, _NONE).sum(0, dtype=torch.float32)
        rows += len(final_RW)
        if rows >= _ROWS:
            break
    return counts_V + expected_V * (int(counts_V.sum()) / max(rows, 1))


def _thoughts(dataset: Dataset) -> Iterator[torch.Tensor]:
    """Yield the target's last states before the tokens that it chose, [R, W]."""
    source = dataset.source
    columns = columns_of([source.num_layers], source)
    for group in dataset.groups(_BATCH_TOKENS, seed=0):
        batch = dataset.batch(group)
        final_BLW = batch.taps_BLX[:, :-1, columns]
        yield final_BLW[batch.answered_BL[:, 1:]]
