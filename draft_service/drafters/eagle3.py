"""EAGLE-3: one layer that reads the target's taps and guesses on from its own output.

Rows of committed tokens are computed from real taps, rows of guesses from the drafter's own
feedback. The next `extend` writes real rows over guessed ones; without that a session would lose
a tenth of its accept length.

Legend: R rows of a batch, H hidden, X tapped width (layers * hidden).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch

from draft_service.drafters import Draft, Rows, Wanted
from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.eagle3_follower import Eagle3Follower
from draft_service.drafters.eagle3_growth import grow
from draft_service.drafters.eagle3_model import Eagle3Model
from draft_service.drafters.eagle3_tensors import Eagle3Tensors
from draft_service.drafters.target_side import TargetSide
from draft_service.drafters.trained_with import trained_tokenizer_digest
from draft_service.kv_pool import KvPool, KvUsage
from draft_service.weights import open_drafter, read_config
from protos.pairing import Pairing


class Eagle3Drafter:
    """A loaded drafter, shared by all sessions."""

    kind = "eagle3"
    blocking = True

    def __init__(
        self, drafter_id: str, model: Eagle3Model, pairing: Pairing, kv_tokens: int
    ) -> None:
        self.drafter_id = drafter_id
        self.pairing = pairing
        self.max_context_len = model.max_context_len
        self._model = model
        self._kv = model.new_kv(kv_tokens)
        self._pool = KvPool(self._kv.num_pages)

    @classmethod
    def load(
        cls,
        drafter_id: str,
        drafter_dir: Path,
        target: TargetSide,
        tap_layers: Sequence[int] | None = None,
        *,
        kv_tokens: int,
    ) -> Eagle3Drafter:
        """Load a checkpoint directory for a target, with a KV cache for so many tokens.

        `tap_layers` (input-of-layer) overrides what the config says about them. Raises ValueError
        that names what does not fit, in the drafter itself or between it and the target, and
        OSError if there is not so much memory.
        """
        config = Eagle3Config.from_json(read_config(drafter_dir), target.num_layers, tap_layers)
        tensors = Eagle3Tensors(config, open_drafter(drafter_dir), target)
        model = Eagle3Model(tensors, target.max_context_len)
        return cls(drafter_id, model, pairing_of(config, drafter_dir, target), kv_tokens)

    @property
    def kv_usage(self) -> KvUsage:
        """How many KV pages are in use, and how many there are."""
        return self._pool.usage

    @property
    def target_ids(self) -> list[int] | None:
        """The target's id of each draft token; None if they are the same."""
        return self._model.target_ids

    def follow(self, first_row: int) -> Eagle3Follower:
        """Begin to follow a session whose first row will be at position `first_row`."""
        return Eagle3Follower(self._pool, first_row)

    @torch.inference_mode()
    def extend(self, batch: Sequence[Rows[Eagle3Follower]]) -> None:
        """Take in committed rows, over whatever was guessed there. See `Drafter.extend`."""
        assert all(rows.base_len == rows.follower.next_row for rows in batch), "rows are in order"
        tokens = [token for rows in batch for token in rows.tokens]
        taps_RX = torch.cat([rows.taps_TX for rows in batch if rows.taps_TX is not None])
        layouts = [rows.follower.chain(len(rows.tokens)) for rows in batch]
        h_RH = self._model.fuse(taps_RX)
        h_RH = self._model.forward(tokens, h_RH, layouts, self._kv)
        ends = accumulate(len(rows.tokens) for rows in batch)
        # Copies: they must not keep the other rows alive.
        last_of_all = h_RH[[end - 1 for end in ends]].split(1)
        for rows, last_1H in zip(batch, last_of_all, strict=True):
            rows.follower.take_in(len(rows.tokens), last_1H)

    @torch.inference_mode()
    def draft(self, batch: Sequence[Wanted[Eagle3Follower]]) -> list[Draft]:
        """Guess a tree for each session. See `Drafter.draft`."""
        drafts = grow(self._model, self._kv, batch)
        for wanted in batch:
            wanted.follower.forget_guesses()
        return drafts


def pairing_of(config: Eagle3Config, drafter_dir: Path, target: TargetSide) -> Pairing:
    """Return what must fit the target. Raises ValueError if their tokenizers are not the same."""
    digest = trained_tokenizer_digest(drafter_dir)
    if digest and target.tokenizer_digest and digest != target.tokenizer_digest:
        raise ValueError(
            f"tokenizer: the drafter's digest is {digest}, "
            f"the target's is {target.tokenizer_digest}"
        )
    return Pairing(
        hidden_size=config.target_hidden_size,
        vocab_size=config.vocab_size,
        tap_layers=config.tap_layers,
        tap_dtype=target.tap_dtype,
        tokenizer_digest=digest,
    )
