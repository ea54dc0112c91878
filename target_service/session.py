"""The target's half of a session: which tokens are final, which rows the next forward computes.

Sans-I/O: knows neither tensors nor sockets. The state is `tokens` (committed), `cached_len` (how
many of them have rows in the KV cache) and the tree that waits for a verdict. A prompt is nothing
special: it is committed tokens without rows, followed by the tree of its last token alone. Nor is a
session that lost its pages to another: it has committed tokens without rows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protos.messages import MAX_TREE_NODES, DraftTree, SamplingParams
from target_service.forced_acceptance import ForcedAcceptance
from target_service.kv_memory import SessionPages

# Behind the committed tokens lie the nodes of a tree.
SPARE_SLOTS = MAX_TREE_NODES


@dataclass(frozen=True)
class Rows:
    """One session's part of a forward: a chain of committed tokens, then the nodes of a tree.

    `root` is the index of the tree's first row, or None for a chunk of a prompt that ends before.
    `pages` hold the prefix and all rows.
    """

    session: Session
    prefix_len: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    root: int | None
    pages: tuple[int, ...] = ()

    @property
    def num_slots(self) -> int:
        """Slots of the session that the forward needs."""
        return self.prefix_len + len(self.tokens)

    @property
    def num_prompt_rows(self) -> int:
        """Rows of committed tokens before the tree."""
        return len(self.tokens) if self.root is None else self.root

    @property
    def num_drafts(self) -> int:
        """Nodes of the tree without its root."""
        return 0 if self.root is None else len(self.tokens) - self.root - 1

    @property
    def tree(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokens and parents of the tree's rows, counted from its root."""
        assert self.root is not None, "a chunk of a prompt carries no tree"
        parents = (-1, *(parent - self.root for parent in self.parents[self.root + 1 :]))
        return self.tokens[self.root :], parents


@dataclass(eq=False)
class Session:
    """One session at the target."""

    session_id: str
    tokens: list[int]
    sampling: SamplingParams
    max_new_tokens: int
    vocab_size: int
    stop_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    cached_len: int = 0
    # Rows whose taps were told. Those of a session that computes them again are not told again.
    told_len: int = 0
    # Until so many tokens are committed, the session decodes plainly without being asked to.
    run_until: int = 0
    # For measurements: drafts are accepted right or wrong.
    forced: ForcedAcceptance | None = None
    tree: DraftTree | None = None
    memory: SessionPages = field(default_factory=SessionPages)
    prompt_len: int = field(init=False)
    # The tree is the root of a plain step, that nobody sent.
    _tree_is_own: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("a prompt needs at least one token, got none")
        self._check_vocabulary("prompt_token_ids", self.tokens)
        self._check_vocabulary("token ids of logit_bias", tuple(self.sampling.logit_bias))
        self._check_vocabulary("suppressed_token_ids", self.sampling.suppressed_token_ids)
        if len(set(self.sampling.suppressed_token_ids)) >= self.vocab_size:
            raise ValueError(
                f"suppressed_token_ids must leave a token of the vocabulary of {self.vocab_size}"
            )
        self.prompt_len = len(self.tokens)
        self.tree = DraftTree.plain(self.prompt_len, self.tokens[-1])

    @property
    def committed_len(self) -> int:
        return len(self.tokens)

    @property
    def num_new_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def num_slots(self) -> int:
        """Slots that all it has to compute takes, the tree's nodes included."""
        return self.committed_len - 1 + (len(self.tree.tokens) if self.tree else 1)

    def offer(self, tree: DraftTree) -> bool:
        """Take a tree to verify next. Returns False for a stale one, which is dropped.

        So is one that comes while the session decodes plainly on its own, also in the step under
        way when it is told to pause: that step's verdict answers it. Raises ValueError for a
        tree from the future, a second one before the verdict, one that does not grow from the last
        committed token, or one after all of max_new_tokens are committed. The last verdict may
        commit more than max_new_tokens: trees are not cut.
        """
        runs = self.tree is not None and (self.runs_on or self._tree_is_own)
        if tree.committed_len < self.committed_len or runs:
            return False
        if tree.committed_len > self.committed_len:
            raise ValueError(
                f"tree.committed_len is {tree.committed_len}, but only {self.committed_len} "
                "tokens are committed"
            )
        if tree.tokens[0] != self.tokens[-1]:
            raise ValueError(
                f"tree.tokens[0] must be the last committed token {self.tokens[-1]}, "
                f"got {tree.tokens[0]}"
            )
        self._check_vocabulary("tree.tokens", tree.tokens)
        if self.tree is not None:
            raise ValueError(f"a tree for committed_len {self.committed_len} is being verified")
        if self.num_new_tokens >= self.max_new_tokens:
            raise ValueError(f"all {self.max_new_tokens} tokens of max_new_tokens are committed")
        self.tree, self._tree_is_own = tree, False
        return True

    def run(self, until_len: int) -> bool:
        """Decode plainly until so many tokens are committed. Returns whether that begins now."""
        self.run_until = until_len
        return self._go_on() if self.tree is None else False

    @property
    def runs_on(self) -> bool:
        """Whether the next token is wanted without another word."""
        if self.committed_len >= self.run_until or self.num_new_tokens >= self.max_new_tokens:
            return False
        return not self.num_new_tokens or self.tokens[-1] not in self.stop_token_ids

    def _go_on(self) -> bool:
        if self.runs_on:
            self.tree = DraftTree.plain(self.committed_len, self.tokens[-1])
            self._tree_is_own = True
        return self.tree is not None

    def next_rows(self, chunk_len: int) -> Rows:
        """Return the rows of the next forward: at most `chunk_len` of a prompt, then the tree."""
        assert self.tree is not None, "a session without a tree is not ready"
        first = self.cached_len
        root = self.committed_len - 1
        last = min(root, first + chunk_len)
        chain = tuple(self.tokens[first:last])
        parents = range(-1, len(chain) - 1)
        if last < root:
            return Rows(self, first, chain, tuple(parents), None)
        shift = len(chain)
        tree_parents = (shift - 1, *(parent + shift for parent in self.tree.parents[1:]))
        return Rows(self, first, chain + self.tree.tokens, (*parents, *tree_parents), shift)

    def advance(self, num_rows: int) -> None:
        """Note that the next rows of the prompt are cached."""
        self.cached_len += num_rows
        assert self.cached_len < self.committed_len

    def commit(self, tokens: Sequence[int]) -> bool:
        """Append the tokens of a verdict. All but the last have rows in the cache.

        Returns whether the session decodes on plainly.
        """
        assert self.tree is not None, "nothing was verified"
        self.tree = None
        if self.forced is not None:
            self.forced.committed()
        self.tokens.extend(tokens)
        self.cached_len = self.committed_len - 1
        return self._go_on()

    def _check_vocabulary(self, name: str, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"{name} must be in [0, {self.vocab_size}), got {token}")
