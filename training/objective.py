"""Training-time test: a drafter guesses on from its own output, as when it serves, and is judged.

    h = fc(taps)
    for each step:
        out, feedback = layer(embedding of the next token, h)
        loss += 0.8^step * cross entropy(head(out), what the target thinks comes then)
        h = feedback, one row on

(Li et al., "EAGLE-3", arXiv 2503.01840.)

Legend: B samples, L tokens, R judged rows, S steps, H hidden, X tapped width, W target's hidden, N
draft vocabulary, V target's vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from training.dataset import Batch
from training.draft_module import DraftModule
from training.head_loss import head_loss
from training.teacher import Teacher
from training.unroll import Keys


@dataclass(frozen=True)
class Progress:
    """What a batch came to. `accepted_S` counts chains of guesses that were right so far."""

    loss: torch.Tensor
    accepted_S: torch.Tensor
    started_S: torch.Tensor

    @property
    def acceptance_S(self) -> torch.Tensor:  # noqa: N802
        """The share of chains whose first s guesses were all right, [S]."""
        return self.accepted_S / self.started_S.clamp(min=1)


@dataclass(frozen=True)
class Objective:
    """What is trained for. `draft_ids_V` is -1 for tokens that the drafter does not know."""

    embedding_VH: torch.Tensor
    teacher: Teacher
    draft_ids_V: torch.Tensor
    drafter_columns: torch.Tensor
    """Which columns of the recorded taps the drafter reads."""
    final_columns: torch.Tensor
    """Which columns are the target's last state; none if it was not recorded."""
    num_steps: int
    step_decay: float

    def __call__(self, module: DraftModule, batch: Batch, num_steps: int) -> Progress:
        """Return the loss of a batch, and how many guesses the target would have accepted.

        Only the first `num_steps` steps are taken; of the others nothing is known.
        """
        # Row i pairs the tap of token i with token i + 1; what is to be guessed is token i + 2.
        x_BLH = F.embedding(batch.tokens_BL[:, 1:-1], self.embedding_VH)
        labels_BL = self.draft_ids_V[batch.tokens_BL[:, 2:]]
        judged_BL = batch.answered_BL[:, 2:]
        h_BLH = module.fuse(batch.taps_BLX[:, :-2, self.drafter_columns])
        known_R = labels_BL[judged_BL] >= 0
        targets_RN = self._targets(batch, judged_BL, labels_BL)
        earlier: list[Keys] = []
        loss, accepted, started = x_BLH.new_zeros((), dtype=torch.float32), [], []
        alive_BL = torch.ones_like(judged_BL)
        for step in range(num_steps):
            out_BLH, feedback_BLH, keys = module(x_BLH, h_BLH, earlier)
            earlier.append(keys)
            # The first rows have no chain that is so long.
            judged_R = _rows_from(judged_BL, step)[judged_BL]
            weights_R = (judged_R & known_R) * (self.step_decay**step / judged_R.sum().clamp(min=1))
            step_loss, guesses_R = head_loss(
                out_BLH[judged_BL], module.lm_head.weight, targets_RN, weights_R
            )
            loss = loss + step_loss
            right_BL = torch.zeros_like(judged_BL)
            right_BL[judged_BL] = (guesses_R == labels_BL[judged_BL]) & judged_R
            alive_BL = right_BL & alive_BL
            accepted.append(alive_BL.sum())
            started.append(judged_R.sum())
            alive_BL = _moved_on(alive_BL)
            h_BLH = F.pad(feedback_BLH[:, :-1], (0, 0, 1, 0))
        missing = self.num_steps - num_steps
        return Progress(
            loss,
            F.pad(torch.stack(accepted), (0, missing)),
            F.pad(torch.stack(started), (0, missing)),
        )

    def _targets(
        self, batch: Batch, judged_BL: torch.Tensor, labels_BL: torch.Tensor
    ) -> torch.Tensor:
        """Return what the target thinks of the judged rows, [R, N]: the same at every step."""
        # The state of token i + 1 says what comes after it.
        final_BLW = batch.taps_BLX[:, 1:-1, self.final_columns]
        chosen_R = labels_BL[judged_BL].clamp(min=0)
        return self.teacher.probs(final_BLW[judged_BL], chosen_R)


def _rows_from(mask_BL: torch.Tensor, first: int) -> torch.Tensor:
    """Return the mask without the rows before `first`."""
    mask_BL = mask_BL.clone()
    mask_BL[:, :first] = False
    return mask_BL


def _moved_on(mask_BL: torch.Tensor) -> torch.Tensor:
    """Return the mask one row on."""
    return F.pad(mask_BL[:, :-1], (1, 0))
