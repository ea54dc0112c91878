"""EAGLE-3: one layer that reads the target's taps and guesses on from its own output.

Rows of committed tokens are computed from real taps, rows of guesses from the drafter's own
feedback. The next `extend` writes real rows over guessed ones; without that a session would lose
a tenth of its accept length. Guesses are chosen with the target's seed and filters, so that they
agree with it as often as they can.

Drafts are chains: `plan.top_k` is taken as 1.

Legend: T rows, X tapped width (layers * hidden), V target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from draft_service.drafters import Draft
from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.eagle3_model import Eagle3Model, States
from draft_service.drafters.eagle3_tensors import Eagle3Tensors
from draft_service.drafters.target_side import TargetSide
from draft_service.kv_pool import SessionPages
from draft_service.weights import open_drafter, read_config
from kernels.sampling import Filters, agreement_tokens, token_logprobs
from protos.messages import Plan, SamplingParams
from protos.pairing import Pairing, tokenizer_digest

__all__ = ["Eagle3Drafter", "Eagle3Follower", "TargetSide"]

# Rows of a prompt computed at once: bounds the attention's memory.
_PIECE = 512


class Eagle3Drafter:
    """A loaded drafter, shared by all sessions."""

    kind = "eagle3"
    blocking = True

    def __init__(
        self, drafter_id: str, model: Eagle3Model, pairing: Pairing, kv_tokens: int
    ) -> None:
        self.drafter_id = drafter_id
        self.pairing = pairing
        self._model = model
        self._pool = model.new_pool(kv_tokens)

    @classmethod
    def load(
        cls,
        drafter_id: str,
        drafter_dir: Path,
        target: TargetSide,
        tap_layers: Sequence[int] | None = None,
        kv_tokens: int = 65536,
    ) -> Eagle3Drafter:
        """Load a checkpoint directory for a target, with a KV cache for so many tokens.

        `tap_layers` (input-of-layer) overrides what the config says about them. Raises ValueError
        that names what does not fit, in the drafter itself or between it and the target.
        """
        config = Eagle3Config.from_json(read_config(drafter_dir), target.num_layers, tap_layers)
        tensors = Eagle3Tensors(config, open_drafter(drafter_dir), target)
        model = Eagle3Model(tensors, target.max_context_len)
        return cls(drafter_id, model, _pairing(config, drafter_dir, target), kv_tokens)

    def follow(self, first_row: int) -> Eagle3Follower:
        """Begin to follow a session whose first row will be at position `first_row`."""
        return Eagle3Follower(self._model, SessionPages(self._pool, first_row))


def _pairing(config: Eagle3Config, drafter_dir: Path, target: TargetSide) -> Pairing:
    digest = tokenizer_digest(drafter_dir)
    if digest and target.tokenizer_digest and digest != target.tokenizer_digest:
        raise ValueError(
            f"tokenizer.json: the drafter's digest is {digest}, "
            f"the target's is {target.tokenizer_digest}"
        )
    return Pairing(
        hidden_size=config.target_hidden_size,
        vocab_size=config.vocab_size,
        tap_layers=config.tap_layers,
        tap_dtype=target.tap_dtype,
        tokenizer_digest=digest,
    )


class Eagle3Follower:
    """The drafter's half of one session: its pages, and what its last real row came out as."""

    def __init__(self, model: Eagle3Model, pages: SessionPages) -> None:
        self._model = model
        self._pages = pages
        self._next_row = pages.first_row
        self._last: States | None = None

    @torch.inference_mode()
    def extend(self, base_len: int, tokens: Sequence[int], taps_TX: torch.Tensor | None) -> None:
        """Take in committed rows, over whatever was guessed there. See `Follower.extend`."""
        assert taps_TX is not None
        assert base_len == self._next_row, (base_len, self._next_row)
        tokens_T = torch.tensor(tokens, device=self._model.device)
        for start in range(0, len(tokens), _PIECE):
            rows = slice(start, start + _PIECE)
            h_TH = self._model.fuse(taps_TX[rows])
            states = self._model.forward(tokens_T[rows], h_TH, base_len + start, self._pages)
            self._last = states.last()
        self._next_row += len(tokens)

    @torch.inference_mode()
    def draft(self, tokens: Sequence[int], plan: Plan, sampling: SamplingParams) -> Draft:
        """Guess a chain of min(plan.steps, plan.draft_tokens - 1) tokens.

        The last real row gives the first of them for nothing; each further one takes a row.
        """
        num_drafts = min(plan.steps, plan.draft_tokens - 1)
        if self._last is None or not num_drafts:
            return Draft()
        assert self._next_row == len(tokens) - 1, (self._next_row, len(tokens))
        chosen: list[torch.Tensor] = []
        logprobs: list[torch.Tensor] = []
        states, last_real = self._last, self._next_row - 1
        for row in range(last_real, last_real + num_drafts):
            if row > last_real:
                states = self._model.forward(chosen[-1], states.feedback_RH, row, self._pages)
            token_1, logprob_1 = self._choose(states, row, sampling)
            chosen.append(token_1)
            logprobs.append(logprob_1)
        drafted, drafted_logprobs = torch.cat(chosen).tolist(), torch.cat(logprobs).tolist()
        return Draft(tuple(drafted), tuple(range(num_drafts)), tuple(drafted_logprobs))

    def close(self) -> None:
        """Give the pages back."""
        self._pages.close()

    def _choose(
        self, states: States, row: int, sampling: SamplingParams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the token that the target would put after row's, were it this drafter, [1].

        Row i has read token i + 1, so that is position i + 2. With it comes the drafter's own
        log-probability, at temperature 1 and before filters, [1].
        """
        logits_1V = self._model.logits(states.normed_RH)
        positions_1 = torch.tensor([row + 2], device=logits_1V.device)
        filters = Filters(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        token_1 = agreement_tokens(logits_1V, positions_1, sampling.seed, filters)
        return token_1, token_logprobs(logits_1V, token_1)
