"""Kimi-K2.5 in small, as real services: int4 experts, and a drafter with latent attention."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slipstream.probe import get_target
from slipstream.stack import Addresses, LocalStack, StackConfig
from target_service.weights import read_config
from tests.end_to_end.losslessness import PROMPTS, answers, differing, request
from tests.tiny_deepseek import YARN, nested, quantized, write_checkpoint, write_tiny_deepseek
from tests.tiny_llama import write_byte_tokenizer
from tests.tiny_models import LATENT, write_tiny_eagle3


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("latent")
    write_tiny_deepseek(path / "plain", dtype=torch.bfloat16, rope_scaling=YARN)
    stored = read_config(path / "plain"), load_file(path / "plain" / "model.safetensors")
    write_checkpoint(path / "kimi", *nested(*quantized(*stored)))
    write_byte_tokenizer(path / "kimi")
    return path / "kimi"


@pytest.fixture(scope="module")
def stack(target_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    drafter = write_tiny_eagle3(
        tmp_path_factory.mktemp("drafter"),
        hidden=64,
        vocab=259,
        target_layers=3,
        dtype=torch.bfloat16,
        without=["embed_tokens.weight", "lm_head.weight"],
        **LATENT,
    )
    config = StackConfig(
        target_dir,
        Addresses.free(),
        drafters=(f"eagle={drafter}",),
        # A random drafter is never right.
        draft_args=("--no-alarms",),
        gateway_args=("--draft-deadline-ms", "2000"),
    )
    with LocalStack(config) as running:
        yield running


def test_a_latent_drafter_drafts_for_a_latent_target_and_changes_nothing(stack):
    """It shares the embedding and the head that lie in `language_model.`"""
    gateway = stack.addresses.gateway
    plain, drafted = (
        answers(gateway, [request(prompt, "nucleus", 16, drafter) for prompt in PROMPTS[:4]])
        for drafter in (None, "eagle")
    )

    assert differing(plain, drafted) == []
    assert all(one.finish.speculation.drafted for one in drafted)
    assert get_target(stack.addresses.target).weights == "int4"
