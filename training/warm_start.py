"""A drafter that begins with its target's way of naming tokens: final norm and output head.

The norm is made small, so that the head has no opinion before the drafter has one: at its own size
the first guesses are wrong with great confidence, and that has to be unlearnt. Copying the target's
last layer as well was worse than chance: a drafter stands one token further on than the target's
layers, and what they know of the token it was just given is of no use.

Legend: N draft vocabulary, H hidden.
"""

from __future__ import annotations

import torch

from training.draft_module import DraftModule

_NORM_SCALE = 0.1


@torch.no_grad()
def warm_start(module: DraftModule, norm_H: torch.Tensor, head_NH: torch.Tensor) -> None:
    """Set a drafter's norm and head from its target's, which have the same width."""
    module.lm_head.weight.copy_(head_NH)
    module.norm.weight.copy_(_NORM_SCALE * norm_H)
