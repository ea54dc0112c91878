"""Recordings made by real processes: killed and gone on with; live, beside real requests."""

import contextlib
import os
import signal
import subprocess
import sys
import time

from gateway.tokenizer import Tokenizer
from slipstream.client import Client, Request
from slipstream.stack import Addresses, LocalStack, StackConfig
from training.recording import read_shards

PROMPT = "Tell me something about number {}."


@contextlib.contextmanager
def recorder(directory, *arguments):
    command = [sys.executable, "-m", "slipstream", "record", str(directory), *arguments]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def request(number):
    return Request(
        chat=PROMPT.format(number),
        sampling={"temperature": 0.0},
        stopping={"max_new_tokens": 40},
        recordable=bool(number % 2),
    )


def shards_of(directory):
    """Paths of the shards that are whole: one that is being written has another name."""
    return sorted(directory.glob("shard-*.safetensors"))


def ids_in(directory):
    """Ids of all samples, in order."""
    return [facts.sample_id for shard in read_shards(directory) for facts in shard.facts]


def wait_until(holds, seconds=120):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.02)


def test_a_killed_recording_goes_on_without_loss_or_duplicates(tiny_target, tmp_path):
    """Killed as often as it has written a shard; what it wrote stays as it is, to the byte."""
    directory = tmp_path / "r"
    arguments = ("--model", str(tiny_target), "--tokens", "2500")
    arguments += ("--flush-seconds", "0.5", "--concurrency", "8", "--max-new-tokens", "24")
    kept = {}
    for shards in (1, 2):
        with recorder(directory, *arguments):
            wait_until(lambda n=shards: len(shards_of(directory)) >= n)
        for path, content in kept.items():
            assert path.read_bytes() == content
        kept = {path: path.read_bytes() for path in shards_of(directory)}
    with recorder(directory, *arguments) as running:
        assert running.wait(300) == 0
    ids = ids_in(directory)
    assert len(ids) == len(set(ids))
    assert all(path.read_bytes() == content for path, content in kept.items())
    tokens = sum(shard.num_tokens for shard in read_shards(directory))
    assert tokens >= 2500


def test_live_traffic_is_recorded_if_it_may_be(tiny_target, tmp_path):
    config = StackConfig(
        tiny_target,
        Addresses.free(),
        draft_args=("--no-alarms",),
        gateway_args=("--record-share", "0"),
    )
    with LocalStack(config) as stack, Client(stack.addresses.gateway) as client:
        live = ("--live", "--target", stack.addresses.target, "--tokens", "200")
        with recorder(tmp_path / "r", "--model", str(tiny_target), *live) as running:
            number = 0
            while running.poll() is None:
                number += 1
                client.complete(request(number))
            assert running.returncode == 0
    tokenizer = Tokenizer.from_directory(tiny_target)
    shards = read_shards(tmp_path / "r")
    assert sum(shard.num_tokens for shard in shards) >= 200
    for shard in shards:
        for index in range(len(shard.facts)):
            text = tokenizer.decode(shard.tokens(index).tolist())
            assert int(text.split("number ")[1].split(".")[0]) % 2 == 1
