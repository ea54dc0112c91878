"""Linear layers of a checkpoint: of the shape its config promises, in the format it keeps them in.

Legend: N outputs, K inputs, V vocabulary, H hidden.
"""

from __future__ import annotations

from typing import Protocol

import torch

from kernels.linear import Linear
from kernels.normed_linear import NormedLinear
from kernels.quantized_linear import Int4Linear, new_linear
from target_service.models.quantization import Int4Groups
from target_service.weights import Checkpoint


class HeadConfig(Protocol):
    """What a config.json says about the output head."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def tied_head(self) -> bool: ...


def read_tensor(weights: Checkpoint, name: str, *shape: int) -> torch.Tensor:
    """Return a tensor. Raises ValueError if it is missing or has another shape."""
    return _checked(name, weights[name], shape)


class CheckpointLinears:
    """Makes layers of a checkpoint's tensors by their names, each read once."""

    def __init__(
        self,
        weights: Checkpoint,
        like: torch.Tensor,
        quantization: Int4Groups | None,
        weight_format: str,
    ) -> None:
        """Activations are `like` this; weights that are not quantized are brought to a format.

        Raises ValueError if that is another than "dense", and some are quantized already.
        """
        if quantization is not None and weight_format != "dense":
            raise ValueError(
                f"weights is {weight_format!r}, but the checkpoint's are quantized to int4 already"
            )
        self.weights = weights
        self._like = like.new_empty(0)
        self._quantization = quantization
        self._weight_format = weight_format

    def __call__(self, name: str, outputs: int, inputs: int) -> Linear:
        """Return a layer. Raises ValueError if it is missing or has another shape."""
        bias_N = self.weights.get(f"{name}.bias")
        if self._is_packed(name):
            return self._packed(name, outputs, inputs, bias_N)
        weight_NK = self.tensor(f"{name}.weight", outputs, inputs)
        return new_linear(self._weight_format, weight_NK, bias_N)

    def matrix(self, name: str, outputs: int, inputs: int) -> torch.Tensor:
        """Return the weight of a layer that others are made of, [N, K]: a small one."""
        if self._is_packed(name):
            return self._packed(name, outputs, inputs, None).dequantized(self._like.dtype)
        return self.tensor(f"{name}.weight", outputs, inputs)

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """Return a tensor. Raises ValueError if it is missing or has another shape."""
        return read_tensor(self.weights, name, *shape)

    def head(self, config: HeadConfig, embedding_VH: torch.Tensor) -> NormedLinear:
        """Return the last norm and the output head, which may be the embedding."""
        sizes = (config.vocab_size, config.hidden_size)
        tied = config.tied_head
        head = new_linear(self._weight_format, embedding_VH) if tied else self("lm_head", *sizes)
        norm_H = self.tensor("model.norm.weight", config.hidden_size)
        return NormedLinear(head, norm_H, config.rms_norm_eps)

    def unrounded(self, name: str, *shape: int) -> torch.Tensor:
        """Return a tensor in float32, as exact as it is stored. Raises ValueError as `tensor`."""
        return _checked(name, self.weights.stored(name).float(), shape)

    def _is_packed(self, name: str) -> bool:
        return self._quantization is not None and self._quantization.covers(name)

    def _packed(
        self, name: str, outputs: int, inputs: int, bias_N: torch.Tensor | None
    ) -> Int4Linear:
        stored, shape = self.weights.stored, (outputs, inputs)
        if (found := stored(f"{name}.weight_shape").tolist()) != list(shape):
            raise ValueError(f"{name}.weight_shape is {found}, expected {list(shape)}")
        parts = stored(f"{name}.weight_packed"), stored(f"{name}.weight_scale")
        try:
            return Int4Linear.from_packed(*parts, shape, self._like, bias_N)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def _checked(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {list(tensor.shape)}, expected {list(shape)}")
    return tensor
