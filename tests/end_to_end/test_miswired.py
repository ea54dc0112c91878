"""A mis-wired drafter is refused when it is loaded, or found out within a few rounds, and says why.

Every wiring that users reported, done to the drafter that is shipped, on the target that it is for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from draft_service.alarm import ROUNDS
from draft_service.shelf import SHELF
from protos.draft_pb2 import DRAFTER_STATE_ALARM, DRAFTER_STATE_READY, DrafterInfo
from slipstream import drafter_admin
from slipstream.client import Client, Request
from slipstream.probe import list_drafters
from slipstream.stack import Addresses, LocalStack, StackConfig

pytestmark = pytest.mark.model
SHIPPED = SHELF / "smollm2-135m-eagle3"
PROMPTS = (
    "Write a short story about a river.",
    "How do I bake bread? Explain every step.",
    "Tell me about the history of Rome.",
)
Config, Tensors = dict, dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def stack(smollm2: Path) -> Iterator[LocalStack]:
    config = StackConfig(
        smollm2,
        Addresses.free(),
        drafters=("smollm2-135m-eagle3", "ngram"),
        gateway_args=("--draft-deadline-ms", "2000"),
    )
    with LocalStack(config) as running:
        yield running


def altered(path: Path, change: Callable[[Config, Tensors], None]) -> Path:
    """Copy the shipped drafter, changed."""
    path.mkdir()
    config = json.loads((SHIPPED / "config.json").read_text())
    tensors = load_file(SHIPPED / "model.safetensors")
    change(config, tensors)
    (path / "config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous() for k, v in tensors.items()}, path / "model.safetensors")
    return path


def load(stack: LocalStack, drafter_id: str, directory: Path) -> DrafterInfo:
    arguments = ["load", f"{drafter_id}={directory}", "--draft", stack.addresses.draft]
    CliRunner().invoke(drafter_admin.app, arguments)
    return info(stack, drafter_id)


def info(stack: LocalStack, drafter_id: str) -> DrafterInfo:
    listed = list_drafters(stack.addresses.draft).drafters
    return next(one for one in listed if one.drafter_id == drafter_id)


def draft_with(stack: LocalStack, drafter_id: str, tokens: int) -> None:
    """Let a drafter draft for answers of so many tokens in all."""
    with Client(stack.addresses.gateway) as client:
        for prompt in PROMPTS:
            client.complete(
                Request(
                    chat=prompt,
                    sampling={"temperature": 0.0},
                    stopping={"max_new_tokens": tokens // len(PROMPTS)},
                    speculation={"steps": 2, "drafter_id": drafter_id},
                    mode="fixed",
                )
            )


def layers_off_by_one(config: Config, tensors: Tensors) -> None:
    layers = config.pop("eagle_aux_hidden_state_layer_ids")
    config["eagle_config"] = {}
    config["eagle_aux_hidden_state_layer_ids"] = [layer + 1 for layer in layers]


def eagle_1_wiring(config: Config, tensors: Tensors) -> None:
    config.setdefault("eagle_config", {})["use_aux_hidden_state"] = False


def without_fc(config: Config, tensors: Tensors) -> None:
    del tensors["fc.weight"]


def narrow_fc(config: Config, tensors: Tensors) -> None:
    tensors["fc.weight"] = tensors["fc.weight"][:, : config["hidden_size"]]


def absolute_d2t(config: Config, tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


def other_tokenizer(config: Config, tensors: Tensors) -> None:
    config["slipstream"]["tokenizer_digest"] = "0" * 64


def blank_head(config: Config, tensors: Tensors) -> None:
    tensors["lm_head.weight"] = torch.zeros_like(tensors["lm_head.weight"])


REFUSED = {
    layers_off_by_one: r"tap_layers: the drafter reads layers [3, 16, 28]",
    eagle_1_wiring: "use_aux_hidden_state is False",
    without_fc: "no tensor 'fc.weight'",
    narrow_fc: "fc.weight takes 576 inputs, but 3 taps of target hidden size 576 make 1728",
    absolute_d2t: "d2t",
    other_tokenizer: "tokenizer: the drafter's digest is 0000",
    blank_head: "lm_head",
}


@pytest.mark.parametrize(("change", "reason"), REFUSED.items(), ids=lambda one: str(one)[:30])
def test_what_can_be_seen_is_refused_when_it_is_loaded(stack, tmp_path, change, reason):
    refused = load(stack, change.__name__, altered(tmp_path / "d", change))

    assert reason in refused.refusal


def d2t_of_another_drafter(config: Config, tensors: Tensors) -> None:
    """As well ordered as its own; its mask agrees."""
    size, vocab = len(tensors["d2t"]), config["vocab_size"]
    chosen = torch.randperm(vocab, generator=torch.Generator().manual_seed(0))[:size]
    ids = chosen.sort().values
    tensors["d2t"] = ids - torch.arange(size)
    tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)


def head_of_nothing(config: Config, tensors: Tensors) -> None:
    """As memory that was not written may look: small, and the same in every row."""
    tensors["lm_head.weight"] = torch.full_like(tensors["lm_head.weight"], 1e-3)


def taps_in_another_order(config: Config, tensors: Tensors) -> None:
    """The first tap where the last belongs: as if the layers were those of another model."""
    first, second, third = tensors["fc.weight"].chunk(3, dim=1)
    tensors["fc.weight"] = torch.cat((third, -first, second), dim=1)


CAUGHT = {
    d2t_of_another_drafter: "vocabulary",
    head_of_nothing: "whatever the text: its output head is missing",
    taps_in_another_order: "tap layers",
}


@pytest.mark.parametrize(("change", "cause"), CAUGHT.items(), ids=lambda one: str(one)[:30])
def test_what_cannot_be_seen_is_found_out_within_fifty_rounds(stack, tmp_path, change, cause):
    drafter_id = change.__name__
    assert load(stack, drafter_id, altered(tmp_path / "d", change)).state == DRAFTER_STATE_READY

    draft_with(stack, drafter_id, tokens=ROUNDS + 30)

    found = info(stack, drafter_id)
    assert found.state == DRAFTER_STATE_ALARM
    assert cause in found.refusal
    assert found.score.rounds <= ROUNDS + 5


def test_a_drafter_without_a_head_takes_its_targets(stack, tmp_path):
    """A head that was left out is no head of zeros: drafts are poorer, and not in vain."""
    directory = altered(tmp_path / "d", lambda _, tensors: tensors.pop("lm_head.weight"))
    assert load(stack, "no-head", directory).state == DRAFTER_STATE_READY

    draft_with(stack, "no-head", tokens=ROUNDS + 30)

    assert info(stack, "no-head").state == DRAFTER_STATE_READY


def test_the_drafter_as_it_is_raises_no_alarm(stack):
    draft_with(stack, SHIPPED.name, tokens=200)

    assert info(stack, SHIPPED.name).state == DRAFTER_STATE_READY
    assert info(stack, SHIPPED.name).score.accept_length > 1.2
