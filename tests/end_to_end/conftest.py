"""Real stacks: three processes, real sockets; a tiny model for breadth, the embedded for truth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from slipstream.stack import Addresses, LocalStack, StackConfig
from tests.end_to_end.services import adversarial_gateway
from tests.tiny_llama import write_tiny_llama
from tests.tiny_models import write_tiny_eagle3

CONTEXT_LEN = 8192


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model small enough that a step takes a millisecond, on the native kernels.

    A text as long as it allows takes many seconds all the same: nothing that is not stopped ends.
    """
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    settings = {"dtype": torch.bfloat16, "max_position_embeddings": CONTEXT_LEN}
    return write_tiny_llama(path, seed=1, tokenizer=True, **settings)


@pytest.fixture(scope="session")
def tiny_stack(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """All services on the tiny model, with prompt lookup and a random EAGLE-3 drafter."""
    drafter = tmp_path_factory.mktemp("drafters") / "eagle3"
    write_tiny_eagle3(drafter, target_dir=tiny_target, seed=2, dtype=torch.bfloat16)
    with _stack(tiny_target, drafter) as stack:
        yield stack


@pytest.fixture(scope="module")
def reference_stack(tiny_stack: LocalStack, tiny_target: Path) -> Iterator[LocalStack]:
    """The tiny stack's twin, on the reference kernels."""
    drafter = tiny_stack.config.drafters[1].removeprefix("eagle=")
    with _stack(tiny_target, Path(drafter), "--kernels", "reference") as stack:
        yield stack


@pytest.fixture(scope="session")
def smollm2_stack(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """All services on the embedded model, with prompt lookup and a random EAGLE-3 drafter."""
    drafter = tmp_path_factory.mktemp("drafters") / "eagle3"
    write_tiny_eagle3(drafter, target_dir=smollm2, seed=2)
    with _stack(smollm2, drafter) as stack:
        yield stack


def _stack(model: Path, drafter: Path, *kernels: str) -> LocalStack:
    config = StackConfig(
        model,
        Addresses.free(http=True),
        drafters=("ngram", f"eagle={drafter}"),
        target_args=kernels,
        # A random drafter is never right.
        draft_args=("--no-alarms", *kernels),
        # A slow machine must not turn drafts into misses: these tests want them verified.
        gateway_args=("--draft-deadline-ms", "2000"),
    )
    return LocalStack(config)


@pytest.fixture(scope="session")
def tiny_adversary(tiny_stack: LocalStack, tiny_target: Path) -> Iterator[str]:
    """A gateway on the tiny stack's target whose drafter means harm."""
    with adversarial_gateway(tiny_target, tiny_stack.addresses.target) as address:
        yield address


@pytest.fixture(scope="session")
def smollm2_adversary(smollm2_stack: LocalStack, smollm2: Path) -> Iterator[str]:
    """The same on the embedded model."""
    with adversarial_gateway(smollm2, smollm2_stack.addresses.target) as address:
        yield address
