"""The command line as its users and their scripts see it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from slipstream.probe import is_healthy
from slipstream.stack import Addresses

STATS = {
    "rounds",
    "drafted",
    "accepted",
    "accept_length",
    "accepted_by_position",
    "tokens_per_second",
    "time_to_first_token",
}


def slipstream(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    command = [sys.executable, "-m", "slipstream", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, **options
    )


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "a b a b a b", "task": "copy"}, {"prompt": "hello", "task": "chat"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return path


def generate(stack, *arguments: str) -> list[dict]:
    """Return the JSON lines of `slipstream generate` on a running stack."""
    gateway = ("--gateway", stack.addresses.gateway, "--json")
    done = slipstream("generate", *gateway, *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_one_json_object_a_prompt_in_order(tiny_stack, prompt_file):
    """The contract that checks and scripts rely on."""
    lines = generate(tiny_stack, "--prompt-file", str(prompt_file), "--max-new-tokens", "12")

    assert [(line["prompt_index"], line["task"]) for line in lines] == [(0, "copy"), (1, "chat")]
    for line in lines:
        assert line["finish_reason"] in ("stop", "length")
        assert 1 <= len(line["token_ids"]) <= 12
        assert line["stats"].keys() >= STATS
        assert line["stats"]["accepted"] == sum(line["stats"]["accepted_by_position"])


@pytest.mark.parametrize("sampling", [(), ("--temperature", "0.9", "--top-p", "0.8")])
def test_modes_differ_in_speed_only(tiny_stack, prompt_file, sampling):
    """off, fixed and auto give the same tokens for the same seed; off drafts nothing."""
    common = ("--prompt-file", str(prompt_file), "--max-new-tokens", "24", "--seed", "3", *sampling)
    plain = generate(tiny_stack, *common, "--mode", "off")
    fixed = generate(
        tiny_stack,
        *(*common, "--mode", "fixed", "--steps", "3", "--top-k", "1"),
        *("--draft-tokens", "4", "--drafter", "eagle"),
    )
    auto = generate(tiny_stack, *common, "--mode", "auto")

    assert [line["token_ids"] for line in fixed] == [line["token_ids"] for line in plain]
    assert [line["token_ids"] for line in auto] == [line["token_ids"] for line in plain]
    assert all(line["stats"]["drafted"] == 0 for line in plain)
    assert all(line["stats"]["drafted"] > 0 for line in fixed)
    assert all(len(line["stats"]["accepted_by_position"]) <= 3 for line in fixed)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "-p TEXT"),
        (("-p", "x", "--prompt-file", "y"), "-p TEXT"),
        (("--prompt-file", "/nowhere.jsonl"), "/nowhere.jsonl"),
        (("-p", "x", "--mode", "fast"), "'fast'"),
        (("-p", "x", "--temperature", "101"), "temperature"),
        (("-p", "x", "--top-p", "1.5"), "top_p"),
        (("-p", "x", "--mode", "fixed", "--steps", "64"), "steps"),
        (("-p", "x", "--mode", "fixed", "--draft-tokens", "65"), "draft_tokens"),
        (("-p", "x", "--max-new-tokens", "100000"), "max_new_tokens"),
        (("-p", "x" * 10_000), "10"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(tiny_stack, arguments, named):
    """No traceback, a non-zero exit, the value or the field in the message."""
    done = slipstream("generate", "--gateway", tiny_stack.addresses.gateway, *arguments)

    assert done.returncode != 0
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_bad_lines_of_a_prompt_file_are_named(tiny_stack, tmp_path):
    """File and line number; nothing is answered before all lines were read."""
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "fine"}\n{"prompt": 5}\n')

    done = slipstream("generate", "--gateway", tiny_stack.addresses.gateway, "--prompt-file", path)

    assert done.returncode != 0
    assert f"{path}:2" in done.stderr
    assert done.stdout == ""


def test_probe_tells_health_by_its_exit_code(tiny_stack):
    """0 for each running service, 1 where nobody listens."""
    addresses = tiny_stack.addresses
    for address in (addresses.gateway, addresses.target, addresses.draft):
        assert slipstream("probe", address).returncode == 0

    assert slipstream("probe", Addresses.free().gateway).returncode == 1


def test_doctor_is_content_with_a_healthy_stack(tiny_stack, tiny_target):
    """It looks at environment, model and services, and finds nothing wrong."""
    addresses = tiny_stack.addresses
    where = ("--gateway", addresses.gateway, "--target", addresses.target)
    done = slipstream(
        "doctor", "--model", tiny_target, "--services", *where, "--draft", addresses.draft
    )

    assert done.returncode == 0, done.stdout
    assert "eagle" in done.stdout


def test_doctor_names_what_is_wrong_and_the_remedy(tmp_path):
    """A model that is not there, services that do not run."""
    nowhere = Addresses.free()
    where = ("--gateway", nowhere.gateway, "--target", nowhere.target, "--draft", nowhere.draft)
    done = slipstream("doctor", "--model", tmp_path / "none", "--services", *where)

    assert done.returncode == 1
    assert "remedy: slipstream fetch" in done.stdout
    assert "UNAVAILABLE" in done.stdout


@contextmanager
def up(model: Path, ports: Addresses) -> Iterator[subprocess.Popen[str]]:
    """Run `slipstream up`; yield it once it says that it is ready."""
    command = [sys.executable, "-m", "slipstream", "up", "--model", str(model), *flags(ports)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    # Whoever reads its words must not wait for ever for words that do not come.
    limit = threading.Timer(90, process.kill)
    limit.start()
    try:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if line.startswith("ready"))
        assert ports.gateway in ready
        assert f"http://{ports.http}/v1" in ready
        yield process
    finally:
        limit.cancel()
        process.kill()
        process.wait()


def flags(ports: Addresses) -> list[str]:
    """Return the port flags of `slipstream up`."""
    names = ("gateway", "target", "draft", "http")
    return [
        word
        for name, address in ((name, getattr(ports, name)) for name in names)
        for word in (f"--{name}-port", address.rpartition(":")[2])
    ]


def test_up_serves_until_ctrl_c_and_leaves_nothing_behind(tiny_target):
    """It prints the addresses, ends cleanly on SIGINT, and its services are gone."""
    ports = Addresses.free(http=True)
    with up(tiny_target, ports) as process:
        assert is_healthy(ports.gateway)
        with urlopen(f"http://{ports.http}/v1/models") as models:
            assert json.load(models)["data"][0]["id"] == tiny_target.name
        os.kill(process.pid, signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(30) == 130

    assert "Traceback" not in rest
    assert not any(map(is_healthy, (ports.gateway, ports.target, ports.draft)))


def test_up_brings_a_killed_draft_service_back(tiny_target):
    """kill -9: the gateway and the target stay, and drafts come again."""
    ports = Addresses.free(http=True)
    with up(tiny_target, ports) as process:
        kill_child(process.pid, "draft_service")
        line = next(line for line in process.stderr if "draft_service_restarted" in line)
        assert "exit code -9" in line
        deadline = time.monotonic() + 60
        while not is_healthy(ports.draft):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert is_healthy(ports.gateway)
        assert is_healthy(ports.target)


def kill_child(parent: int, module: str) -> None:
    """kill -9 the child process that runs a module."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in children:
        if module in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(int(child), signal.SIGKILL)
            return
    raise AssertionError(f"no child of {parent} runs {module}")


def test_up_refuses_taken_ports_before_it_starts_anything(tiny_stack, tiny_target):
    """Another stack's health must not be taken for one's own."""
    done = slipstream("up", "--model", str(tiny_target), *flags(tiny_stack.addresses))

    assert done.returncode == 1
    assert f"cannot listen on {tiny_stack.addresses.gateway}" in done.stderr
    assert "ready gateway" not in done.stderr
    assert is_healthy(tiny_stack.addresses.gateway)


def test_a_drafter_that_was_named_and_does_not_fit_is_an_error(tiny_target, tmp_path):
    """A local stack with it does not start: it would only be slow."""
    nowhere = tmp_path / "nowhere"
    done = slipstream(
        "generate", "-p", "x", "--model", str(tiny_target), "--load", f"mine={nowhere}"
    )

    assert done.returncode == 1
    assert "refused drafter mine" in done.stderr
    assert str(nowhere) in done.stderr


def test_an_unknown_drafter_is_answered_plainly_and_said(tiny_stack):
    """No request fails for a drafter; nobody is left to wonder about the speed either."""
    gateway = ("--gateway", tiny_stack.addresses.gateway)
    done = slipstream("generate", *gateway, "-p", "x", "--max-new-tokens", "4", "--drafter", "no")

    assert done.returncode == 0
    assert "no drafter 'no'" in " ".join(done.stderr.split())


def test_top_shows_both_services_and_ends(tiny_stack):
    addresses = ("--target", tiny_stack.addresses.target, "--draft", tiny_stack.addresses.draft)
    done = slipstream("top", "--once", "--interval", "0.1", *addresses)
    assert done.returncode == 0, done.stderr
    assert "target: tiny-llama" in done.stdout
    assert "draft service" in done.stdout
    assert "does not answer" not in done.stdout


def test_top_of_services_that_are_not_there_says_so():
    nobody = Addresses.free()
    addresses = ("--target", nobody.target, "--draft", nobody.draft)
    done = slipstream("top", "--once", "--interval", "0.1", *addresses)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("does not answer") == 2
