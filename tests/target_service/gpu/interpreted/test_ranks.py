"""Two ranks are one target: processes with half of every layer each, interpreted, over gloo.

What a session is told is what it is told in company, bit for bit, and both ranks found the same
bits. Its tokens are those of the whole model on the CPU, and its floats are as near to float32.
"""

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from target_service.config import TargetConfig
from target_service.device_engine import DeviceEngine, Load
from target_service.device_steps import DeviceSteps, Place
from target_service.engine import Engine, Outcome
from target_service.models.target_model import TargetModel
from target_service.ranks import Ranks
from target_service.session import SPARE_SLOTS
from tests.target_service.gpu.interpreted_rank import MODULE
from tests.target_service.gpu.step_bits import BITS, keep_bits
from tests.target_service.gpu.tiny_steps import CPU, SAMPLINGS, VOCAB, tree
from tests.target_service.played_batch import Batch
from tests.target_service.played_session import PlayedSession, Told, forward_chain, load_model

PAGES = 10
CONTEXT_LEN = PAGES * 64 - SPARE_SLOTS
NUM_NEW = 4
TAPS = (1, 0, 2)
PROMPTS = {"shaped": ("everything", [9, 8, 9, 7, 5]), "greedy": ("greedy", [3, 1])}


@pytest.fixture(scope="module", params=["two key-value heads", "kimi in halves"])
def kind(request) -> str:
    """A model with norms on heads and biases of sums, and one with latent attention and experts."""
    return request.param


@pytest.fixture(scope="module")
def directory(directories, kind) -> Path:
    return directories[kind]


@pytest.fixture(scope="module")
def model(models, kind) -> TargetModel:
    return models[kind]


def settings(directory: Path) -> TargetConfig:
    return TargetConfig(
        model=directory,
        kv_tokens=PAGES * 64,
        max_context_len=CONTEXT_LEN,
        max_sessions=4,
        step_rows=128,
        tap_layers=",".join(map(str, TAPS)),
        threads=1,
    )


@pytest.fixture(scope="module")
def bits(tmp_path_factory, kind) -> Iterator[tuple[Path, Path]]:
    """The files of what came of each step, of both ranks."""
    files = tuple(tmp_path_factory.mktemp("bits") / name for name in ("first", "second"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BITS, str(files[1]))
        patch.setattr(DeviceSteps, "run", DeviceSteps.run)
        keep_bits(files[0])
        yield files


@pytest.fixture(scope="module")
def engine(directory, model, bits) -> Iterator[DeviceEngine]:
    """The engine of the first rank. The other one is a process."""
    config = settings(directory)
    with Ranks(config, [CPU, CPU], MODULE) as ranks:
        place = Place(CPU, team=ranks.join(), lead=ranks.lead)
        engine = DeviceEngine(model, TAPS, PAGES, Load.of(config, CONTEXT_LEN), place)
        ranks.wait_loaded()
        yield engine


def play(model: TargetModel, name: str, engine: DeviceEngine | None = None) -> PlayedSession:
    sampling, prompt = PROMPTS[name]
    return PlayedSession(
        model, prompt, SAMPLINGS[sampling], tap_layers=TAPS, chunk_len=20, engine=engine
    )


@pytest.fixture(scope="module")
def plain(model) -> Mapping[str, Told]:
    """What the CPU tells, of the whole model."""
    return {name: play(model, name).decode(NUM_NEW) for name in PROMPTS}


@pytest.fixture(scope="module")
def company(engine, plain) -> Mapping[str, Told]:
    """What sessions are told that share steps, with trees of which some nodes are right."""
    batch = Batch(engine, PAGES, vocab_size=VOCAB, step_rows=24, chunk_len=22)
    rng = random.Random(3)
    clients = {
        name: batch.open(name, SAMPLINGS[sampling], prompt, plain[name])
        for name, (sampling, prompt) in PROMPTS.items()
    }
    while not all(client.done for client in clients.values()):
        for client in clients.values():
            batch.offer(client, rng, nodes=3)
        assert batch.step(0.0)
    return {name: client.told for name, client in clients.items()}


def assert_ranks_agree(bits: tuple[Path, Path]) -> None:
    """Assert that both ranks found the same in every step; the other may be at its last one."""
    deadline = time.monotonic() + 30
    while (lines := [file.read_text().splitlines() for file in bits])[0] != lines[1]:
        assert len(lines[0]) > len(lines[1])
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(lines[0]) > 1


def told_of(outcome: Outcome) -> Told:
    told = Told()
    told.add(outcome)
    return told


def tokens_of(outcome: Outcome) -> tuple[object, ...]:
    assert outcome.verdict
    return outcome.verdict.path, outcome.verdict.tokens


def test_a_step_says_what_the_whole_model_says_and_bitwise_the_same_in_company(engine, model, bits):
    session = tree([9, 8, 9, 7, 5], 0, [6, 4], [0, 0], [0], "everything")
    batch = [tree([3, 1], 0, [2], [0], [1]), session]
    together, of_cpu = engine.step(batch), Engine(model, TAPS, PAGES).step(batch)
    assert list(map(tokens_of, together)) == list(map(tokens_of, of_cpu))
    (alone,) = engine.step([replace(session, pages=(2,))])
    told_of(alone).assert_begins_as(told_of(together[1]))
    assert_ranks_agree(bits)


@pytest.mark.slow
def test_alone_a_session_is_told_bitwise_what_it_is_told_in_company(engine, model, company, bits):
    alone, told = play(model, "shaped", engine), company["shaped"]
    alone.verify()
    while (done := alone.session.num_new_tokens) < NUM_NEW - 1:
        alone.verify(told.tokens[done : done + 1], [0])
    alone.told.assert_begins_as(told)
    assert_ranks_agree(bits)


@pytest.mark.slow
def test_tokens_are_those_of_the_whole_model(company, plain):
    for name, told in company.items():
        assert told.tokens[:NUM_NEW] == plain[name].tokens[:NUM_NEW], name


@pytest.mark.slow
@pytest.mark.parametrize("part", ["logprobs", "taps"])
def test_floats_are_as_near_to_float32_as_those_of_the_whole_model(company, plain, directory, part):
    exact = load_model(directory, torch.float32)
    errors = [errors_of(part, exact, name, told, plain[name]) for name, told in company.items()]
    of_ranks, of_cpu = (torch.cat(of).square().mean() for of in zip(*errors, strict=True))
    assert 0 < of_ranks < 1.5 * of_cpu


def errors_of(part: str, exact: TargetModel, name: str, *told: Told) -> list[torch.Tensor]:
    """Return how far two ranks and the CPU are from float32."""
    prompt = PROMPTS[name][1]
    text = [*prompt, *told[0].tokens[:NUM_NEW]]
    logits_RV, taps_RX = forward_chain(exact, text, TAPS)
    rows = len(text) - 1
    if part == "taps":
        return [(torch.cat(one.taps)[:rows] - taps_RX[:rows]).flatten() for one in told]
    chosen = torch.arange(len(prompt) - 1, rows), torch.tensor(text[len(prompt) :])
    exact_N = logits_RV.log_softmax(-1)[chosen]
    return [torch.tensor(one.logprobs[:NUM_NEW]) - exact_N for one in told]
