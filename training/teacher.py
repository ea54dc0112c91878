"""What a drafter is to learn of each row: the target's own distribution, or the token it chose.

The distribution is computed from the recorded state behind the target's last layer, with the
target's norm and head: exact over the draft vocabulary, and nothing has to be recorded for it but
one tap more.

Legend: R rows, W target's hidden, N drafter's vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F


class Teacher(Protocol):
    """Knows what is right."""

    def probs(self, final_RW: torch.Tensor, draft_tokens_R: torch.Tensor) -> torch.Tensor:
        """Return probabilities of draft tokens, [R, N] bfloat16, each row summing to 1.

        From the target's last state before the token in question, and from that token itself.
        """


class TargetHead:
    """The target's final norm, and those rows of its head that are in the draft vocabulary."""

    def __init__(self, norm_W: torch.Tensor, eps: float, head_NW: torch.Tensor) -> None:
        self._norm_W = norm_W.bfloat16()
        self._eps = eps
        self._head_NW = head_NW.bfloat16()

    def probs(self, final_RW: torch.Tensor, draft_tokens_R: torch.Tensor) -> torch.Tensor:
        """Return the target's probabilities among the draft tokens."""
        del draft_tokens_R
        h_RW = F.rms_norm(final_RW.bfloat16(), self._norm_W.shape, self._norm_W, self._eps)
        return (h_RW @ self._head_NW.T).float().softmax(-1).bfloat16()


class ChosenTokens:
    """All of the probability for the token that the target chose: for recordings without more."""

    def __init__(self, draft_vocab_size: int) -> None:
        self._size = draft_vocab_size

    def probs(self, final_RW: torch.Tensor, draft_tokens_R: torch.Tensor) -> torch.Tensor:
        """Return 1 for the token that was chosen."""
        del final_RW
        return F.one_hot(draft_tokens_R, self._size).bfloat16()
