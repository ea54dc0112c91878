"""Made-up checkpoints: what a step takes does not depend on what its weights are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from benchmarks.gpu_check.case import bytes_of
from kernels.rotary import Rope
from target_service.models.llama import Llama, LlamaConfig
from target_service.models.target_model import TargetModel

_SPREAD = 0.02
"""Of random weights."""
Named = Iterator[tuple[str, torch.Tensor]]
NewMatrix = Callable[[int, int], torch.Tensor]


class MadeUp(NamedTuple):
    """A model, and how many bytes of its weights a step reads. One on disk may take its place."""

    name: str
    model: TargetModel
    bytes_read: float


class Tensors:
    """A checkpoint that lies in memory, read as one on disk is."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype = torch.bfloat16
    ) -> None:
        self._tensors = tensors
        self._dtype = dtype

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def stored(self, name: str) -> torch.Tensor:
        """Return a tensor as it is."""
        return self._tensors[name]

    def get(self, name: str) -> torch.Tensor | None:
        """Return a tensor, or None if there is none."""
        return self[name] if name in self._tensors else None


def matrices(device: torch.device) -> NewMatrix:
    """Return what makes matrices of so many outputs and inputs."""

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        return (_SPREAD * torch.randn(outputs, inputs, device=device)).bfloat16()

    return matrix


def norm(width: int, device: torch.device) -> torch.Tensor:
    """Return the weight of a norm."""
    return torch.ones(width, dtype=torch.bfloat16, device=device)


def gated(prefix: str, hidden: int, width: int, matrix: NewMatrix) -> Named:
    """Yield the tensors of a gated feed-forward layer."""
    for name in ("gate", "up"):
        yield f"{prefix}.{name}_proj.weight", matrix(width, hidden)
    yield f"{prefix}.down_proj.weight", matrix(hidden, width)


@dataclass(frozen=True)
class LlamaShape:
    """How large a model of the Llama family is."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    def made_up(self, slots: int, device: torch.device) -> MadeUp:
        """Return such a model, for texts of so many slots."""
        torch.manual_seed(0)
        tensors = dict(self._tensors(device))
        config = LlamaConfig(
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_layers=self.layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocabulary,
            rms_norm_eps=1e-5,
            tied_head=True,
            max_context_len=slots,
            rope=Rope(self.head_dim, 1e4, {}, slots),
        )
        model = Llama(config, Tensors(tensors), slots)
        return MadeUp(self.name, model, bytes_of(*tensors.values()))

    def _tensors(self, device: torch.device) -> Named:
        matrix, hidden = matrices(device), self.hidden
        attended, kept = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "model.embed_tokens.weight", matrix(self.vocabulary, hidden)
        yield "model.norm.weight", norm(hidden, device)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            for name, outputs in (("q", attended), ("k", kept), ("v", kept)):
                yield f"{prefix}.self_attn.{name}_proj.weight", matrix(outputs, hidden)
            yield f"{prefix}.self_attn.o_proj.weight", matrix(hidden, attended)
            yield from gated(f"{prefix}.mlp", hidden, self.inner, matrix)
            for name in ("input", "post_attention"):
                yield f"{prefix}.{name}_layernorm.weight", norm(hidden, device)
