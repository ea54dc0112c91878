"""`python -m target_service --model DIRECTORY`: load the model, then serve."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import torch

from kernels.native import Selection, select
from kernels.native.packing import MAX_HEAD_DIM
from kernels.quantized_linear import WEIGHT_FORMATS
from protos import pairing, serving, target_pb2_grpc, tensors
from protos.pairing import Pairing
from target_service.config import TargetConfig
from target_service.device import check_parallel, check_settings, devices_of, devices_to_text
from target_service.engine import Engine, StepEngine
from target_service.kv_memory import PAGE_LEN, KvMemory
from target_service.models import build_model, model_config
from target_service.models.target_model import ModelConfig, TargetModel
from target_service.scheduler import Scheduler
from target_service.server import TargetFacts, TargetServicer
from target_service.session import SPARE_SLOTS
from target_service.step_loop import StepLoop
from target_service.taps import TapHub
from target_service.weights import Weights, parse_dtype, read_config

if TYPE_CHECKING:
    from target_service.ranks import Ranks

log = structlog.get_logger()

_EXIT_TIMEOUT_S = 20
_CPU = torch.device("cpu")
WEIGHTS = ("auto", "bf16", "int8", "int4")


def tap_layers(config: TargetConfig, num_layers: int) -> tuple[int, ...]:
    """Return the tapped layers: those configured, or EAGLE-3's usual three and the last output.

    From that the target's own distribution can be computed, which is what trainers want to know.
    """
    if not config.tap_layers:
        usual = {min(2, num_layers - 1), num_layers // 2, max(num_layers - 3, 0)}
        return (*sorted(usual), num_layers)
    layers = config.tap_layers.split(",")
    for layer in layers:
        if not layer.strip().isdecimal() or int(layer) > num_layers:
            raise ValueError(f"tap_layers must be in [0, {num_layers}], got {layer!r}")
    return tuple(map(int, layers))


def context_len(config: TargetConfig, model: ModelConfig) -> int:
    """Return the longest session this service takes: the model allows it, the cache holds it."""
    if config.max_context_len > model.max_context_len:
        raise ValueError(
            f"max_context_len is {config.max_context_len}, the model allows {model.max_context_len}"
        )
    held = config.kv_tokens // PAGE_LEN * PAGE_LEN - SPARE_SLOTS
    longest = config.max_context_len or min(model.max_context_len, held)
    if not 1 <= longest <= held:
        raise ValueError(
            f"kv_tokens is {config.kv_tokens}, which holds sessions of {max(held, 0)} tokens; "
            f"max_context_len is {config.max_context_len or model.max_context_len}"
        )
    return longest


def check_step_rows(config: TargetConfig) -> None:
    """Raise ValueError unless a chunk of a prompt and the largest tree fit a step."""
    if config.step_rows < config.prefill_chunk + SPARE_SLOTS:
        raise ValueError(
            f"step_rows must be at least prefill_chunk {config.prefill_chunk} + {SPARE_SLOTS}, "
            f"got {config.step_rows}"
        )


def model_dtype(config: TargetConfig) -> torch.dtype:
    """Return the one dtype of all that is not quantized: some checkpoints mix them."""
    if config.weights == "bf16":
        if config.dtype not in ("auto", "bfloat16"):
            raise ValueError(f"weights is 'bf16', but dtype is {config.dtype!r}")
        return torch.bfloat16
    if config.dtype != "auto":
        return parse_dtype(config.dtype)
    return Weights(config.model)["model.embed_tokens.weight"].dtype


def weight_format(config: TargetConfig) -> str:
    """Return how linear layers keep their weights. Raises ValueError for an unknown setting."""
    if config.weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}, got {config.weights!r}")
    return config.weights if config.weights in WEIGHT_FORMATS else "dense"


def kernels_on(device: torch.device, config: TargetConfig) -> Selection:
    """Use the kernels of a device. Raises ValueError for settings that it cannot serve."""
    if device.type == "cpu":
        return select(config.kernels, config.threads)
    check_settings(config, model_dtype(config))
    select("reference", config.threads)
    return Selection("triton")


def kernels_of(config: TargetConfig, kernels: Selection, model: TargetModel) -> str:
    """Name the kernels that run a model. Raises ValueError if others were demanded."""
    if model.is_native or kernels.name in ("reference", "triton"):
        return kernels.name
    found = f"{str(model.dtype).removeprefix('torch.')}, head_dim {model.config.head_dim}"
    if model.kv_shape.keys_are_values:
        found += ", latent attention"
    reason = (
        f"they serve bfloat16, head sizes up to {MAX_HEAD_DIM} and no latent attention; "
        f"the model has {found}"
    )
    if config.kernels == "native":
        raise ValueError(f"kernels is 'native', but {reason}")
    log.warning("native_kernels_unavailable", reason=reason)
    return "reference"


def load(
    config: TargetConfig, kernels: Selection, device: torch.device = _CPU
) -> tuple[TargetModel, TargetFacts]:
    """Load the model and state the facts about it. Its weights are on the CPU."""
    kept_as = weight_format(config)
    raw_config = read_config(config.model)
    model_cfg = model_config(raw_config)
    layers = tap_layers(config, model_cfg.num_layers)
    check_step_rows(config)
    limit = context_len(config, model_cfg)
    weights = Weights(config.model, model_dtype(config))
    model = build_model(model_cfg, weights, limit + SPARE_SLOTS, kept_as)
    return model, TargetFacts(
        model_name=config.model.resolve().name,
        pairing=_pairing(config.model, model, layers),
        num_layers=model_cfg.num_layers,
        max_context_len=limit,
        weights=_weights_of(model),
        device=devices_to_text(device, config.tensor_parallel),
        kernels=kernels_of(config, kernels, model),
        allows_forced_acceptance=config.allow_forced_acceptance,
    )


def _weights_of(model: TargetModel) -> str:
    is_dense = model.weight_format == "dense"
    return str(model.dtype).removeprefix("torch.") if is_dense else model.weight_format


def _pairing(model_dir: Path, model: TargetModel, layers: tuple[int, ...]) -> Pairing:
    return Pairing(
        hidden_size=model.config.hidden_size,
        vocab_size=model.config.vocab_size,
        tap_layers=layers,
        tap_dtype=tensors.wire_dtype(model.dtype),
        target_fingerprint=pairing.fingerprint(model_dir),
        tokenizer_digest=pairing.tokenizer_digest(model_dir),
    )


def new_engine(
    config: TargetConfig,
    model: TargetModel,
    facts: TargetFacts,
    device: torch.device = _CPU,
    ranks: Ranks | None = None,
) -> StepEngine:
    """Return the engine; with `ranks`, one that leads them.

    Raises ValueError if there is no memory for its KV cache.
    """
    try:
        if device.type == "cpu":
            return Engine(model, facts.pairing.tap_layers, config.kv_tokens // PAGE_LEN)
        return _new_device_engine(config, model, facts, device, ranks)
    except (OSError, torch.OutOfMemoryError) as error:
        message = f"kv_tokens is {config.kv_tokens}, more than this machine has memory for: {error}"
        raise ValueError(message) from error


def _new_device_engine(
    config: TargetConfig,
    model: TargetModel,
    facts: TargetFacts,
    device: torch.device,
    ranks: Ranks | None,
) -> StepEngine:
    # Triton is only on Linux, and a CPU has no use for it.
    from kernels.gpu.graphs import capture_on
    from target_service.device_engine import DeviceEngine, Load
    from target_service.device_steps import Place
    from target_service.graphs import prepare

    place = Place(device, capture_on(device, enabled=config.graphs))
    if ranks is not None:
        place = replace(place, team=ranks.join(), lead=ranks.lead)
    most = Load.of(config, facts.max_context_len)
    pages = config.kv_tokens // PAGE_LEN
    engine = DeviceEngine(model, facts.pairing.tap_layers, pages, most, place)
    log.info("device_memory", **engine.num_bytes._asdict())
    if ranks is not None:
        ranks.wait_loaded()
    prepare(engine.prepare)
    return engine


@contextmanager
def ranks_of(config: TargetConfig, devices: Sequence[torch.device]) -> Iterator[Ranks | None]:
    """The processes of all devices but the first, if there are others."""
    if len(devices) == 1:
        yield None
        return
    from target_service.ranks import Ranks

    with Ranks(config, devices) as ranks:
        try:
            yield ranks
        finally:
            # Whatever a library still waits for then, this process has nothing left to do.
            signal.alarm(_EXIT_TIMEOUT_S)


async def main() -> None:
    """Serve until a signal."""
    config = TargetConfig(_cli_parse_args=True)  # type: ignore[call-arg]
    serving.configure_logging(config.log_level)
    serving.check_listen_address(config.listen, insecure=config.insecure)
    torch.set_num_threads(config.threads)
    devices = devices_of(config.device, config.tensor_parallel)
    kernels = kernels_on(devices[0], config)
    if kernels.shortcoming:
        log.warning("native_kernels_unavailable", reason=kernels.shortcoming)
    model, facts = load(config, kernels, devices[0])
    check_parallel(config, model)
    with ranks_of(config, devices) as ranks:
        await _serve(config, facts, new_engine(config, model, facts, devices[0], ranks))


async def _serve(config: TargetConfig, facts: TargetFacts, engine: StepEngine) -> None:
    scheduler = Scheduler(
        KvMemory(config.kv_tokens // PAGE_LEN),
        step_rows=config.step_rows,
        chunk_len=config.prefill_chunk,
        max_sessions=config.max_sessions,
    )
    hub = TapHub(
        facts.pairing,
        max_bytes=config.tap_buffer_mib * 2**20,
        attach_timeout_s=config.attach_timeout_s,
    )
    loop = StepLoop(engine, scheduler, hub)
    server = serving.new_server()
    servicer = TargetServicer(facts, loop, scheduler, hub)
    target_pb2_grpc.add_TargetServiceServicer_to_server(servicer, server)
    log.info(
        "loaded",
        model=facts.model_name,
        weights=facts.weights,
        kernels=facts.kernels,
        device=facts.device,
        threads=config.threads,
    )
    await until_one_ends(loop.serve(), serving.serve(server, config.listen, "target"))


async def until_one_ends(*parts: Coroutine[None, None, None]) -> None:
    """Run the parts of the service; when one ends, the others do. Raises what it ended with.

    A target that takes sessions must step, and one that cannot must not take them.
    """
    tasks = [asyncio.create_task(part) for part in parts]
    done, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        task.cancel()
    for task in done:
        task.result()


if __name__ == "__main__":
    serving.run(main)
