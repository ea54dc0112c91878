"""An EAGLE-3 checkpoint as kernels for GPUs take it. The switches are those of `eagle3_model`.

Legend: V target's vocabulary, N drafter's vocabulary, H hidden, W target's hidden, X tapped width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.eagle3_layer import angles, decoder_layer
from draft_service.drafters.eagle3_tensors import Eagle3Tensors
from kernels.gpu.stack import Stack, Weight
from kernels.linear import DenseLinear
from protos.messages import MAX_TREE_NODES


@dataclass(frozen=True)
class GpuWeights:
    """The weights. A norm that the drafter has not is None."""

    config: Eagle3Config
    embedding_VH: torch.Tensor
    tap_norms_W: tuple[torch.Tensor, ...]
    joint_norm_X: torch.Tensor | None
    fc: Weight
    embedding_norm_H: torch.Tensor | None
    hidden_norm_H: torch.Tensor
    stack: Stack
    last_norm_H: torch.Tensor | None
    head: Weight
    target_ids_N: torch.Tensor | None
    """int32; None if they are the same."""

    @classmethod
    def of(cls, tensors: Eagle3Tensors, max_context_len: int) -> GpuWeights:
        """Take the tensors of a checkpoint that is fit, which lie where they are to be used.

        Raises ValueError for tensors that the config does not promise.
        """
        config = tensors.config
        weights = cls(
            config,
            embedding_VH=tensors.embedding(),
            tap_norms_W=_tap_norms(tensors),
            joint_norm_X=_norm(
                tensors, "input_norm", config.tapped_width, there=config.norm_before_fc
            ),
            fc=Weight.of(DenseLinear(*tensors.fc())),
            embedding_norm_H=_norm(
                tensors,
                "midlayer.input_layernorm",
                config.hidden_size,
                there=config.first_layer_norm,
            ),
            hidden_norm_H=tensors.take("midlayer.hidden_norm.weight", config.hidden_size),
            stack=_stack(tensors, max_context_len),
            last_norm_H=_norm(tensors, "norm", config.hidden_size, there=config.last_norm),
            head=Weight.of(DenseLinear(tensors.head())),
            target_ids_N=_target_ids(tensors),
        )
        tensors.check_all_used()
        return weights

    @property
    def device(self) -> torch.device:
        return self.embedding_VH.device


def _tap_norms(tensors: Eagle3Tensors) -> tuple[torch.Tensor, ...]:
    config = tensors.config
    if not config.fc_norm:
        return ()
    names = [f"fc_norm.{tap}.weight" for tap in range(len(config.tap_layers))]
    return tuple(tensors.take(name, config.target_hidden_size) for name in names)


def _norm(tensors: Eagle3Tensors, name: str, width: int, *, there: bool) -> torch.Tensor | None:
    return tensors.take(f"{name}.weight", width) if there else None


def _stack(tensors: Eagle3Tensors, max_context_len: int) -> Stack:
    # Guesses reach past the last committed token.
    cos_PD, sin_PD = angles(tensors.config, max_context_len + MAX_TREE_NODES, tensors.dtype)
    turns = cos_PD.to(tensors.device), sin_PD.to(tensors.device)
    return Stack.of([decoder_layer(tensors)], turns)


def _target_ids(tensors: Eagle3Tensors) -> torch.Tensor | None:
    ids_N = tensors.target_ids()
    return None if ids_N is None else ids_N.to(tensors.device, torch.int32)
