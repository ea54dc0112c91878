"""`python -m target_service`: what is wrong ends as one line, a signal ends it well."""

import asyncio
import queue
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import structlog
import torch
from safetensors.torch import load_file, save_file

from kernels.native import Selection
from protos import serving, target_pb2_grpc
from protos.messages import SamplingParams
from slipstream.stack import WEIGHTS as OFFERED
from target_service.__main__ import WEIGHTS, load, main, until_one_ends
from target_service.config import TargetConfig
from target_service.engine import Engine
from target_service.session import Session
from target_service.weights import read_config
from tests.target_service.served_target import open_request
from tests.tiny_deepseek import nested, quantized, write_checkpoint, write_tiny_deepseek
from tests.tiny_llama import write_tiny_llama


@pytest.fixture
def refused(monkeypatch, tiny_dir) -> Iterator:
    """Run the service with flags that it refuses; return what it says."""
    threads = torch.get_num_threads()

    def run(*flags: str) -> str:
        arguments = ["target_service", "--model", str(tiny_dir), "--threads", "1", *flags]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as end:
            serving.run(main)
        return str(end.value.code)

    yield run
    torch.set_num_threads(threads)
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--model", "/no/such/directory"], "/no/such/directory is not a model directory"),
        (["--threads", "0"], "threads: Input should be greater than or equal to 1, got '0'"),
        (["--kv-tokens", "many"], "kv_tokens: Input should be a valid integer"),
        (["--prefill-chunk", "15"], "prefill_chunk: Input should be greater than or equal to 16"),
        (["--tap-buffer-mib", "1"], "tap_buffer_mib: Input should be greater than or equal to 2"),
        (["--attach-timeout-s", "0"], "attach_timeout_s: Input should be greater than 0"),
        (["--dtype", "int8"], "dtype must be one of float32, bfloat16, float16, got 'int8'"),
        (["--tap-layers", "1,x"], "tap_layers must be in [0, 4], got 'x'"),
        (["--tap-layers", "1,5"], "tap_layers must be in [0, 4], got '5'"),
        (["--tap-layers", "1,,2"], "tap_layers must be in [0, 4], got ''"),
        (["--max-context-len", "2049"], "max_context_len is 2049, the model allows 2048"),
        (["--kv-tokens", "128"], "kv_tokens is 128, which holds sessions of 64 tokens"),
        (["--device", "gpu"], "device must be auto, cpu, cuda or cuda:N, got 'gpu'"),
        (["--tensor-parallel", "0"], "tensor_parallel: Input should be greater than or equal to 1"),
        (["--tensor-parallel", "8"], "tensor_parallel is 8 and device 'cpu', but torch finds"),
        (["--log-level", "loud"], "log_level must be debug, info, warning or error, got 'loud'"),
        (["--listen", "0.0.0.0:0"], "'0.0.0.0:0' is not loopback"),
        (["--listen", "127.0.0.1:65536"], "a port in [0, 65535]"),
        (["--listen", "unix:/no/such/directory/socket"], "cannot listen on unix:/no/such"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_setting_is_named_in_one_line(refused, flags, named, request):
    if flags[0] == "--kv-tokens" and flags[1].isdigit():
        flags = [*flags, "--max-context-len", "65"]
    said = refused(*flags)
    assert said.startswith("error: ")
    assert named in said
    assert "\n" not in said


def test_a_port_in_use_is_an_error(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert refused("--listen", address).startswith(f"error: cannot listen on {address}")


def test_a_model_that_cannot_be_computed_is_an_error(refused, tmp_path):
    write_tiny_llama(tmp_path, architecture="GPT2LMHeadModel")
    said = refused("--model", str(tmp_path))
    assert said.startswith("error: architecture 'GPT2LMHeadModel' is not supported")


class TestLoading:
    def facts(self, tiny_dir: Path, **settings: object):
        return load(TargetConfig(model=tiny_dir, **settings), Selection("native (amx)"))[1]

    def test_facts_are_those_of_the_directory(self, tiny_dir):
        facts = self.facts(tiny_dir)
        assert (facts.model_name, facts.num_layers) == (tiny_dir.name, 4)
        assert (facts.weights, facts.device) == ("float32", "cpu")
        # Whatever could be had: the native kernels serve bfloat16 alone.
        assert facts.kernels == "reference"
        assert facts.pairing.hidden_size == 64
        assert facts.pairing.vocab_size == 259
        assert facts.pairing.target_fingerprint
        assert facts.pairing.tokenizer_digest

    @pytest.mark.parametrize(
        ("layers", "flag", "expected"),
        [
            (28, "", (2, 14, 25, 28)),
            (4, "", (1, 2, 4)),
            (1, "", (0, 1)),
            (4, "4,0, 2", (4, 0, 2)),
        ],
    )
    def test_taps_are_the_usual_ones_unless_told(self, tmp_path, layers, flag, expected):
        write_tiny_llama(tmp_path, layers=layers, hidden=32)
        assert self.facts(tmp_path, tap_layers=flag).pairing.tap_layers == expected

    @pytest.mark.parametrize(
        ("settings", "longest"),
        [
            ({}, 2048),
            ({"max_context_len": 100}, 100),
            ({"kv_tokens": 1024}, 1024 - 64),
            ({"kv_tokens": 1000}, 960 - 64),
        ],
    )
    def test_the_longest_session_is_one_that_the_cache_holds(self, tiny_dir, settings, longest):
        """A request that passes this limit can always be served, if not now then later."""
        assert self.facts(tiny_dir, **settings).max_context_len == longest

    def test_another_dtype_changes_weights_and_taps(self, tiny_dir):
        facts = self.facts(tiny_dir, dtype="bfloat16")
        assert facts.weights == "bfloat16"
        assert facts.pairing.tap_dtype == 2

    @pytest.mark.parametrize("weights", ["int8", "int4"])
    def test_quantized_weights_leave_the_taps_as_they_are(self, tiny_dir, weights):
        facts = self.facts(tiny_dir, weights=weights)
        assert (facts.weights, facts.pairing.tap_dtype) == (
            weights,
            self.facts(tiny_dir).pairing.tap_dtype,
        )

    def test_native_kernels_that_were_demanded_must_fit_the_model(self, tiny_dir):
        """Nobody asks for them and gets the reference without a word."""
        with pytest.raises(ValueError, match=r"kernels is 'native', .* the model has float32"):
            self.facts(tiny_dir, kernels="native")

    def test_bf16_is_a_dtype(self, tiny_dir):
        assert self.facts(tiny_dir, weights="bf16").weights == "bfloat16"
        with pytest.raises(ValueError, match="weights is 'bf16', but dtype is 'float32'"):
            self.facts(tiny_dir, weights="bf16", dtype="float32")

    def test_a_quantized_checkpoint_says_so_and_names_the_kernels(self, tmp_path):
        path = write_tiny_deepseek(tmp_path / "plain", dtype=torch.bfloat16)
        stored = quantized(read_config(path), load_file(path / "model.safetensors"))
        write_checkpoint(tmp_path / "kimi", *nested(*stored))
        facts = self.facts(tmp_path / "kimi", kv_tokens=4096)
        assert (facts.weights, facts.kernels, facts.num_layers) == ("int4", "reference", 3)
        assert (facts.pairing.tap_dtype, facts.pairing.hidden_size) == (2, 64)
        with pytest.raises(ValueError, match=r"no latent attention; .* head_dim 28, latent"):
            self.facts(tmp_path / "kimi", kernels="native", kv_tokens=4096)
        with pytest.raises(ValueError, match="weights is 'int8', but the checkpoint's are"):
            self.facts(tmp_path / "kimi", weights="int8", kv_tokens=4096)

    def test_unknown_weights_are_refused_by_name(self, tiny_dir):
        with pytest.raises(ValueError, match="one of auto, bf16, int8, int4, got 'int3'"):
            self.facts(tiny_dir, weights="int3")


class Service:
    """The service as a process of its own."""

    def __init__(self, model: Path, log: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "target_service", "--model", str(model), "--threads", "1"]
        root = Path(__file__).parents[2]
        self.log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [*command, "--listen", "127.0.0.1:0", *flags], stderr=stderr, cwd=root
            )

    def wait_for(self, word: str) -> None:
        """Wait until its log says a word."""
        deadline = time.monotonic() + 60
        while word not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def start(tiny_dir, tmp_path) -> Iterator[Callable[..., Service]]:
    services: list[Service] = []

    def start(*flags: str) -> Service:
        services.append(Service(tiny_dir, tmp_path / f"{len(services)}.log", *flags))
        return services[-1]

    yield start
    for service in services:
        service.process.kill()
        service.process.wait()


@contextmanager
def open_session(service: Service) -> Iterator[None]:
    """Keep a session open that has its first token."""
    port = re.search(r'"port": (\d+)', service.log.read_text())
    assert port
    requests: queue.SimpleQueue = queue.SimpleQueue()
    requests.put(open_request())
    with grpc.insecure_channel(f"127.0.0.1:{port[1]}") as channel:
        responses = target_pb2_grpc.TargetServiceStub(channel).Decode(iter(requests.get, None))
        assert [next(responses).WhichOneof("message") for _ in range(2)] == ["opened", "verdict"]
        yield
        requests.put(None)


def test_signals_end_it_well_and_a_wrong_flag_does_not(start):
    """Whether it has sessions or not. Started together, as importing torch takes its time."""
    busy, free = start(), start()
    wrong = start("--tap-layers", "99")
    busy.wait_for("listening")
    with open_session(busy):
        busy.process.send_signal(signal.SIGTERM)
        assert busy.process.wait(30) == 0
    free.wait_for("listening")
    free.process.send_signal(signal.SIGINT)
    assert free.process.wait(30) == 0
    assert wrong.process.wait(60) == 1
    assert wrong.log.read_text() == "error: tap_layers must be in [0, 4], got '99'\n"
    for service in (busy, free):
        assert "stopping" in service.log.read_text()
        assert "Traceback" not in service.log.read_text()


@pytest.mark.parametrize("broken_first", [True, False])
async def test_a_part_that_breaks_ends_the_service(broken_first):
    """A step loop that died behind a healthy face would take sessions and never step."""
    ended = asyncio.Event()

    async def serve_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def break_down() -> None:
        await asyncio.sleep(0)
        raise RuntimeError("the step loop broke")

    parts = [break_down(), serve_for_ever()] if broken_first else [serve_for_ever(), break_down()]
    with pytest.raises(RuntimeError, match="the step loop broke"):
        await until_one_ends(*parts)

    await asyncio.wait_for(ended.wait(), 5)


def test_a_checkpoint_of_two_dtypes_is_served_in_one(tmp_path):
    """float32 norms beside bfloat16 matrices: as the embedding is, so is everything."""
    path = write_tiny_llama(tmp_path / "mixed", dtype=torch.bfloat16)
    tensors = load_file(path / "model.safetensors")
    norms = {name: t.float() for name, t in tensors.items() if "norm" in name}
    save_file(tensors | norms, path / "model.safetensors")
    model, facts = load(TargetConfig(model=path, kv_tokens=4096), Selection("reference"))
    session = Session("s", [1, 2, 3], SamplingParams(temperature=0), 4, model.config.vocab_size)

    rows = replace(session.next_rows(16), pages=(1,))
    (outcome,) = Engine(model, facts.pairing.tap_layers, 2).step([rows])

    assert norms
    assert facts.weights == "bfloat16"
    assert outcome.taps_KX.dtype == torch.bfloat16
    assert outcome.verdict is not None


def test_the_command_line_offers_the_weights_that_the_target_takes():
    """It names them itself, because the target's own module brings torch."""
    assert OFFERED == WEIGHTS
