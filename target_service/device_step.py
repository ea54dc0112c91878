"""The target's step on a GPU: launches over buffers that stay, so that it can be captured.

    h = embedding of tokens; decode_layers; logits of the nodes of trees
    shape and sample; walk; move the accepted paths; gather the taps of kept rows

Legend: see `device_buffers`; V vocabulary, P parts of it, X tokens of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch

from kernels.gpu.accepted_rows import place_accepted
from kernels.gpu.agreement_sampler import Draw, agreement_tokens
from kernels.gpu.attention_plan import plan_attention
from kernels.gpu.attention_shape import StepRows
from kernels.gpu.choice import Chosen
from kernels.gpu.decoder import Places
from kernels.gpu.kept_limit import RowFilters
from kernels.gpu.kv_moves import move_accepted
from kernels.gpu.linear import linear
from kernels.gpu.packed_memory import Layout, TwinMemory
from kernels.gpu.pages import Pages
from kernels.gpu.row_slots import find_slots
from kernels.gpu.tap_gather import gather_taps
from kernels.gpu.tree_geometry import Geometry, Trees, tree_geometry
from kernels.gpu.tree_shaping import TreeLists, shape_trees
from kernels.gpu.tree_walk import Walked, tree_walk
from target_service.buckets import Bucket
from target_service.device_buffers import (
    StepInputs,
    StepOutputs,
    input_shapes,
    output_shapes,
)
from target_service.device_memory import DeviceBytes, num_bytes
from target_service.device_model import DeviceModel
from target_service.step_packing import pack
from target_service.step_shares import Share
from target_service.work_buffers import WorkBuffers


class StepMemory:
    """What the steps of all buckets share: weights, pages, and the memory of the largest."""

    def __init__(
        self,
        model: DeviceModel,
        tap_layers: Sequence[int],
        pages: Pages,
        work: WorkBuffers,
        host_memory: Callable[[int, torch.device], torch.Tensor] | None = None,
    ) -> None:
        """`host_memory` is where so many bytes of inputs lie on the host, if that is not new."""
        self.model = model
        self.tap_layers = tuple(tap_layers)
        self.pages = pages
        self.work = work
        device, limits = pages.keys_PLCSD.device, work.limits
        largest = Bucket(limits.rows, limits.rows, limits.sessions)
        num_bytes = Layout(input_shapes(largest, limits)).num_bytes
        host_B = host_memory and host_memory(num_bytes, device)
        self.inputs = TwinMemory(num_bytes, device, host_B)
        self._described: dict[Bucket, tuple[Layout, StepInputs]] = {}
        self.outputs = TwinMemory(Layout(output_shapes(largest, limits)).num_bytes, device)

    def num_bytes(self) -> DeviceBytes:
        """Return what this takes of the device."""
        buffers = num_bytes(self.work, self.inputs.device_B, self.outputs.device_B)
        return DeviceBytes(num_bytes(self.model), num_bytes(self.pages), buffers)

    def pack(self, bucket: Bucket, shares: Sequence[Share]) -> int:
        """Describe a step of a bucket in the host's memory; return in how many bytes."""
        if bucket not in self._described:
            layout = self.input_layout(bucket)
            self._described[bucket] = layout, StepInputs(**layout.views(self.inputs.host_B))
        layout, inputs = self._described[bucket]
        self.inputs.host_B[: layout.bytes_with("entries_E4", 0)].zero_()
        return layout.bytes_with("entries_E4", pack(shares, inputs))

    def input_layout(self, bucket: Bucket) -> Layout:
        """Return where the inputs of a bucket lie."""
        return Layout(input_shapes(bucket, self.work.limits))


class DeviceStep:
    """The step of one bucket."""

    def __init__(self, memory: StepMemory, bucket: Bucket) -> None:
        self.memory = memory
        self._model = memory.model
        self.bucket = bucket
        self._work = memory.work.first(bucket)
        self.logits_MV = self._work.logits_MV
        self._in = memory.input_layout(bucket)
        self._out = Layout(output_shapes(bucket, memory.work.limits))
        self.inputs = StepInputs(**self._in.views(memory.inputs.device_B))
        self.outputs = StepOutputs(**self._out.views(memory.outputs.device_B))
        self._host_outputs = StepOutputs(**self._out.views(memory.outputs.host_B))

    def clear(self) -> None:
        """Write to the inputs that no row is real."""
        self.memory.inputs.device_B[: self._in.bytes_with("entries_E4", 0)].zero_()

    def send(self, num_bytes: int) -> None:
        """Send the description of a step on its way."""
        self.memory.inputs.to_device(num_bytes)

    def read(self, num_taps: int) -> StepOutputs:
        """Wait for what the last run found out, with so many of its taps; the next one overwrites
        it.
        """
        self.memory.outputs.to_host(self._out.bytes_with("taps_RLH", num_taps))
        if self.memory.outputs.device_B.is_cuda:
            torch.cuda.current_stream(self.memory.outputs.device_B.device).synchronize()
        return self._host_outputs

    def run(self) -> None:
        """Launch everything."""
        work, model, inputs = self._work, self._model, self.inputs
        tree_geometry(self._trees_of_rows, inputs.root_slot_N, self._geometry_of_rows)
        find_slots(*self._where, work.slots_R)
        plan_attention(self._places.rows, work.plan)
        torch.index_select(model.embedding_VH, 0, inputs.tokens_R, out=work.h_RH)
        taps_TRH = dict(zip(self.memory.tap_layers, work.taps_LRH, strict=True))
        normed_RH = work.layer.decode(
            work.h_RH, self._places, self.memory.pages, model.last_norm_H, taps_TRH
        )
        if self.bucket.nodes:
            torch.index_select(normed_RH, 0, inputs.node_rows_M, out=work.picked_MH)
            self._head()
            self._choose()
            self._accept()
        if taps_TRH:
            gather_taps(work.taps_LRH, inputs.kept_rows_R, self.outputs.taps_RLH)

    def _head(self) -> None:
        """Write the logits of all nodes, which devices that share a head gather."""
        work, model = self._work, self._model
        linear(work.picked_MH, *model.head, work.own_logits_MX, work.layer.scratch)
        if work.own_logits_MX.shape != work.logits_MV.shape:
            assert model.stack.gather is not None, "others have the rest of the head"
            parts_PMX = model.stack.gather(work.own_logits_MX)
            whole_MPX = work.logits_MV.unflatten(1, (len(parts_PMX), -1))
            whole_MPX.copy_(parts_PMX.transpose(0, 1))

    def _choose(self) -> None:
        """Choose a token at every node."""
        work, inputs = self._work, self.inputs
        tree_geometry(self._trees_of_nodes, inputs.committed_lens_N, work.geometry_M)
        shaped = shape_trees(
            work.logits_MV, inputs.tree_tokens_NT, work.geometry_M, self._lists, work.shaped_MV
        )
        draw = Draw(inputs.seeds_M, work.geometry_M.positions_R)
        agreement_tokens(work.logits_MV, shaped, self._filters, draw, work.sampler, self._chosen)

    def _accept(self) -> None:
        """Keep what agrees: keys and values in their order, and which rows' taps are read."""
        work, inputs = self._work, self.inputs
        tree_walk(
            self._trees_of_nodes,
            inputs.tree_tokens_NT,
            self._chosen.tokens_R,
            work.geometry_M,
            inputs.committed_lens_N,
            self._walked,
        )
        accepted = work.accepted._replace(kept_rows_R=inputs.kept_rows_R)
        place_accepted(self._walked, inputs.root_rows_N, inputs.path_places_N, accepted)
        move_accepted(
            inputs.pages_NX,
            inputs.root_slot_N,
            accepted.paths_NT,
            accepted.path_lens_N,
            *self.memory.pages,
        )

    @cached_property
    def _trees_of_rows(self) -> Trees:
        return Trees(self.inputs.parents_NT, self.inputs.sizes_N, self.inputs.root_rows_N)

    @cached_property
    def _trees_of_nodes(self) -> Trees:
        return Trees(self.inputs.parents_NT, self.inputs.sizes_N, self.inputs.first_nodes_N)

    @cached_property
    def _geometry_of_rows(self) -> Geometry:
        return Geometry(self.inputs.ancestors_R, self._work.depths_R, self.inputs.positions_R)

    @cached_property
    def _where(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        inputs = self.inputs
        return inputs.session_R, inputs.first_row_N1, inputs.prefix_len_N, inputs.pages_NX

    @cached_property
    def _places(self) -> Places:
        inputs = self.inputs
        rows = StepRows(
            inputs.session_R,
            inputs.positions_R,
            inputs.ancestors_R,
            inputs.first_row_N1,
            inputs.root_slot_N,
            inputs.pages_NX,
        )
        return Places(inputs.positions_R, self._work.slots_R, rows, self._work.plan)

    @cached_property
    def _filters(self) -> RowFilters:
        inputs = self.inputs
        return RowFilters(
            inputs.temperatures_M, inputs.top_ks_M, inputs.top_ps_M, inputs.log_min_ps_M
        )

    @cached_property
    def _lists(self) -> TreeLists:
        return TreeLists._make(getattr(self.inputs, name) for name in TreeLists._fields)

    @cached_property
    def _chosen(self) -> Chosen:
        return Chosen(self._work.whole_M5, self.outputs.tokens_M, self.outputs.logprobs_M)

    @cached_property
    def _walked(self) -> Walked:
        work, outputs = self._work, self.outputs
        return Walked(outputs.paths_NT, outputs.accepted_N, work.bonus_N, work.lengths_N)
