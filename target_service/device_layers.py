"""The layers of a model on a GPU, ordinary or with latent attention, as a step needs them.

Legend: see `device_buffers`; T taps, P positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import torch

from kernels.gpu.attention_shape import AttentionShape
from kernels.gpu.decoder import Places, decode_layers, new_layer_buffers
from kernels.gpu.latent_attention import LATENT_TILINGS
from kernels.gpu.latent_decoder import decode_latent_layers, new_latent_buffers
from kernels.gpu.latent_stack import LatentStack
from kernels.gpu.paged_attention import PAGED_TILINGS
from kernels.gpu.pages import Pages, new_latent_pages, new_pages
from kernels.gpu.runtime import tiling_of
from kernels.gpu.stack import Stack, Weight
from target_service.models.target_model import TargetModel

DeviceLayers = Stack | LatentStack


def layers_of(model: TargetModel, device: torch.device) -> DeviceLayers:
    """Take a model's layers to a device, one after the other.

    Raises ValueError for weights and sizes that kernels for GPUs do not take.
    """
    kind = LatentStack if model.kv_shape.keys_are_values else Stack
    return kind.of(model.stack.layers, model.stack.angles, device)


def new_pages_of(layers: DeviceLayers, num_pages: int, device: torch.device) -> Pages:
    """Return pages for what these layers keep."""
    if isinstance(layers, LatentStack):
        return new_latent_pages(num_pages, len(layers.layers), layers.head_dim, device)
    return new_pages(num_pages, len(layers.layers), layers.kv_heads, layers.head_dim, device)


def attention_shape(
    layers: DeviceLayers, sessions: int, pages: int, device: torch.device
) -> AttentionShape:
    """Return how attention of so many sessions and their pages fills a chip."""
    num_layers, head_dim = len(layers.layers), layers.head_dim
    if isinstance(layers, LatentStack):
        tiling, dims = tiling_of(LATENT_TILINGS, device), (1, head_dim, layers.latent)
    else:
        tiling, dims = tiling_of(PAGED_TILINGS, device), (layers.kv_heads, head_dim, head_dim)
    return AttentionShape(tiling, layers.heads, *dims, num_layers, sessions, pages)


class Buffers(Protocol):
    """What layers of some kind write on their way."""

    @property
    def scratch(self) -> torch.Tensor:
        """Of products, float32."""

    def rows(self, count: int) -> Self:
        """Return the buffers of the first rows."""


OwnBuffers = TypeVar("OwnBuffers", bound=Buffers)
Taps = Mapping[int, torch.Tensor]
Run = Callable[[torch.Tensor, Places, Pages, OwnBuffers, torch.Tensor, Taps], torch.Tensor]


@dataclass(frozen=True)
class LayerWork(Generic[OwnBuffers]):
    """Layers, and the buffers of a bucket that they are computed in."""

    run: Run[OwnBuffers]
    buffers: OwnBuffers

    @property
    def scratch(self) -> torch.Tensor:
        """Of products, float32."""
        return self.buffers.scratch

    def rows(self, count: int) -> LayerWork[OwnBuffers]:
        """Return the work of the first rows."""
        return replace(self, buffers=self.buffers.rows(count))

    def decode(
        self,
        h_RH: torch.Tensor,
        places: Places,
        pages: Pages,
        last_norm_H: torch.Tensor,
        taps_TRH: Taps,
    ) -> torch.Tensor:
        """Run all layers as `kernels.gpu.decoder.decode_layers` does."""
        return self.run(h_RH, places, pages, self.buffers, last_norm_H, taps_TRH)


def new_layer_work(
    layers: DeviceLayers, rows: int, device: torch.device, others: Iterable[Weight]
) -> LayerWork[Any]:
    """Return room for up to so many rows; the scratch is enough for `others`, too."""
    if isinstance(layers, LatentStack):
        latent_buffers = new_latent_buffers(layers, rows, device, others)
        return LayerWork(
            lambda h_RH, *rest: decode_latent_layers(h_RH, layers, *rest), latent_buffers
        )
    buffers = new_layer_buffers(layers, rows, device, others)
    return LayerWork(lambda h_RH, *rest: decode_layers(h_RH, layers, *rest), buffers)
