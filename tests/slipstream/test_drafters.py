"""`slipstream drafters` says what a checkpoint is, and by its exit code whether it fits."""

import asyncio
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from draft_service.weights import read_config
from protos.pairing import Pairing, fingerprint
from protos.target_pb2_grpc import add_TargetServiceServicer_to_server
from slipstream.__main__ import app
from tests.draft_service.drafters.played_session import write_target
from tests.draft_service.scripted_target import PAIRING, ScriptedTarget
from tests.loopback import listening
from tests.tiny_models import LATENT, reconfigure, rewrite_as_speculators, write_tiny_eagle3

# What the scripted target is.
SIZES = {"hidden": 32, "vocab": 40, "target_layers": 8}


def slipstream(*arguments):
    """Run a command; return its exit code and its lines by their headings."""
    ran = CliRunner().invoke(app, ["drafters", *map(str, arguments)])
    if ran.exception and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    pairs = (line.split("  ", 1) for line in ran.output.splitlines() if "  " in line)
    return ran.exit_code, {heading: text.strip() for heading, text in pairs}


def running_target(pairing: Pairing):
    """A target on a socket; commands that ask it run in another thread."""
    target = ScriptedTarget(script=None, pairing=pairing)
    return listening(lambda server: add_TargetServiceServicer_to_server(target, server))


@pytest.fixture
def drafter(tmp_path):
    return write_tiny_eagle3(tmp_path / "drafter", **SIZES)


@pytest.fixture
def model(tmp_path):
    """A target's directory with the sizes of the scripted one."""
    write_target(tmp_path / "model")
    sizes = {"num_hidden_layers": 8, "vocab_size": 40, "hidden_size": 32}
    reconfigure(tmp_path / "model", **sizes)
    return tmp_path / "model"


def test_it_says_what_a_checkpoint_is_and_what_it_needs(tmp_path):
    path = write_tiny_eagle3(
        tmp_path, **SIZES, draft_vocab_size=30, fc_norm=True, without=["embed_tokens.weight"]
    )
    (path / "tokenizer.json").write_text("{}")

    code, said = slipstream("inspect", path)

    assert code == 0
    assert said["format"] == "sglang (LlamaForCausalLMEagle3)"
    assert said["layer"] == "Llama's attention, 4 heads and 2 key-value heads of 8"
    assert said["vocabulary"] == "drafts 30 of 40 tokens"
    assert said["tap layers"] == (
        "inputs of [2, 4, 5], that is outputs of [1, 3, 4]; "
        "stated as [2, 4, 5] in config.json itself"
    )
    assert said["switches"] == "fc_norm"
    assert said["target"] == "hidden size 32, vocabulary 40"
    assert said["embedding"] == "the target's: needs --target-model"
    assert said["head"] == "its own"
    assert said["tokenizer"].startswith("44136fa")
    assert "fits" not in said


def test_parameters_are_counted_and_maps_and_what_is_of_training_only_are_not(drafter):
    _, before = slipstream("inspect", drafter)
    norms = 4 * 32
    attention = 32 * 64 + 2 * 16 * 64 + 32 * 32
    expected = 2 * 40 * 32 + 32 * 96 + norms + attention + 3 * 64 * 32

    assert int(before["parameters"].replace(" ", "")) == expected


def test_both_conventions_and_where_layers_were_stated_are_told(drafter):
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    reconfigure(drafter, eagle_aux_hidden_state_layer_ids=None, eagle_config=nested)
    assert slipstream("inspect", drafter)[1]["tap layers"] == (
        "inputs of [2, 4, 5], that is outputs of [1, 3, 4]; stated as [1, 3, 4] in its eagle_config"
    )

    reconfigure(drafter, eagle_config=None)
    assert slipstream("inspect", drafter)[1]["tap layers"].startswith("not stated: the inputs of 2")


def test_a_speculators_checkpoint_is_known_and_its_defaults_are_seen(drafter):
    rewrite_as_speculators(drafter, norm_before_residual=None)

    _, said = slipstream("inspect", drafter)

    assert said["format"] == "speculators (Eagle3Speculator)"
    assert said["switches"] == "norm_before_residual"


def test_a_layer_with_latent_attention_is_told_from_llamas(tmp_path):
    _, said = slipstream("inspect", write_tiny_eagle3(tmp_path, **SIZES, **LATENT))

    assert said["format"] == "mla (Eagle3DeepseekV2ForCausalLM)"
    assert said["layer"] == "latent attention, 4 heads that share 32 numbers"


@pytest.mark.parametrize("missing", ["embed_tokens.weight", "lm_head.weight"])
def test_a_drafter_fits_a_model_whose_weights_it_shares(tmp_path, missing):
    """A real load, as the draft service's own."""
    path = write_tiny_eagle3(
        tmp_path / "drafter", hidden=32, vocab=97, target_layers=12, without=[missing]
    )
    write_target(tmp_path / "model")
    sizes = {"num_hidden_layers": 12, "vocab_size": 97, "hidden_size": 32}
    reconfigure(tmp_path / "model", **sizes)

    code, said = slipstream("inspect", path, "--target-model", tmp_path / "model")

    assert (code, said["fits"]) == (0, "yes")


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"vocab_size": 41}, "vocab_size: the drafter has 40, the target has 41"),
        ({"hidden_size": 48}, "target_hidden_size: the drafter has 32, the target has 48"),
        ({"num_hidden_layers": 4}, "tap layers must ascend within [0, 4]"),
        ({"num_hidden_layers": None}, "the target's num_hidden_layers must be a positive integer"),
        ({"text_config": {"hidden_size": 8}}, "num_hidden_layers must be a positive integer"),
    ],
)
def test_why_a_drafter_does_not_fit_is_said(drafter, model, sizes, reason):
    reconfigure(model, **sizes)

    code, said = slipstream("inspect", drafter, "--target-model", model)

    assert code == 1
    assert said["fits"].startswith("no: ")
    assert reason in said["fits"]
    assert said["format"] == "sglang (LlamaForCausalLMEagle3)"


def test_a_tokenizer_of_another_target_does_not_fit(drafter, model):
    (drafter / "tokenizer.json").write_text("{}")
    (model / "tokenizer.json").write_text("[]")

    code, said = slipstream("inspect", drafter, "--target-model", model)

    assert code == 1
    assert "tokenizer: the drafter's digest is 44136fa" in said["fits"]


@pytest.mark.parametrize(
    ("facts", "fits"),
    [
        ({}, "yes"),
        ({"tap_layers": (1, 2, 4, 5)}, "yes"),
        ({"tap_layers": (2, 4, 6)}, "no: tap_layers: the drafter reads layers [2, 4, 5]"),
        ({"vocab_size": 41}, "no: vocab_size: the drafter has 40, the target has 41"),
        ({"protocol_version": 9}, "no: protocol_version: the drafter has 1, the target has 9"),
    ],
)
async def test_a_running_target_is_asked(drafter, facts, fits):
    async with running_target(replace(PAIRING, **facts)) as address:
        command = ["inspect", drafter, "--target", address]
        code, said = await asyncio.to_thread(slipstream, *command)

    assert said["fits"].startswith(fits)
    assert code == (fits != "yes")


async def test_weights_of_another_model_than_the_running_one_do_not_fit(drafter, model):
    async with running_target(PAIRING) as address:
        command = ["inspect", drafter, "--target", address, "--target-model", model]
        code, said = await asyncio.to_thread(slipstream, *command)

    assert code == 1
    assert fingerprint(model) in said["fits"]
    assert "serves f00d" in said["fits"]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"architectures": ["MedusaModel"]}, "architecture 'MedusaModel' is no EAGLE-3 drafter"),
        ({"draft_vocab_size": 30}, "there is no d2t"),
    ],
)
def test_what_fits_no_target_is_an_error(drafter, field, reason):
    reconfigure(drafter, **field)

    with pytest.raises(ValueError, match=reason):
        slipstream("inspect", drafter)


def test_a_checkpoint_is_converted_there_and_back(tmp_path, drafter):
    there, back = tmp_path / "there", tmp_path / "back"

    command = ["convert", drafter, there, "--format", "speculators", "--verifier", "org/model"]
    assert slipstream(*command)[0] == 0
    assert slipstream("convert", there, back, "--format", "sglang")[0] == 0

    section = read_config(there)["speculators_config"]
    assert section["verifier"]["name_or_path"] == "org/model"
    assert read_config(back)["architectures"] == ["LlamaForCausalLMEagle3"]
    assert json.loads((back / "config.json").read_text())["hidden_size"] == 32


def test_an_unknown_format_is_refused_by_name(tmp_path, drafter):
    code, _ = slipstream("convert", drafter, tmp_path / "out", "--format", "gguf")

    assert code == 2
    assert not (tmp_path / "out").exists()
