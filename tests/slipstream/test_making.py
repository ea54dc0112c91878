"""The commands that make drafters refuse what makes no sense before anything is started."""

import pytest
from typer.testing import CliRunner

from slipstream.__main__ import app
from slipstream.making import parse_layers
from tests.tiny_llama import write_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("m") / "tiny", tokenizer=True)


def refused(*arguments):
    """Run a command; return the reason why it refused."""
    ran = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(ran.exception, ValueError), ran.output
    return str(ran.exception)


def test_layers_are_numbers():
    assert parse_layers(" 2, 15,27") == (2, 15, 27)
    assert parse_layers("") == ()
    with pytest.raises(ValueError, match="got '-3'"):
        parse_layers("1,-3")


def test_live_recording_needs_a_running_target(model, tmp_path):
    assert "--target" in refused("record", tmp_path / "r", "--model", model, "--live")


def test_a_missing_prompt_file_is_named_before_a_target_is_started(model, tmp_path):
    reason = refused("record", tmp_path / "r", "--model", model, "--prompts", tmp_path / "none")
    assert "no prompt file" in reason
    assert not (tmp_path / "r").exists()


def test_training_on_nothing_is_refused(model, tmp_path):
    reason = refused("train", tmp_path, "--out", tmp_path / "t", "--model", model)
    assert "is no recording" in reason


@pytest.mark.parametrize("both", [(), ("--drafter", ".", "--gateway", "127.0.0.1:1")])
def test_a_drafter_is_judged_either_offline_or_online(model, tmp_path, both):
    reason = refused("evaluate", tmp_path, "--model", model, *both)
    assert "either --drafter DIRECTORY or --gateway ADDRESS" in reason
