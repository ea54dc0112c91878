"""However a target of two ranks ends, it ends soon, says why, and leaves no process behind."""

import os
import queue
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from protos import target_pb2 as pb
from protos import target_pb2_grpc
from tests.target_service.gpu.tiny_steps import KINDS
from tests.target_service.served_target import open_request
from tests.tiny_llama import write_tiny_llama

ROOT = Path(__file__).parents[4]
FLAGS = ("--tensor-parallel", "2", "--kv-tokens", "640", "--max-sessions", "1")
FLAGS += ("--step-rows", "128", "--max-context-len", "128", "--threads", "1")
pytestmark = pytest.mark.slow


class Target:
    """The service, with its second rank."""

    def __init__(self, model: Path, log: Path) -> None:
        module = "tests.target_service.gpu.interpreted_target"
        command = [sys.executable, "-m", module, "--model", str(model), *FLAGS]
        self.log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [*command, "--listen", "127.0.0.1:0"], stderr=stderr, cwd=ROOT
            )

    def wait_for(self, word: str, timeout_s: float = 100) -> None:
        deadline = time.monotonic() + timeout_s
        while word not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def other_rank(self) -> int:
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def port(self) -> str:
        found = re.search(r'"port": (\d+)', self.log.read_text())
        assert found
        return found[1]


def is_there(pid: int) -> bool:
    """Whether a process runs; one that nobody waits for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while is_there(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    kind = KINDS["two key-value heads"]
    return write_tiny_llama(tmp_path_factory.mktemp("model"), tokenizer=True, **kind)


@pytest.fixture
def start(model, tmp_path) -> Iterator[Callable[[], Target]]:
    targets: list[Target] = []

    def start() -> Target:
        targets.append(Target(model, tmp_path / f"{len(targets)}.log"))
        return targets[-1]

    yield start
    for target in targets:
        target.process.kill()
        target.process.wait()


def test_signals_end_both_ranks_well(start):
    for target, number in [(start(), signal.SIGINT), (start(), signal.SIGTERM)]:
        target.wait_for("listening")
        other = target.other_rank()
        target.process.send_signal(number)
        assert target.process.wait(30) == 0, target.log.read_text()
        wait_gone(other)
        assert "Traceback" not in target.log.read_text()


def test_a_rank_that_is_killed_ends_the_target_which_names_it(start):
    """While a session is served, which is told a token before."""
    target = start()
    target.wait_for("listening")
    other = target.other_rank()
    with grpc.insecure_channel(f"127.0.0.1:{target.port()}") as channel:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        assert stub.GetTarget(pb.GetTargetRequest()).kernels == "triton"
        requests: queue.SimpleQueue = queue.SimpleQueue()
        for request in (open_request(), pb.DecodeRequest(run=pb.Run(until_len=60))):
            requests.put(request)
        responses = stub.Decode(iter(requests.get, None))
        kinds = [next(responses).WhichOneof("message") for _ in range(3)]
        assert kinds == ["opened", "verdict", "verdict"]
        os.kill(other, signal.SIGKILL)
        assert target.process.wait(10) == 1
        with pytest.raises(grpc.RpcError):
            list(responses)
        requests.put(None)
    assert "error: rank 1 of 2 ended with exit code -9" in target.log.read_text()


def test_a_target_that_is_killed_takes_its_ranks_with_it_and_idle_ones_cost_nothing(start):
    target = start()
    target.wait_for("listening")
    other = target.other_rank()
    ticks = cpu_ticks(other)
    time.sleep(3)
    assert cpu_ticks(other) - ticks < 0.1 * os.sysconf("SC_CLK_TCK")
    target.process.kill()
    target.process.wait()
    wait_gone(other)


def test_a_rank_that_is_killed_while_it_loads_ends_the_target(start):
    target = start()
    deadline = time.monotonic() + 100
    while not Path(f"/proc/{target.process.pid}/task/{target.process.pid}/children").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(target.other_rank(), signal.SIGKILL)
    assert target.process.wait(60) == 1
    assert "error: rank 1 of 2 ended with exit code -9" in target.log.read_text()
