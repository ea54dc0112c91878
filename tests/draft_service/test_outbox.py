"""A client gets the newest tree, then the end, and never a stale tree or two ends."""

import asyncio

import pytest

from draft_service.outbox import Outbox
from protos.messages import DraftTree


def tree(committed_len):
    return DraftTree.plain(committed_len, 7)


async def test_trees_are_got_in_the_order_in_which_they_were_put():
    outbox = Outbox()
    for committed_len in (1, 2, 3):
        outbox.put(tree(committed_len))

        assert await outbox.get() == tree(committed_len)


async def test_a_tree_that_nobody_took_gives_way_to_the_next():
    outbox = Outbox()
    outbox.put(tree(1))
    outbox.put(tree(2))

    assert await outbox.get() == tree(2)


async def test_who_waits_is_woken():
    outbox = Outbox()
    waiting = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    assert not waiting.done()

    outbox.put(tree(1))

    assert await waiting == tree(1)


async def test_the_last_tree_comes_before_the_end():
    outbox = Outbox()
    outbox.put(tree(1))
    outbox.end()

    assert await outbox.get() == tree(1)
    assert await outbox.get() is None
    assert await outbox.get() is None


async def test_what_ended_a_session_first_is_told():
    outbox = Outbox()
    outbox.end(ValueError("first"))
    outbox.end(ValueError("second"))
    outbox.end()

    with pytest.raises(ValueError, match="first"):
        await outbox.get()
