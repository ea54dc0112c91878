"""A draft service that means harm: `python -m tests.end_to_end.adversarial_drafter TARGET LISTEN`.

It follows the taps like an honest one, and answers every frame with trees that are wrong in one of
many ways: random branches, stale and future lengths, a wrong root, ids outside the vocabulary,
parents that do not exist, far too many nodes, floods. What it is asked a second time it knows, and
half of its trees hold the truth beside what is wrong. None of it may change a text or end one.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from protos import draft_pb2 as pb
from protos import draft_pb2_grpc, serving, target_pb2, target_pb2_grpc
from protos.pairing import Pairing
from protos.speculation_pb2 import DraftTree, TapFrame


def random_tree(committed_len: int, root: int, vocab_size: int, chance: random.Random) -> DraftTree:
    """Return a tree of random shape and tokens that is well formed."""
    nodes = chance.randint(1, 32)
    tokens = [root, *(chance.randrange(vocab_size) for _ in range(nodes))]
    parents = [-1, *(chance.randrange(node) for node in range(1, nodes + 1))]
    return DraftTree(committed_len=committed_len, tokens=tokens, parents=parents)


def treacherous_tree(
    committed_len: int, root: int, future: Sequence[int], vocab_size: int, chance: random.Random
) -> DraftTree:
    """Return the text as it will be, each token beside one that leads astray."""
    tokens, parents, parent = [root], [-1], 0
    for token in future[: chance.randint(1, 8)]:
        tokens += [chance.randrange(vocab_size), token]
        parents += [parent, parent]
        parent = len(tokens) - 1
    return DraftTree(committed_len=committed_len, tokens=tokens, parents=parents)


def spoil(tree: DraftTree, vocab_size: int, chance: random.Random) -> list[DraftTree]:
    """Return the tree, spoilt in one way or not at all."""
    match chance.randrange(9):
        case 0:
            tree.tokens[0] = (tree.tokens[0] + 1) % vocab_size
        case 1:
            tree.tokens[-1] = vocab_size + chance.randrange(1000)
        case 2:
            tree.committed_len = chance.randrange(tree.committed_len)
        case 3:
            tree.committed_len += 1 + chance.randrange(1 << 40)
        case 4:
            tree.tokens.extend([0] * 500)
            tree.parents.extend([0] * 500)
        case 5:
            tree.parents[-1] = 1 << 30
        case 6:
            return [tree] * 50
        case 7:
            return []
    return [tree]


class AdversarialServicer(draft_pb2_grpc.DraftServiceServicer):
    """DraftService, badly meant."""

    def __init__(self, target: target_pb2_grpc.TargetServiceStub, vocab_size: int) -> None:
        self._target = target
        self._vocab_size = vocab_size
        self._chance = random.Random(0)
        # What the last session of each prompt came to.
        self._texts: dict[tuple[int, ...], list[int]] = {}

    async def Draft(  # noqa: N802
        self, requests: AsyncIterator[pb.DraftRequest], context: Any
    ) -> AsyncIterator[pb.DraftResponse]:
        """Follow the session, answer with rubbish."""
        opened = (await anext(aiter(requests))).open
        yield pb.DraftResponse(opened=pb.DraftOpened(drafter_id="adversary"))
        request = target_pb2.StreamTapsRequest(
            session_id=opened.session_id,
            pairing=Pairing(0, self._vocab_size, ()).to_proto(),
            known_len=len(opened.token_ids),
        )
        prompt, text = tuple(opened.token_ids[: opened.prompt_len]), list(opened.token_ids)
        known = self._texts.get(prompt, [])
        call = self._target.StreamTaps(request)
        try:
            async for response in call:
                text += response.attached.tokens
                if response.frame.tokens:
                    text[response.frame.base_len + 1 :] = response.frame.tokens
                    for tree in self._trees(response.frame, known):
                        yield pb.DraftResponse(tree=tree)
        finally:
            self._texts[prompt] = text
            call.cancel()

    def _trees(self, frame: TapFrame, known: Sequence[int]) -> list[DraftTree]:
        root, length = frame.tokens[-1], frame.committed_len
        future = known[length:] if known[length - 1 : length] == [root] else []
        if future and self._chance.random() < 0.5:
            return [treacherous_tree(length, root, future, self._vocab_size, self._chance)]
        tree = random_tree(length, root, self._vocab_size, self._chance)
        return spoil(tree, self._vocab_size, self._chance)


async def main(target_address: str, listen: str) -> None:
    """Serve until a signal."""
    stub = target_pb2_grpc.TargetServiceStub(serving.open_channel(target_address))
    info = await stub.GetTarget(target_pb2.GetTargetRequest(), wait_for_ready=True)
    server = serving.new_server()
    servicer = AdversarialServicer(stub, info.pairing.vocab_size)
    draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server)
    await serving.serve(server, listen, "adversary")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
