"""What a step on a GPU writes on its way: made for the largest bucket; smaller ones take the first.

Legend: see `device_buffers`; V vocabulary, X tokens of a device, B blocks of the vocabulary, 5
numbers of a row's choice.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch

from kernels.gpu.accepted_rows import Accepted
from kernels.gpu.agreement_sampler import SamplerScratch
from kernels.gpu.attention_shape import AttentionPlan, new_plan
from kernels.gpu.tree_geometry import Geometry
from kernels.gpu.vocabulary import BLOCK_LEN
from protos.messages import MAX_TREE_NODES
from target_service.buckets import Bucket
from target_service.device_buffers import StepLimits
from target_service.device_layers import (
    DeviceLayers,
    LayerWork,
    attention_shape,
    new_layer_work,
)
from target_service.device_model import DeviceModel

_ITEMS_A_PROGRAM = 4
"""Of attention: so that programs end at about the same time."""

Buffers = TypeVar("Buffers", Geometry, SamplerScratch)


class WorkBuffers(NamedTuple):
    """Buffers that no one reads after the step but the logits."""

    limits: StepLimits
    h_RH: torch.Tensor
    slots_R: torch.Tensor
    depths_R: torch.Tensor
    layer: LayerWork[Any]
    plan: AttentionPlan
    taps_LRH: torch.Tensor
    picked_MH: torch.Tensor
    own_logits_MX: torch.Tensor
    """Of the tokens of this device's head; where they are all, these are the logits."""
    logits_MV: torch.Tensor
    shaped_MV: torch.Tensor
    whole_M5: torch.Tensor
    geometry_M: Geometry
    sampler: SamplerScratch
    bonus_N: torch.Tensor
    lengths_N: torch.Tensor
    accepted: Accepted
    """Without the kept rows: they are an input."""

    def first(self, bucket: Bucket) -> WorkBuffers:
        """Return the buffers of a bucket."""
        rows, nodes, sessions = bucket
        paths_NT, path_lens_N, kept_rows_R = self.accepted
        return WorkBuffers(
            self.limits,
            self.h_RH[:rows],
            self.slots_R[:rows],
            self.depths_R[:rows],
            self.layer.rows(rows),
            self.plan.first(rows, sessions),
            self.taps_LRH[:, :rows],
            self.picked_MH[:nodes],
            self.own_logits_MX[:nodes],
            self.logits_MV[:nodes],
            self.shaped_MV[:nodes],
            self.whole_M5[:nodes],
            _first(self.geometry_M, nodes),
            _first(self.sampler, nodes),
            self.bonus_N[:sessions],
            self.lengths_N[:sessions],
            Accepted(paths_NT[:sessions], path_lens_N[:sessions], kept_rows_R),
        )


def new_work_buffers(model: DeviceModel, limits: StepLimits) -> WorkBuffers:
    """Return the buffers of the largest bucket, whose nodes are all rows."""
    rows, sessions, vocab_size = limits.rows, limits.sessions, model.vocab_size
    device = model.embedding_VH.device
    bf16 = torch.zeros(0, dtype=torch.bfloat16, device=device)
    f32, i32, i64 = (bf16.to(dtype) for dtype in (torch.float32, torch.int32, torch.int64))
    blocks = -(-vocab_size // BLOCK_LEN)
    logits_MV, own = bf16.new_zeros(rows, vocab_size), len(model.head.weight_NK)
    sampler = ((rows, blocks), (rows, 5, blocks), (rows, vocab_size), (rows,))
    return WorkBuffers(
        limits,
        h_RH=bf16.new_zeros(rows, model.hidden),
        slots_R=i32.new_zeros(rows),
        depths_R=i32.new_zeros(rows),
        layer=new_layer_work(model.stack, rows, device, [model.head]),
        plan=_new_plan(model.stack, limits, device),
        taps_LRH=bf16.new_zeros(limits.tap_layers, rows, model.hidden),
        picked_MH=bf16.new_zeros(rows, model.hidden),
        own_logits_MX=logits_MV if own == vocab_size else bf16.new_zeros(rows, own),
        logits_MV=logits_MV,
        shaped_MV=f32.new_zeros(rows, vocab_size),
        whole_M5=f32.new_zeros(rows, 5),
        geometry_M=Geometry(i64.new_zeros(rows), i32.new_zeros(rows), i64.new_zeros(rows)),
        sampler=SamplerScratch(*(f32.new_zeros(shape) for shape in sampler)),
        bonus_N=i64.new_zeros(sessions),
        lengths_N=i64.new_zeros(sessions),
        accepted=Accepted(
            i32.new_zeros(sessions, MAX_TREE_NODES), i32.new_zeros(sessions), i32.new_zeros(0)
        ),
    )


def _new_plan(layers: DeviceLayers, limits: StepLimits, device: torch.device) -> AttentionPlan:
    shape = attention_shape(layers, limits.sessions, limits.pages, device)
    items = shape.most_tiles(limits.rows) + _ITEMS_A_PROGRAM * shape.enough_tiles
    return new_plan(shape, limits.rows, items, device)


def _first(buffers: Buffers, count: int) -> Buffers:
    return type(buffers)(*(buffer[:count] for buffer in buffers))
