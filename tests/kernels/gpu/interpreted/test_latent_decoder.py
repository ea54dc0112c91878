"""Layers with latent attention against those of kernels/decoder.py: as near to float32 as they are.

Legend: R rows, H hidden, T taps.
"""

from dataclasses import replace

import pytest
import torch

from kernels.attention import lay_out_rows
from kernels.decoder import decode_layers as on_cpu
from kernels.elementwise import rms_norm
from kernels.gpu import latent_decoder, latent_stack
from kernels.gpu.attention_plan import plan_attention
from kernels.gpu.attention_shape import AttentionShape, StepRows, Tiling, new_plan
from kernels.gpu.decoder import Places
from kernels.gpu.latent_decoder import decode_latent_layers, new_latent_buffers
from kernels.gpu.latent_stack import LatentStack
from kernels.gpu.pages import new_latent_pages
from kernels.kv_pages import new_shared_pages
from kernels.linear import DenseLinear
from target_service.models.target_model import TargetModel
from tests.kernels.gpu.proofs.capture_guard import CaptureGuard
from tests.kernels.gpu.tiny_latent import KINDS, write_tiny_latent
from tests.kernels.tiny_decoder import normal
from tests.target_service.played_session import load_model

PARENTS = (-1, 0, 0, 1, 2)
"""Two branches below the root: rows see their own paths."""
ROWS, CPU = len(PARENTS), torch.device("cpu")
TILING = Tiling(lines=16, warps=4, stages=2, programs=2)
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return {kind: write_tiny_latent(tmp_path_factory.mktemp("latent"), kind) for kind in KINDS}


@pytest.fixture(scope="module")
def models(directories):
    return {kind: load_model(path) for kind, path in directories.items()}


def inputs(model: TargetModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the stream, and a last norm."""
    hidden = model.config.hidden_size
    return normal(ROWS, hidden, seed=1), 1 + normal(hidden, seed=9) / 4


def places(stack: LatentStack, bucket: int) -> Places:
    """A tree without a text before it, and padding."""
    layout = lay_out_rows(torch.tensor([0]), 0, PARENTS)
    positions_R, ancestors_R = torch.zeros(2, bucket, dtype=torch.int64).unbind()
    positions_R[:ROWS], ancestors_R[:ROWS] = layout.positions_R, torch.tensor([1, 3, 5, 11, 21])
    positions_R, slots_R = positions_R.int(), torch.full((bucket,), -1, dtype=torch.int32)
    slots_R[:ROWS] = torch.arange(ROWS)
    dims = stack.heads, 1, stack.head_dim, stack.latent, len(stack.layers)
    shape = AttentionShape(TILING, *dims, sessions=1, pages=1)
    rows = StepRows(
        torch.zeros_like(positions_R),
        positions_R,
        ancestors_R,
        torch.tensor([0, ROWS], dtype=torch.int32),
        torch.tensor([0], dtype=torch.int32),
        torch.zeros(1, 1, dtype=torch.int32),
    )
    plan = new_plan(shape, bucket, shape.most_tiles(bucket) + 4, CPU)
    plan_attention(rows, plan)
    return Places(positions_R, slots_R, rows, plan)


def on_device(model: TargetModel, bucket: int = ROWS + 2) -> torch.Tensor:
    """Return taps of all layers and the last norm, [T, R, H]. Rows of padding are NaN."""
    rows_RH, norm_H = inputs(model)
    stack = LatentStack.of(model.stack.layers, model.stack.angles, CPU)
    h_RH = torch.full((bucket, rows_RH.shape[1]), torch.nan, dtype=torch.bfloat16)
    h_RH[:ROWS], at = rows_RH, places(stack, bucket)
    taps_TRH = torch.zeros(len(stack.layers) + 1, *h_RH.shape, dtype=h_RH.dtype)
    pages = new_latent_pages(1, len(stack.layers), stack.head_dim, CPU)
    pages.keys_PLCSD.fill_(torch.nan)
    buffers = new_latent_buffers(stack, bucket + 3, CPU).rows(bucket)
    with CaptureGuard(most_bytes=0):
        normed_RH = decode_latent_layers(
            h_RH, stack, at, pages, buffers, norm_H, dict(enumerate(taps_TRH))
        )
    assert pages.keys_PLCSD[:, :, :, ROWS:].isnan().all()
    assert torch.equal(h_RH[:ROWS], taps_TRH[-1, :ROWS])
    return torch.cat([taps_TRH, normed_RH[None]])[:, :ROWS]


def expected(model: TargetModel) -> torch.Tensor:
    """The same of kernels/decoder.py, in the dtype of the model."""
    rows_RH, norm_H = (x.to(model.dtype) for x in inputs(model))
    layers, like = model.stack.layers, model.stack.layers[0]
    kv = new_shared_pages(1, len(layers), 1, like.head_dim, like.post_norm_H)
    layout, taps = lay_out_rows(torch.tensor([0]), 0, PARENTS), range(len(layers) + 1)
    h_RH, taps_RX = on_cpu(rows_RH, model.stack, [layout], kv, taps)
    taps_TRH = taps_RX.unflatten(1, (len(taps), -1)).transpose(0, 1)
    return torch.cat([taps_TRH, rms_norm(h_RH, norm_H, like.eps)[None]])


def errors(model: TargetModel, path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how far both are from float32, of each tap."""
    exact = expected(load_model(path, torch.float32))
    found = on_device(model), expected(model)
    of_device, of_cpu = ((one - exact).square().mean((1, 2)).sqrt() for one in found)
    return of_device, of_cpu


@every_kind
def test_layers_are_as_near_to_float32_as_those_of_the_cpu(models, directories, kind):
    of_device, of_cpu = errors(models[kind], directories[kind])
    assert of_device[0] == of_cpu[0] == 0
    assert (of_device[1:] < 1.5 * of_cpu[1:]).all()


@pytest.mark.parametrize(
    ("where", "name", "faulty"),
    [
        (latent_stack, "_halves", lambda weight, *_: weight),
        (latent_decoder, "head_linear", lambda *args: args[-1].zero_()),
        (latent_decoder, "find_live", lambda *_: None),
    ],
    ids=["pairs that stay neighbours", "heads without a way back", "rows that choose nothing"],
)
def test_a_fault_is_seen(models, directories, monkeypatch, where, name, faulty):
    monkeypatch.setattr(where, name, faulty)
    of_device, of_cpu = errors(models["kimi"], directories["kimi"])
    assert of_device[-1] > 2 * of_cpu[-1]


@every_kind
def test_a_row_does_not_feel_the_bucket(models, kind):
    a, b = (on_device(models[kind], bucket) for bucket in (ROWS, 18))
    assert torch.equal(a, b)


def test_what_tiles_cannot_have_is_refused_with_the_size(models):
    stack = models["kimi"].stack
    wider = [replace(layer, head_dim=86) for layer in stack.layers]
    with pytest.raises(ValueError, match=r"latent part of keys has 70 .* powers of two from 64 on"):
        LatentStack.of(wider, stack.angles, CPU)


def test_a_router_that_bfloat16_would_round_is_refused_with_its_layer(models):
    first, second = models["kimi"].stack.layers
    router = DenseLinear(second.experts.router.weight_NK + 2**-20)
    finer = replace(second, experts=replace(second.experts, router=router))
    with pytest.raises(ValueError, match=r"layer 1: .* routers in bfloat16"):
        LatentStack.of([first, finer], models["kimi"].stack.angles, CPU)


def test_experts_of_two_kinds_are_refused_with_both(models):
    """A checkpoint may leave the experts of some layers as they were."""
    first, second = models["kimi"].stack.layers
    plain = models["all switches"].stack.layers[1].experts
    mixed = [replace(first, experts=plain), second]
    both = r"experts of one kind, got .*(DenseExperts.*Packed|Packed.*DenseExperts)"
    with pytest.raises(ValueError, match=both):
        LatentStack.of(mixed, models["kimi"].stack.angles, CPU)
