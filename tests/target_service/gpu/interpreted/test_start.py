"""The service makes the engine of its device, with the settings it was given."""

from dataclasses import replace

import pytest
import torch

from kernels.native import Selection
from target_service import __main__ as service
from target_service.config import TargetConfig
from target_service.device_engine import DeviceEngine, Load
from target_service.device_steps import Place
from target_service.engine import Engine
from tests.target_service.gpu.tiny_steps import CPU, device_engine, tree, verdict_of


@pytest.mark.parametrize("kind", ["llama", "kimi"])
def test_the_engine_is_made_from_the_settings(directories, kind, monkeypatch):
    prepared = []
    monkeypatch.setattr(DeviceEngine, "prepare", lambda engine, _: prepared.append(engine))
    config = TargetConfig(
        model=directories[kind], kv_tokens=1024, max_context_len=128, max_sessions=2
    )
    model, facts = service.load(config, Selection("triton"), torch.device("cuda", 0))
    assert (facts.device, facts.kernels) == ("cuda:0", "triton")

    engine = service._new_device_engine(config, model, facts, CPU, None)

    assert prepared == [engine]
    rows = tree([3, 4], 1, [], [], [0])
    of_cpu = Engine(model, facts.pairing.tap_layers, 16)
    assert verdict_of(engine.step([rows])[0]) == verdict_of(of_cpu.step([rows])[0])


def test_a_layer_that_is_tapped_twice_is_refused(models):
    with pytest.raises(ValueError, match=r"tap_layers must be different on a GPU, got \(1, 1\)"):
        DeviceEngine(models["llama"], (1, 1), 1, Load(4, 1, 64), Place(CPU))


def test_a_step_that_is_too_large_is_refused_and_the_next_one_runs(models):
    engine = device_engine(models["llama"], 2, Load(rows=1, sessions=1, session_slots=64))
    rows = tree([3, 4], 1, [], [], [0])
    with pytest.raises(ValueError, match="the largest step is"):
        engine.step([rows, replace(rows, pages=(1,))])
    assert engine.step([rows])[0].verdict is not None
