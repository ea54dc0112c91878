"""A Llama as kernels for GPUs read it: dense bfloat16 weights on one device.

Legend: V vocabulary, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.gpu.stack import Stack, Weight
from target_service.models.llama import Llama


@dataclass(frozen=True)
class DeviceModel:
    """The weights. A head may be the embedding."""

    embedding_VH: torch.Tensor
    stack: Stack
    last_norm_H: torch.Tensor
    head: Weight

    @classmethod
    def of(cls, model: Llama, device: torch.device) -> DeviceModel:
        """Take a model's weights to a device, layer by layer.

        Raises ValueError if they are not dense bfloat16.
        """
        stack = Stack.of(model.stack.layers, model.stack.angles, device)
        embedding_VH = model.embedding_VH.to(device)
        head, norm_H = Weight.of(model.head.linear), model.head.norm_K
        assert norm_H is not None, "a Llama norms what its head reads"
        if model.config.tied_head:
            head = Weight(embedding_VH, None)
        return cls(embedding_VH, stack, norm_H.to(device), head.to(device))

    @property
    def hidden(self) -> int:
        return self.embedding_VH.shape[1]

    @property
    def vocab_size(self) -> int:
        return len(self.embedding_VH)
