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
from target_service.device_engine import DeviceEngine, Load
from target_service.models.llama import Llama
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
ALONE = Load(rows=24, sessions=1, session_slots=640)
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


def play(model: Llama, name: str, engine: DeviceEngine | None = None, chunk_len: int = 20):
    sampling, prompt = PROMPTS[name]
    return PlayedSession(
        model, prompt, SAMPLINGS[sampling], tap_layers=TAPS, chunk_len=chunk_len, engine=engine
    )


@pytest.fixture(scope="module")
def plain(models) -> Mapping[str, Told]:
    """What the CPU tells, one token after the other."""
    return {name: play(models["llama"], name).decode(NUM_NEW) for name in PROMPTS}


@pytest.fixture(scope="module")
def company(models, plain) -> Mapping[str, Told]:
    """What sessions are told that come and go, with trees and plain steps, in few pages.

    One ends early, and the one after it has its pages. Prompts come in chunks, the last with a tree
    in the same step.
    """
    engine = device_engine(models["llama"], 5, TOGETHER)
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
                batch.offer(client, rng, nodes=5)
            sizes.append(batch.step(0.0))

    first, greedy = opened("first"), opened("greedy")
    step(1)
    opened("shaped")
    step(3)
    batch.close(greedy)
    opened("second"), opened("late")
    step(4)
    assert max(sizes) == 4
    assert batch.scheduler.memory.prefixes.num_unused == 0
    return told


def test_sessions_in_company_are_told_what_the_cpu_tells(company, plain):
    for name, told in company.items():
        length = min(len(told.tokens), NUM_NEW)
        assert told.tokens[:length] == plain[name].tokens[:length], name
    print([len(told.tokens) for told in company.values()])
    assert sum(len(told.tokens) for told in company.values()) > 20


def test_floats_are_as_near_to_float32_as_those_of_the_cpu(company, plain, directories):
    exact = load_model(directories["llama"], torch.float32)
    for part in ("logprobs", "taps"):
        errors = [of_part(exact, name, told, plain[name], part) for name, told in company.items()]
        of_device, of_cpu = (
            torch.cat(of).square().mean().sqrt() for of in zip(*errors, strict=True)
        )
        print(part, of_device, of_cpu)
        assert of_device <= 1.5 * of_cpu


def of_part(exact: Llama, name: str, told: Told, reference: Told, part: str):
    """Return how far the device and the CPU are from float32, as far as both went."""
    prompt, length = PROMPTS[name][1], min(len(told.tokens), NUM_NEW)
    logits_RV, taps_RX = forward_chain(exact, prompt + told.tokens, TAPS)
    if part == "taps":
        rows = len(prompt) + length - 1
        return [(torch.cat(of.taps)[:rows] - taps_RX[:rows]).flatten() for of in (told, reference)]
    chosen_RV = logits_RV[len(prompt) - 1 :][:length].log_softmax(-1)
    right = chosen_RV.gather(1, torch.tensor(told.tokens[:length])[:, None])[:, 0]
    return [torch.tensor(of.logprobs[:length]) - right for of in (told, reference)]


@pytest.mark.parametrize("name", ["shaped", "second"])
def test_alone_in_other_buckets_as_a_graph_they_are_told_bitwise_the_same(models, company, name):
    capture = as_graph if name == "shaped" else None
    alone = play(models["llama"], name, device_engine(models["llama"], CACHE_PAGES, ALONE, capture))
    told = company[name]
    while alone.session.num_new_tokens < 5:
        future = told.tokens[alone.session.num_new_tokens :]
        alone.verify(*(chain(future[:3]) if alone.session.num_new_tokens else ()))
    alone.told.assert_begins_as(told)


def chain(tokens: list[int]) -> tuple[list[int], list[int]]:
    return tokens, list(range(len(tokens)))


def second_branch(future: list[int]) -> tuple[list[int], list[int]]:
    """Return a tree of two branches, of which the second is right."""
    return [1 + future[0] % 9, future[0], future[1]], [0, 0, 2]


class TestBranches:
    """A session whose second branch is accepted, with a device's engine and the CPU's."""

    def verdicts(self, model: Llama, engine: DeviceEngine | None = None) -> tuple[list, list]:
        reference = play(model, "shaped").decode(4).tokens
        session = play(model, "shaped", engine, chunk_len=3)
        told = [session.verify()]
        told += [session.verify(*second_branch(reference[1:3]))]
        told += [session.verify()]
        return told

    def engine(self, model: Llama) -> DeviceEngine:
        return device_engine(model, CACHE_PAGES, replace(ALONE, rows=16))

    @pytest.mark.parametrize("kind", ["llama", "norms and biases"])
    def test_paths_tokens_and_rows_are_those_of_the_cpu(self, models, kind):
        of_cpu = self.verdicts(models[kind])
        of_device = self.verdicts(models[kind], self.engine(models[kind]))
        assert of_cpu[1].verdict.path == (2, 3)
        for device, cpu in zip(of_device, of_cpu, strict=True):
            assert verdict_of(device) == verdict_of(cpu)
            assert len(device.taps_KX) == len(cpu.taps_KX)
