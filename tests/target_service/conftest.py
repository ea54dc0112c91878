"""Tiny targets, each written once, and one thread for all of them."""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from target_service.models.llama import Llama
from tests.target_service.engine_cases import NUM_NEW, SIZES, VOCAB, play
from tests.target_service.played_session import Told, load_model
from tests.target_service.served_target import ServedTarget, serve
from tests.tiny_llama import write_tiny_llama


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with grouped queries in float32, and a tokenizer."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), layers=4, tokenizer=True)


@pytest.fixture(scope="session")
def tiny(tiny_dir: Path) -> Llama:
    return load_model(tiny_dir)


@pytest.fixture
async def target(tiny: Llama) -> AsyncIterator[ServedTarget]:
    """A served target that must hold nothing when the test is over."""
    async with serve(tiny) as served:
        yield served
        await served.drained()


@pytest.fixture(scope="session")
def write_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Llama]:
    """Write and load a tiny target with the given settings."""

    def write(**settings: object) -> Llama:
        return load_model(write_tiny_llama(tmp_path_factory.mktemp("model"), **settings))

    return write


@pytest.fixture(scope="session")
def models(write_model) -> dict[str, Llama]:
    return {name: write_model(layers=3, vocab=VOCAB, **size) for name, size in SIZES.items()}


@pytest.fixture(scope="session")
def plain(models):
    """What plain decoding tells, one row at a time from the first token of the prompt on."""

    @cache
    def told(model: str, sampling: str, prompt_len: int) -> Told:
        return play(models[model], sampling, prompt_len).decode(NUM_NEW)

    return told
