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
from training.judged import Judged, in_row_blocks
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
        batch = in_row_blocks(batch)
        # Row i pairs the tap of token i with token i + 1; what is to be guessed is token i + 2.
        x_BLH = module.embed(F.embedding(batch.tokens_BL[:, 1:-1], self.embedding_VH))
        labels_BL = self.draft_ids_V[batch.tokens_BL[:, 2:]]
        judged = Judged.of(batch.answered_BL[:, 2:], num_steps)
        labels_R = judged.rows(labels_BL)
        outs_SRH = self._outs(module, batch, x_BLH, judged, num_steps)
        loss, guesses_SR = head_loss(
            outs_SRH,
            module.lm_head.weight,
            self._targets(batch, judged, labels_R),
            self._weights(judged, labels_R),
        )
        right_SBL = judged.put_back((guesses_SR == labels_R) & judged.at_SR)
        missing = (0, self.num_steps - num_steps)
        return Progress(
            loss, F.pad(_chains(right_SBL), missing), F.pad(judged.at_SR.sum(1), missing)
        )

    def _outs(
        self,
        module: DraftModule,
        batch: Batch,
        x_BLH: torch.Tensor,
        judged: Judged,
        num_steps: int,
    ) -> torch.Tensor:
        """Return what the head reads of the judged rows at each step, [S, R, H]."""
        h_BLH = module.fuse(batch.taps_BLX[:, :-2, self.drafter_columns])
        earlier: list[Keys] = []
        outs = []
        for _ in range(num_steps):
            out_BLH, feedback_BLH, keys = module(x_BLH, h_BLH, earlier)
            earlier.append(keys)
            outs.append(judged.rows(out_BLH))
            h_BLH = F.pad(feedback_BLH[:, :-1], (0, 0, 1, 0))
        return torch.stack(outs)

    def _weights(self, judged: Judged, labels_R: torch.Tensor) -> torch.Tensor:
        """Return what each judged row counts at each step, [S, R]; nothing if it is unknown."""
        steps_S1 = torch.arange(len(judged.at_SR), device=labels_R.device)[:, None]
        counts_S1 = judged.at_SR.sum(1, keepdim=True).clamp(min=1)
        return (judged.at_SR & (labels_R >= 0)) * (self.step_decay**steps_S1 / counts_S1)

    def _targets(self, batch: Batch, judged: Judged, labels_R: torch.Tensor) -> torch.Tensor:
        """Return what the target thinks of the judged rows, [R, N]: the same at every step."""
        # The state of token i + 1 says what comes after it.
        final_BLW = batch.taps_BLX[:, 1:-1, self.final_columns]
        return self.teacher.probs(judged.rows(final_BLW), labels_R.clamp(min=0))


def _chains(right_SBL: torch.Tensor) -> torch.Tensor:
    """Count the chains of guesses that were right so far, [S]. Each goes on one row further."""
    alive_BL, alive = right_SBL[0], [right_SBL[0].sum()]
    for right_BL in right_SBL[1:]:
        alive_BL = right_BL & F.pad(alive_BL[:, :-1], (1, 0))
        alive.append(alive_BL.sum())
    return torch.stack(alive)
