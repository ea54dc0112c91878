"""Whoever shares a step, a page or a beginning with it, a session is told what it is told alone.

The real scheduler and the real engine, on a tiny model: sessions come and go at any moment, trees
are right or wrong, pages are short. The same means: the same tokens, and bitwise the same logprobs
and taps, as when each session decodes one token after the other in a cache of its own.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from target_service.engine import Engine
from target_service.kv_memory import PAGE_LEN
from target_service.models.target_model import TargetModel
from target_service.prefix_cache import PrefixCache
from tests.target_service.engine_cases import (
    NUM_NEW,
    PROMPT_LENS,
    SAMPLINGS,
    SIZES,
    TAPS,
    VOCAB,
    prompt_of,
)
from tests.target_service.played_batch import Batch
from tests.target_service.played_session import PlayedSession, Told

CHUNK_LEN = 40


def batch_of(model: TargetModel, num_pages: int) -> Batch:
    engine = Engine(model, TAPS, num_pages)
    return Batch(engine, num_pages, vocab_size=VOCAB, step_rows=128, chunk_len=CHUNK_LEN)


@settings(max_examples=40)
@given(
    model=st.sampled_from(list(SIZES)),
    cases=st.lists(
        st.tuples(st.sampled_from(list(SAMPLINGS)), st.sampled_from(PROMPT_LENS)),
        min_size=2,
        max_size=8,
    ),
    num_pages=st.sampled_from([5, 8, 30]),
    nodes=st.sampled_from([0, 5, 63]),
    rng=st.randoms(use_true_random=True),
)
def test_sessions_in_any_company_tell_what_each_tells_alone(
    models, plain, model, cases, num_pages, nodes, rng
):
    batch, finished, now = batch_of(models[model], num_pages), 0, 0.0
    waiting = [(f"s{i}", *case) for i, case in enumerate(cases)]
    for _ in range(3000):
        if waiting and rng.random() < 0.3:
            name, sampling, length = waiting.pop()
            reference = plain(model, sampling, length)
            batch.open(name, SAMPLINGS[sampling], prompt_of(length), reference)
        for client in list(batch.clients.values()):
            if client.done or rng.random() < 0.005:
                client.told.tokens and client.told.assert_begins_as(client.reference)
                finished += client.done
                batch.close(client)
            elif rng.random() < 0.7:
                batch.offer(client, rng, nodes)
        now += 0.1 if batch.step(now) else 1.0
        if not (waiting or batch.clients):
            break
    assert not batch.clients, "somebody never ended"
    assert batch.scheduler.memory.num_held == 0


def test_many_sessions_share_every_step(models, plain):
    """Control: what is compared above really ran together."""
    batch = batch_of(models["float32"], 30)
    for i, sampling in enumerate(SAMPLINGS):
        reference = plain("float32", sampling, 17)
        batch.open(f"s{i}", SAMPLINGS[sampling], prompt_of(17), reference)
    rng, sizes = random.Random(0), [batch.step(0.0), batch.step(0.0)]
    for _ in range(5):
        for client in batch.clients.values():
            batch.offer(client, rng, 5)
        sizes.append(batch.step(0.0))
    assert sizes == [3, 1] + [3] * 5


def test_forty_pages_serve_sixteen_sessions_by_turns(models):
    """Each needs up to four of them with its tree: some lose theirs, and all complete."""
    batch, rng = batch_of(models["float32"], 40), random.Random(1)
    prompts = [prompt_of(130)[i:] for i in range(16)]
    clients = [
        batch.open(f"s{i}", SAMPLINGS["nucleus"], prompt, alone(models, prompt))
        for i, prompt in enumerate(prompts)
    ]
    for step in range(2000):
        for client in clients:
            batch.offer(client, rng, 63)
        batch.step(step / 10)
        if all(client.done for client in clients):
            break
    for client in clients:
        assert client.done
        client.told.assert_begins_as(client.reference)
    assert batch.scheduler.num_preempted > 0


def alone(models, prompt: list[int]) -> Told:
    """What plain decoding tells of a prompt."""
    played = PlayedSession(
        models["float32"], prompt, SAMPLINGS["nucleus"], tap_layers=TAPS, chunk_len=64
    )
    return played.decode(NUM_NEW)


class TestTheLawCanFail:
    """Each of these mistakes must be seen, or the law above proves nothing."""

    def breaks(self, models, plain) -> bool:
        batch, rng = batch_of(models["float32"], 12), random.Random(2)
        for i in range(4):
            reference = plain("float32", "nucleus", 130)
            batch.open(f"s{i}", SAMPLINGS["nucleus"], prompt_of(130), reference)
        try:
            for step in range(300):
                for client in batch.clients.values():
                    batch.offer(client, rng, 30)
                batch.step(step / 10)
            for client in batch.clients.values():
                client.told.assert_begins_as(client.reference)
        except AssertionError:
            return True
        return False

    def test_nothing_is_seen_where_nothing_is_wrong(self, models, plain):
        assert not self.breaks(models, plain)

    def test_the_beginning_of_another_text(self, models, plain, monkeypatch):
        def first_child(self, tokens):
            found, children = [], self._roots
            while children and len(found) < len(tokens) // PAGE_LEN:
                found.append(next(iter(children.values())))
                children = found[-1].children
            return found

        assert not self.second_text_breaks(models, plain)
        monkeypatch.setattr(PrefixCache, "find", first_child)
        assert self.second_text_breaks(models, plain)

    def second_text_breaks(self, models, plain) -> bool:
        """Whether a text that differs from another in its second page is told something else."""
        batch, prompt = batch_of(models["float32"], 12), prompt_of(130)
        second = prompt[:64] + prompt[:63:-1]
        batch.open("first", SAMPLINGS["nucleus"], prompt, plain("float32", "nucleus", 130))
        for _ in range(4):
            batch.step(0.0)
        client = batch.open("second", SAMPLINGS["nucleus"], second, alone(models, second))
        for _ in range(4):
            batch.step(0.0)
        return client.told.logprobs[0] != client.reference.logprobs[0]

    @pytest.mark.parametrize("mistake", [(2, 1, 0), (1, 0, 2)], ids=str)
    def test_pages_in_another_order(self, models, plain, monkeypatch, mistake):
        step = Engine.step

        def mistaken(self, batch):
            wrong = [
                replace(rows, pages=tuple(rows.pages[i] for i in mistake if i < len(rows.pages)))
                for rows in batch
            ]
            return step(self, wrong)

        monkeypatch.setattr(Engine, "step", mistaken)
        assert self.breaks(models, plain)
