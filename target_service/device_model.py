"""A model as kernels for GPUs read it, on one device.

Legend: V vocabulary, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kernels.gpu.stack import Gather, Weight
from target_service.device_layers import DeviceLayers, layers_of
from target_service.models.target_model import TargetModel


@dataclass(frozen=True)
class DeviceModel:
    """The weights. A head may be the embedding, or a part of the vocabulary's."""

    embedding_VH: torch.Tensor
    stack: DeviceLayers
    last_norm_H: torch.Tensor
    head: Weight

    @classmethod
    def of(cls, model: TargetModel, device: torch.device) -> DeviceModel:
        """Take a model's weights to a device, layer by layer.

        Raises ValueError for weights and sizes that kernels for GPUs do not take.
        """
        stack = layers_of(model, device)
        embedding_VH = model.embedding_VH.to(device)
        head, norm_H = Weight.of(model.head.linear), model.head.norm_K
        assert norm_H is not None, "a model norms what its head reads"
        if len(head.weight_NK) == len(embedding_VH) and model.config.tied_head:
            head = Weight(embedding_VH, None)
        return cls(embedding_VH, stack, norm_H.to(device), head.to(device))

    def shared(self, gather: Gather) -> DeviceModel:
        """Return the model of a device that has slices of layers, and gathers what they add."""
        return replace(self, stack=replace(self.stack, gather=gather))

    @property
    def hidden(self) -> int:
        return self.embedding_VH.shape[1]

    @property
    def vocab_size(self) -> int:
        return len(self.embedding_VH)
