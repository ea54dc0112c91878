"""The arithmetic of the quality benchmark."""

from __future__ import annotations

import torch

from benchmarks.quality import compare, perplexity


def test_perplexity_of_even_odds_is_the_number_of_tokens():
    assert abs(perplexity(torch.zeros(9, 50), torch.arange(9)) - 50) < 1e-3


def test_the_surprise_at_a_token_is_judged_by_the_row_before_it():
    logits = torch.full((3, 4), -20.0)
    logits[0, 1] = logits[1, 2] = logits[2, 3] = 20.0
    assert abs(perplexity(logits, torch.tensor([0, 1, 2])) - 1) < 1e-6
    assert perplexity(logits, torch.tensor([1, 2, 3])) > 1e6


def test_a_format_is_compared_with_the_reference_row_by_row():
    reference = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    found = compare(torch.tensor([[3.0, 0.0], [5.0, 4.0]]), reference, torch.tensor([0, 1]))
    assert found["greedy_agreement"] == 0.5
    assert found["relative_error"] == 1.0
    assert found["largest_error"] == 5.0
