"""On real devices: launched and captured steps say the same bits, and what the CPU says."""

import pytest
import torch

from kernels.gpu.graphs import capture_on
from target_service.config import TargetConfig
from target_service.device import devices_of
from target_service.device_engine import DeviceEngine, Load
from target_service.device_steps import Place
from target_service.graphs import prepare
from target_service.models.target_model import TargetModel
from target_service.ranks import Ranks
from target_service.session import SPARE_SLOTS
from tests.target_service.gpu.tiny_steps import SAMPLINGS, TAPS
from tests.target_service.played_session import CACHE_PAGES, PlayedSession, Told

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
NUM_NEW = 12


def play(model: TargetModel, engine: DeviceEngine | None = None) -> PlayedSession:
    prompt = [(7 * i) % 101 for i in range(90)]
    return PlayedSession(
        model, prompt, SAMPLINGS["everything"], tap_layers=TAPS, chunk_len=40, engine=engine
    )


def told_on_device(model: TargetModel, right: list[int], *, graphs: bool) -> Told:
    """What is told with prompts in chunks, plain steps, and a tree whose second branch is right."""
    device = torch.device("cuda", 0)
    capture = capture_on(device, enabled=graphs)
    load, place = Load(128, 4, 640), Place(device, capture)
    engine = DeviceEngine(model, TAPS, CACHE_PAGES, load, place)
    prepare(engine.prepare)
    session = play(model, engine)
    session.decode(4)
    session.verify([1 + right[4] % 9, *right[4:8]], [0, 0, 2, 3, 4])
    return session.decode(NUM_NEW)


@pytest.mark.parametrize("kind", ["llama", "kimi", "all switches"])
def test_graphs_change_no_bit_and_tokens_are_those_of_the_cpu(models, kind):
    right = play(models[kind]).decode(NUM_NEW).tokens
    launched, captured = (
        told_on_device(models[kind], right, graphs=graphs) for graphs in (False, True)
    )
    launched.assert_begins_as(captured)
    assert launched.tokens[:NUM_NEW] == right


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds fewer than two CUDA devices")
def test_two_devices_say_what_the_cpu_says(models, directories):
    kind = "two key-value heads"
    devices = devices_of("cuda", 2)
    longest = CACHE_PAGES * 64 - SPARE_SLOTS
    settings = {"kv_tokens": CACHE_PAGES * 64, "max_context_len": longest, "max_sessions": 4}
    taps = ",".join(map(str, TAPS))
    config = TargetConfig(model=directories[kind], tap_layers=taps, step_rows=128, **settings)
    capture = capture_on(devices[0], enabled=True)
    with Ranks(config, devices) as ranks:
        place = Place(devices[0], capture, ranks.join(), ranks.lead)
        engine = DeviceEngine(models[kind], TAPS, CACHE_PAGES, Load.of(config, longest), place)
        ranks.wait_loaded()
        prepare(engine.prepare)
        told = play(models[kind], engine).decode(NUM_NEW)
    assert told.tokens == play(models[kind]).decode(NUM_NEW).tokens
