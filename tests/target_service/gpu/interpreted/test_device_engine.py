"""The engine of a GPU, interpreted, says what the engine of the CPU says; and always the same.

Its tokens and paths are those of the CPU. Its floats are as near to those of float32 as the CPU's
are, and bitwise the same whoever shares a step, however large its bucket is, whether it is launched
or replayed.
"""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from kernels.gpu.graphs import Run
from target_service import device_step
from target_service.device_engine import DeviceEngine, Load
from target_service.engine import Outcome
from target_service.models.target_model import TargetModel
from tests.kernels.gpu.proofs.recorded_step import RecordedStep
from tests.target_service.gpu.tiny_steps import SAMPLINGS, TAPS, VOCAB, device_engine, verdict_of
from tests.target_service.played_batch import Batch
from tests.target_service.played_session import (
    CACHE_PAGES,
    PlayedSession,
    Told,
    forward_chain,
    load_model,
)

NUM_NEW = 6
TOGETHER = Load(rows=24, sessions=4, session_slots=192)
ALONE = Load(rows=16, sessions=1, session_slots=640)
LONG = [random.Random(1).randrange(VOCAB) for _ in range(65)]
PROMPTS = {
    "first": ("nucleus", LONG),
    "greedy": ("greedy", [3]),
    "shaped": ("everything", [9, 8, 9, 7, 5]),
    # Begins as the first one does, whose page it has.
    "second": ("greedy", [*LONG[:64], 1, 2]),
    "late": ("nucleus", [4, 4]),
}


def as_graph(run: Run) -> Run:
    """A model of captures: operations and launches with the addresses and numbers they had."""
    with RecordedStep() as record:
        run()
    return record.replay


def play(model: TargetModel, name: str, engine: DeviceEngine | None = None, chunk_len: int = 20):
    sampling, prompt = PROMPTS[name]
    return PlayedSession(
        model, prompt, SAMPLINGS[sampling], tap_layers=TAPS, chunk_len=chunk_len, engine=engine
    )


@pytest.fixture(scope="module", params=["llama", "kimi"])
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(models, kind) -> TargetModel:
    return models[kind]


@pytest.fixture(scope="module")
def plain(model) -> Mapping[str, Told]:
    """What the CPU tells, one token after the other."""
    return {name: play(model, name).decode(NUM_NEW) for name in PROMPTS}


@pytest.fixture(scope="module")
def company(model, plain) -> Mapping[str, Told]:
    """What sessions are told that come and go, with trees and plain steps, in few pages.

    One ends early, and the one after it has its pages. Prompts come in chunks, the last with a tree
    in the same step.
    """
    engine = device_engine(model, 5, TOGETHER)
    batch = Batch(engine, 5, vocab_size=VOCAB, step_rows=TOGETHER.rows, chunk_len=22)
    told, rng, sizes = {}, random.Random(3), []

    def opened(name: str):
        sampling, prompt = PROMPTS[name]
        client = batch.open(name, SAMPLINGS[sampling], prompt, plain[name])
        told[name] = client.told
        return client

    def step(count: int) -> None:
        for _ in range(count):
            for client in batch.clients.values():
                batch.offer(client, rng, nodes=3)
            sizes.append(batch.step(0.0))

    opened("first")
    greedy = opened("greedy")
    step(1)
    opened("shaped")
    step(3)
    batch.close(greedy)
    for name in ("second", "late"):
        opened(name)
    step(4)
    assert max(sizes) == 4
    assert batch.scheduler.memory.prefixes.num_unused == 0
    return told


def test_sessions_in_company_are_told_what_the_cpu_tells(company, plain):
    for name, told in company.items():
        length = min(len(told.tokens), NUM_NEW)
        assert told.tokens[:length] == plain[name].tokens[:length], name
    assert sum(len(told.tokens) for told in company.values()) > 20


@pytest.mark.parametrize("part", ["logprobs", "taps"])
def test_floats_are_as_near_to_float32_as_those_of_the_cpu(company, plain, directories, kind, part):
    exact = load_model(directories[kind], torch.float32)
    errors = [errors_of(part, exact, name, told, plain[name]) for name, told in company.items()]
    of_device, of_cpu = (torch.cat(of).square().mean() for of in zip(*errors, strict=True))
    assert 0 < of_device < 1.5 * of_cpu


def errors_of(part: str, exact: TargetModel, name: str, *told: Told) -> list[torch.Tensor]:
    """Return how far the device and the CPU are from float32, as far as both went."""
    prompt, length = PROMPTS[name][1], min(len(one.tokens) for one in told)
    text = [*prompt, *told[0].tokens[:length]]
    logits_RV, taps_RX = forward_chain(exact, text, TAPS)
    if part == "taps":
        rows = len(text) - 1
        return [(torch.cat(one.taps)[:rows] - taps_RX[:rows]).flatten() for one in told]
    chosen = torch.arange(len(prompt) - 1, len(text) - 1), torch.tensor(text[len(prompt) :])
    return [torch.tensor(one.logprobs[:length]) - logits_RV.log_softmax(-1)[chosen] for one in told]


def test_alone_in_other_buckets_and_chunks_as_a_graph_it_is_told_bitwise_the_same(model, company):
    engine = device_engine(model, CACHE_PAGES, ALONE, as_graph)
    alone, told = play(model, "shaped", engine, chunk_len=3), company["shaped"]
    alone.verify()
    while (done := alone.session.num_new_tokens) < NUM_NEW - 1:
        alone.verify(*chain(told.tokens[done : done + 3]))
    alone.told.assert_begins_as(told)


def chain(tokens: list[int]) -> tuple[list[int], list[int]]:
    return tokens, list(range(len(tokens)))


def second_branch(future: list[int]) -> tuple[list[int], list[int]]:
    """Return a tree of two branches, of which the second is right."""
    return [1 + future[0] % 9, future[0], future[1]], [0, 0, 2]


def branches(model: TargetModel, engine: DeviceEngine | None = None) -> list[Outcome]:
    """Play a session whose second branch is accepted, and what it sees of that afterwards."""
    right = play(model, "late").decode(3).tokens
    session = play(model, "late", engine)
    return [session.verify(), session.verify(*second_branch(right[1:])), session.verify()]


def small_engine(model: TargetModel) -> DeviceEngine:
    return device_engine(model, CACHE_PAGES, replace(ALONE, rows=4))


@pytest.mark.parametrize("kind", ["norms and biases", "all switches"])
def test_paths_and_rows_are_those_of_the_cpu_with_every_switch(models, kind):
    model = models[kind]
    of_device, of_cpu = branches(model, small_engine(model)), branches(model)
    assert of_cpu[1].verdict.path == (2, 3)
    assert list(map(verdict_of, of_device)) == list(map(verdict_of, of_cpu))
    for device, cpu in zip(of_device, of_cpu, strict=True):
        # The input of the first layer is what no rounding touches.
        assert torch.equal(*(of.taps_KX.chunk(3, dim=1)[TAPS.index(0)] for of in (device, cpu)))


@pytest.mark.parametrize("kind", ["norms and biases", "all switches"])
def test_a_path_that_is_not_moved_is_seen(models, kind, monkeypatch):
    model = models[kind]
    of_cpu = [verdict_of(outcome) for outcome in branches(model)]
    monkeypatch.setattr(device_step, "move_accepted", lambda *_: None)
    of_device = [verdict_of(outcome) for outcome in branches(model, small_engine(model))]
    assert of_device[:2] == of_cpu[:2]
    assert of_device[2] != of_cpu[2]
