"""Values of the wire as frozen dataclasses, each of which converts itself and refuses nonsense.

Nothing here knows tensors or sockets, so the sans-I/O classes of all services may speak it.
Everything that comes from outside passes a `from_proto`, which raises ValueError naming the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from protos import speculation_pb2 as pb

MAX_TREE_NODES = 64
MAX_TOKEN_ENTRIES = 1024
_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_id(name: str, value: str) -> str:
    """Return `value` if it is a legal session, request or drafter id."""
    if not _ID.fullmatch(value):
        raise ValueError(f"{name} must be 1 to 64 characters of [A-Za-z0-9_.-], got {value[:80]!r}")
    return value


@dataclass(frozen=True)
class Microseconds:
    """Base of the timings: named microseconds that add up over rounds."""

    @classmethod
    def from_proto(cls, message: Any) -> Any:
        return cls(**{f.name: getattr(message, f.name) for f in fields(cls)})

    def __add__(self, other: Any) -> Any:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return type(self)(**sums)


@dataclass(frozen=True)
class DraftTimings(Microseconds):
    """Where a draft's time went. See speculation.proto."""

    queue_us: int = 0
    extend_us: int = 0
    grow_us: int = 0

    def to_proto(self) -> pb.DraftTimings:
        return pb.DraftTimings(**vars(self))


@dataclass(frozen=True)
class VerifyTimings(Microseconds):
    """Where a verification's time went, and how many rows shared it. See speculation.proto."""

    queue_us: int = 0
    forward_us: int = 0
    accept_us: int = 0
    rows: int = 0

    def to_proto(self) -> pb.VerifyTimings:
        return pb.VerifyTimings(**vars(self))


@dataclass(frozen=True)
class DraftTree:
    """A tree of guesses. Node 0 is the root, the last committed token; only its parent is -1."""

    committed_len: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    drafter_id: str = ""
    timings: DraftTimings = DraftTimings()

    def __post_init__(self) -> None:
        if not 1 <= len(self.tokens) <= MAX_TREE_NODES:
            raise ValueError(f"a tree has 1 to {MAX_TREE_NODES} nodes, got {len(self.tokens)}")
        if len(self.parents) != len(self.tokens) or len(self.logprobs) not in (0, len(self.tokens)):
            raise ValueError(
                f"a tree's lists must be equally long, got {len(self.tokens)} tokens, "
                f"{len(self.parents)} parents, {len(self.logprobs)} logprobs"
            )
        if self.parents[0] != -1:
            raise ValueError(f"the root's parent must be -1, got {self.parents[0]}")
        for node, parent in enumerate(self.parents[1:], start=1):
            if not 0 <= parent < node:
                raise ValueError(f"the parent of node {node} must be in [0, {node}), got {parent}")

    @classmethod
    def plain(cls, committed_len: int, root: int) -> DraftTree:
        """Return the tree of the root alone: plain decoding."""
        return cls(committed_len, (root,), (-1,))

    @classmethod
    def chain(cls, committed_len: int, tokens: tuple[int, ...], **rest: Any) -> DraftTree:
        """Return a tree without branches; tokens[0] is the root."""
        return cls(committed_len, tokens, tuple(range(-1, len(tokens) - 1)), **rest)

    @property
    def num_drafts(self) -> int:
        """Nodes besides the root."""
        return len(self.tokens) - 1

    def trimmed(self, num_nodes: int) -> DraftTree:
        """Return the first nodes. Parents precede children, so any prefix is a tree."""
        if num_nodes >= len(self.tokens):
            return self
        tokens, parents = self.tokens[:num_nodes], self.parents[:num_nodes]
        return DraftTree(
            self.committed_len,
            tokens,
            parents,
            self.logprobs[:num_nodes],
            self.drafter_id,
            self.timings,
        )

    @classmethod
    def from_proto(cls, message: pb.DraftTree) -> DraftTree:
        return cls(
            message.committed_len,
            tuple(message.tokens),
            tuple(message.parents),
            tuple(message.logprobs),
            message.drafter_id,
            DraftTimings.from_proto(message.timings),
        )

    def to_proto(self) -> pb.DraftTree:
        return pb.DraftTree(
            committed_len=self.committed_len,
            tokens=self.tokens,
            parents=self.parents,
            logprobs=self.logprobs,
            drafter_id=self.drafter_id,
            timings=self.timings.to_proto(),
        )


@dataclass(frozen=True)
class TopLogprobs:
    """The likeliest tokens at one position, best first."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @classmethod
    def from_proto(cls, message: pb.TopLogprobs) -> TopLogprobs:
        return cls(tuple(message.token_ids), tuple(message.logprobs))

    def to_proto(self) -> pb.TopLogprobs:
        return pb.TopLogprobs(token_ids=self.token_ids, logprobs=self.logprobs)


@dataclass(frozen=True)
class Verdict:
    """The target's answer to a tree: the accepted path, and the tokens it commits."""

    committed_len: int
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[TopLogprobs, ...] = ()
    timings: VerifyTimings = VerifyTimings()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.path) + 1:
            raise ValueError(
                f"a verdict commits its path and one token, got {len(self.path)} nodes "
                f"and {len(self.tokens)} tokens"
            )

    @classmethod
    def from_proto(cls, message: pb.Verdict) -> Verdict:
        return cls(
            message.committed_len,
            tuple(message.path),
            tuple(message.tokens),
            tuple(message.logprobs),
            tuple(TopLogprobs.from_proto(top) for top in message.top_logprobs),
            VerifyTimings.from_proto(message.timings),
        )

    def to_proto(self) -> pb.Verdict:
        return pb.Verdict(
            committed_len=self.committed_len,
            path=self.path,
            tokens=self.tokens,
            logprobs=self.logprobs,
            top_logprobs=[top.to_proto() for top in self.top_logprobs],
            timings=self.timings.to_proto(),
        )


@dataclass(frozen=True)
class Plan:
    """What the policy asks of a drafter: depth, children of a node, nodes with the root."""

    steps: int
    top_k: int = 1
    draft_tokens: int = MAX_TREE_NODES

    def __post_init__(self) -> None:
        for name, low, high in (
            ("steps", 0, MAX_TREE_NODES - 1),
            ("top_k", 1, MAX_TREE_NODES - 1),
            ("draft_tokens", 1, MAX_TREE_NODES),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"plan.{name} must be in [{low}, {high}], got {value}")

    @classmethod
    def from_proto(cls, message: pb.Plan) -> Plan:
        return cls(message.steps, message.top_k or 1, message.draft_tokens or MAX_TREE_NODES)

    def to_proto(self) -> pb.Plan:
        return pb.Plan(steps=self.steps, top_k=self.top_k, draft_tokens=self.draft_tokens)


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. Defaults, meaning and limits as in speculation.proto."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    suppressed_token_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    top_logprobs: int | None = None

    def __post_init__(self) -> None:
        self._check("temperature", 0 <= self.temperature <= 100, "[0, 100]")
        self._check("top_k", self.top_k >= -1, "[-1, vocabulary]")
        self._check("top_p", 0 < self.top_p <= 1, "(0, 1]")
        self._check("min_p", 0 <= self.min_p <= 1, "[0, 1]")
        self._check("seed", 0 <= self.seed < 2**64, "[0, 2^64)")
        self._check("presence_penalty", -2 <= self.presence_penalty <= 2, "[-2, 2]")
        self._check("frequency_penalty", -2 <= self.frequency_penalty <= 2, "[-2, 2]")
        self._check("repetition_penalty", 0 < self.repetition_penalty <= 10, "(0, 10]")
        self._check("top_logprobs", 0 <= (self.top_logprobs or 0) <= 20, "[0, 20]")
        for name in ("logit_bias", "suppressed_token_ids"):
            if len(getattr(self, name)) > MAX_TOKEN_ENTRIES:
                raise ValueError(
                    f"{name} takes at most {MAX_TOKEN_ENTRIES} entries, "
                    f"got {len(getattr(self, name))}"
                )
        for token, bias in self.logit_bias.items():
            if not -100 <= bias <= 100:
                raise ValueError(f"logit_bias[{token}] must be in [-100, 100], got {bias}")

    def _check(self, name: str, holds: bool, limit: str) -> None:
        if not holds:
            raise ValueError(f"{name} must be in {limit}, got {getattr(self, name)}")

    @property
    def penalizes(self) -> bool:
        """Whether a token's logit depends on the tokens before it."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)

    @property
    def shapes_logits(self) -> bool:
        """Whether logits are changed before filters see them, at some node at least."""
        suppresses = bool(self.suppressed_token_ids) and self.min_new_tokens > 0
        return self.penalizes or bool(self.logit_bias) or suppresses

    @classmethod
    def from_proto(cls, message: pb.SamplingParams) -> SamplingParams:
        given = {f.name: value for f, value in message.ListFields()}
        given["logit_bias"] = dict(message.logit_bias)
        given["suppressed_token_ids"] = tuple(message.suppressed_token_ids)
        return cls(**given)

    def to_proto(self) -> pb.SamplingParams:
        return pb.SamplingParams(**vars(self))
