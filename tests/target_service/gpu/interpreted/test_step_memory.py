"""A whole step touches what is its own, and a capture nothing that is anybody's."""

import random

import pytest
from triton.runtime.errors import InterpreterError

from target_service.device_engine import Load
from target_service.device_step import DeviceStep
from target_service.engine import Engine
from tests.kernels.gpu.proofs.memory_guard import memory_guard
from tests.target_service.gpu.tiny_steps import (
    TAPS,
    VOCAB,
    chunk,
    device_engine,
    tree,
)

DRAW = random.Random(5)
TEXT = [DRAW.randrange(VOCAB) for _ in range(119)]
PARENTS = [0, 0, 1, 1, 3, 2, 5, 7]
LIMIT = Load(rows=24, sessions=4, session_slots=128)


@pytest.mark.parametrize(
    ("kind", "order"),
    [("llama", "forward"), ("kimi", "reverse"), ("all switches", "forward")],
)
def test_no_program_of_a_step_meets_another_or_leaves_its_tensors(models, kind, order):
    """A tree that ends with the context, a chunk of a prompt, a node alone; padding of each kind.

    They are told what a CPU tells.
    """
    engine, cpu = device_engine(models[kind], 5, LIMIT), Engine(models[kind], TAPS, 5)
    batch = [
        tree(TEXT, 118, TEXT[:8], PARENTS, [3, 0], "everything"),
        chunk(range(9), 7, [1]),
        tree([7, 7, 8], 1, [], [], [4], "nucleus"),
    ]
    with memory_guard(order):
        of_device = engine.step(batch)
    assert list(map(chosen, of_device)) == list(map(chosen, cpu.step(batch)))


def chosen(outcome):
    verdict = outcome.verdict
    return verdict and (verdict.path, verdict.tokens)


def captured_later(model):
    """Run a bucket, another one, and the first again, which is captured then."""
    engine = device_engine(model, 4, Load(16, 2, 128), lambda run: run)
    few = [tree([9], 0, [3, 4], [0, 0], [3], "nucleus")]
    wide = tree(list(range(6)), 0, [5, 6, 7, 8], [0, 0, 1, 2], [0], "everything")
    with memory_guard():
        engine.step(few)
        engine.step([wide, tree([7, 7, 8], 0, [4, 4], [0, 1], [1], "nucleus")])
        engine.step(few)


def test_a_bucket_that_is_captured_later_is_first_run_over_no_rows(models):
    captured_later(models["llama"])


def test_one_that_is_run_over_what_lies_there_is_found(models, monkeypatch):
    """The bytes of a step of another bucket."""
    monkeypatch.setattr(DeviceStep, "clear", lambda _: None)
    with pytest.raises(InterpreterError, match="outside its tensor"):
        captured_later(models["llama"])
