"""A model as kernels for GPUs read it, on one device.

Legend: V vocabulary, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.gpu.stack import Weight
from target_service.device_layers import DeviceLayers, layers_of
from target_service.models.target_model import TargetModel


@dataclass(frozen=True)
class DeviceModel:
    """The weights. A head may be the embedding."""

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
        if model.config.tied_head:
            head = Weight(embedding_VH, None)
        return cls(embedding_VH, stack, norm_H.to(device), head.to(device))

    @property
    def hidden(self) -> int:
        return self.embedding_VH.shape[1]

    @property
    def vocab_size(self) -> int:
        return len(self.embedding_VH)
