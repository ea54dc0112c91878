"""A target that is a plain rule: what it would say to any tree can be written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protos.messages import DraftTree, TopLogprobs, Verdict, VerifyTimings

TIMINGS = VerifyTimings(1, 2, 3, 4)


@dataclass(frozen=True)
class RuleTarget:
    """Tokens follow from the two before and their position."""

    vocab_size: int

    def next_token(self, tokens: Sequence[int]) -> int:
        return (3 * tokens[-1] + tokens[-2] + len(tokens)) % self.vocab_size

    def continued(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return the tokens with as many more, as plain decoding gives them."""
        grown = list(tokens)
        for _ in range(count):
            grown.append(self.next_token(grown))
        return grown

    def verdict(self, tokens: Sequence[int], tree: DraftTree) -> Verdict:
        """Walk down from the root while a child carries the token of the rule."""
        node, path, grown = 0, [], self.continued(tokens, 1)
        while (child := _child(tree, node, grown[-1])) is not None:
            node = child
            path.append(child)
            grown.append(self.next_token(grown))
        added = tuple(grown[len(tokens) :])
        logprobs = tuple(-float(token) for token in added)
        tops = tuple(TopLogprobs((token, 0), (-float(token), -1e6)) for token in added)
        return Verdict(len(tokens), tuple(path), added, logprobs, tops, TIMINGS)


def _child(tree: DraftTree, node: int, token: int) -> int | None:
    pairs = zip(tree.parents, tree.tokens, strict=True)
    children = [index for index, pair in enumerate(pairs) if pair == (node, token)]
    return children[0] if children else None
