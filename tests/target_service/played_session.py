"""A session played against the engine without a server, and everything it was told."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from kernels.attention import lay_out_rows
from kernels.kv_pages import values_of_pages
from protos.messages import DraftTree, SamplingParams, TopLogprobs
from target_service.engine import Engine, Outcome, StepEngine
from target_service.kv_cache import KvCache
from target_service.kv_memory import slots_of
from target_service.models import build_model, model_config
from target_service.models.target_model import TargetModel
from target_service.session import Rows, Session
from target_service.weights import Weights, read_config

MAX_CONTEXT_LEN = 512
CACHE_PAGES = 10


def load_model(path: Path, dtype: torch.dtype | None = None) -> TargetModel:
    return build_model(model_config(read_config(path)), Weights(path, dtype), MAX_CONTEXT_LEN)


def forward_chain(
    model: TargetModel, token_ids: Sequence[int], tap_layers: Sequence[int] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 logits and taps of every token of a sequence, computed in one forward."""
    with torch.inference_mode():
        cache = KvCache(model.kv_shape, CACHE_PAGES, 0)
        layout = lay_out_rows(cache.pages(range(CACHE_PAGES)), 0, range(-1, len(token_ids) - 1))
        h_RH, taps_RX = model.forward(torch.tensor(token_ids), [layout], cache.kv, tap_layers)
        return model.logits(h_RH), taps_RX


@dataclass
class Told:
    """What a session was told: one entry a generated token, one tap a row of the cache."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    taps: list[torch.Tensor] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.taps.append(outcome.taps_KX)
        if outcome.verdict:
            self.tokens += outcome.verdict.tokens
            self.logprobs += outcome.verdict.logprobs
            self.top_logprobs += outcome.verdict.top_logprobs

    def assert_begins_as(self, other: "Told") -> None:
        """Assert the same tokens and bitwise the same floats as `other`, as far as both go."""
        length = min(len(self.tokens), len(other.tokens))
        assert length
        assert self.tokens[:length] == other.tokens[:length]
        assert self.logprobs[:length] == other.logprobs[:length]
        assert self.top_logprobs[:length] == other.top_logprobs[:length]
        ours, theirs = torch.cat(self.taps), torch.cat(other.taps)
        rows = min(len(ours), len(theirs))
        assert torch.equal(ours[:rows], theirs[:rows])


class PlayedSession:
    """A session and its pages, driven step by step. Pages are taken from the last one on."""

    def __init__(
        self,
        model: TargetModel,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        tap_layers: Sequence[int] = (),
        chunk_len: int = 1,
        engine: StepEngine | None = None,
    ) -> None:
        """`engine` is another one than the CPU's, with as many pages."""
        vocab_size = model.config.vocab_size
        self.engine = engine or Engine(model, tap_layers, CACHE_PAGES)
        self.session = Session("played", list(prompt), sampling, MAX_CONTEXT_LEN, vocab_size)
        self.pages = tuple(reversed(range(CACHE_PAGES)))
        self.chunk_len = chunk_len
        self.told = Told()

    def force(self, tokens: Sequence[int]) -> None:
        """Commit tokens as if they had been generated. Their rows are computed by the next step."""
        assert self.session.cached_len == 0
        self.session.tokens += tokens
        self.session.tree = None

    def verify(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> Outcome:
        """Verify a tree of these nodes below the root; the first one waits for the prompt."""
        session = self.session
        if session.tree is None:
            tree = ((session.tokens[-1], *tokens), (-1, *parents))
            assert session.offer(DraftTree(session.committed_len, *tree))
        while (rows := session.next_rows(self.chunk_len)).root is None:
            self._step(rows)
            session.advance(len(rows.tokens))
        outcome = self._step(rows)
        assert outcome.verdict
        session.commit(outcome.verdict.tokens)
        return outcome

    def cached(self) -> list[torch.Tensor]:
        """Return keys, values and taps of all rows in the cache, the first two layer by layer."""
        assert isinstance(self.engine, Engine)
        cache, rows = self.engine._cache, self.session.cached_len
        parts = [cache.taps.of(slots_of(self.pages, range(rows)))]
        for layer in range(cache.kv.keys_PLCKD.shape[1]):
            keys_CSD, values_CBJD2 = cache.kv.of_session(layer, cache.pages(self.pages))
            parts += [keys_CSD[:, :rows], values_of_pages(values_CBJD2)[:, :rows]]
        return parts

    def decode(self, num_new_tokens: int) -> Told:
        """Decode plainly until so many tokens are generated; return what was told."""
        while self.session.num_new_tokens < num_new_tokens:
            self.verify()
        return self.told

    def _step(self, rows: Rows) -> Outcome:
        (outcome,) = self.engine.step([replace(rows, pages=self.pages)])
        self.told.add(outcome)
        return outcome


def random_tree(
    rng: random.Random, future: Sequence[int], vocab_size: int, num_nodes: int, hit_rate: float
) -> tuple[list[int], list[int]]:
    """Return tokens and parents of nodes below a root after which the target says `future`.

    A node whose ancestors are all right is right itself at `hit_rate`, whatever its index: accepted
    paths skip nodes.
    """
    tokens, parents = [], []
    right: dict[int, int] = {0: 0}
    for node in range(1, num_nodes + 1):
        parent = rng.choice([rng.randrange(node), max(right), max(right)])
        depth = right.get(parent)
        token = rng.randrange(vocab_size)
        if depth is not None and depth < len(future) and rng.random() < hit_rate:
            token = future[depth]
            right[node] = depth + 1
        tokens.append(token)
        parents.append(parent)
    return tokens, parents
