"""Drafters to check a device with are read as checkpoints are; what a step reads of them."""

import json

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.gpu_check.draft_judge import Judge
from benchmarks.gpu_check.draft_sessions import DraftLoad, play_sessions
from benchmarks.gpu_check.drafters import EMBEDDED_DRAFTER, DrafterShape, drafters, shipped
from benchmarks.gpu_check.grown_tree import whole_plan
from draft_service.drafters.eagle3_model import Eagle3Model

CPU = torch.device("cpu")
LOAD = DraftLoad(whole_plan(steps=2, width=2), sessions=2, context=20, rounds=1)
TINY = DrafterShape("tiny", 32, 64, 2, 1, 16, 97, 50, 12)


@pytest.fixture
def embedded_dir(tmp_path):
    """What a fetched model has that its drafter shares: an embedding, and so many layers."""
    shape = EMBEDDED_DRAFTER.vocabulary, EMBEDDED_DRAFTER.hidden
    embedding_VH = torch.randn(shape, dtype=torch.bfloat16)
    save_file({"model.embed_tokens.weight": embedding_VH}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 30}))
    return tmp_path


def test_the_shipped_drafter_has_the_sizes_that_are_made_up_in_its_place(embedded_dir):
    ours, made_up = shipped(embedded_dir, LOAD.slots), EMBEDDED_DRAFTER.made_up(LOAD.slots, CPU)
    shapes = [
        {name: one.shape for name, one in checked.tensors.items() if name != "t2d"}
        for checked in (ours, made_up)
    ]
    assert shapes[0] == shapes[1]
    assert ours.bytes_read(3) == made_up.bytes_read(3)


def test_the_shipped_drafter_is_checked_where_its_target_was_fetched(embedded_dir):
    (name, read), *_ = drafters(LOAD.slots, embedded_dir, CPU)
    checked = read()
    assert checked.name == name
    sessions, judge = play_sessions(checked.config, LOAD), Judge(checked)
    alike, _, missed = judge.judge(sessions, judge.drafts(sessions, LOAD), LOAD)
    assert alike == LOAD.sessions
    assert missed < 1


def test_a_level_reads_all_but_what_fuses_taps_and_what_is_looked_up():
    checked = TINY.made_up(64, CPU)
    sizes = {name: one.numel() * one.element_size() for name, one in checked.tensors.items()}
    fusion, looked_up = sizes["fc.weight"], sizes["embed_tokens.weight"] + sizes["d2t"]
    one, two = checked.bytes_read(1), checked.bytes_read(2)
    assert one == sum(sizes.values()) - looked_up
    assert two - one == one - fusion


def test_a_drafter_in_float32_has_the_weights_it_has_in_bfloat16():
    checked = TINY.made_up(64, CPU)
    exact, rounded = (checked.read(dtype) for dtype in (torch.float32, torch.bfloat16))
    assert exact.head().dtype == torch.float32
    assert torch.equal(exact.head(), rounded.head().float())
    assert Eagle3Model(exact, 64).target_ids == Eagle3Model(rounded, 64).target_ids
