"""EAGLE-3 drafters to check: one of Kimi-K2.5's widths, one of the embedded model's, and its own.

Legend: N drafter's vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu_check.case import bytes_of
from benchmarks.gpu_check.made_up import Named, Tensors, gated
from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.eagle3_tensors import IGNORED_TENSORS, Eagle3Tensors
from draft_service.drafters.target_side import TargetSide
from draft_service.shelf import SHELF
from draft_service.weights import open_drafter, read_config, target_embedding
from protos.pairing import Pairing

_CPU = torch.device("cpu")
_SHIPPED = "smollm2-135m-eagle3"
_GAIN = 2.0
"""Of a matrix: rows differ in what they attend to, and what comes out has no near equals."""
_LOOKED_UP = ("embed_tokens.weight", "d2t", *IGNORED_TENSORS)


class CheckedDrafter(NamedTuple):
    """A checkpoint on the host, and the target that it is for."""

    name: str
    config: Eagle3Config
    tensors: Mapping[str, torch.Tensor]
    target: TargetSide

    @property
    def pairing(self) -> Pairing:
        config = self.config
        return Pairing(config.target_hidden_size, config.vocab_size, config.tap_layers)

    def read(self, dtype: torch.dtype, device: torch.device = _CPU) -> Eagle3Tensors:
        """Return its tensors as drafters read them, in a dtype, on a device."""
        return Eagle3Tensors(self.config, Tensors(self.tensors, dtype), self.target, device)

    def bytes_read(self, levels: int) -> int:
        """Return what a step reads of the weights: each level reads all but the fusion of taps."""
        whole = {name: one for name, one in self.tensors.items() if name not in _LOOKED_UP}
        fusion = whole.pop("fc.weight")
        return bytes_of(fusion) + levels * bytes_of(*whole.values())


@dataclass(frozen=True)
class DrafterShape:
    """How large a drafter is that reads three taps of a target as wide as itself."""

    name: str
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    draft_vocabulary: int
    target_layers: int

    def made_up(self, slots: int, device: torch.device) -> CheckedDrafter:
        """Return such a drafter for texts of so many slots; the device makes it."""
        torch.manual_seed(0)
        config = Eagle3Config.from_json(self._config(), self.target_layers)
        tensors = {name: one.cpu() for name, one in self._tensors(device)}
        target = TargetSide(self.target_layers, self.vocabulary, self.hidden, slots)
        return CheckedDrafter(self.name, config, tensors, target)

    def _config(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "draft_vocab_size": self.draft_vocabulary,
            "rope_theta": 50000.0,
        }

    def _tensors(self, device: torch.device) -> Named:
        def matrix(outputs: int, inputs: int) -> torch.Tensor:
            drawn = torch.randn(outputs, inputs, dtype=torch.bfloat16, device=device)
            return drawn.mul_(_GAIN * inputs**-0.5)

        hidden, attended = self.hidden, self.heads * self.head_dim
        kept = self.kv_heads * self.head_dim
        yield "fc.weight", matrix(hidden, 3 * hidden)
        yield "embed_tokens.weight", matrix(self.vocabulary, hidden)
        yield "lm_head.weight", matrix(self.draft_vocabulary, hidden)
        for name, outputs in (("q", attended), ("k", kept), ("v", kept)):
            yield f"midlayer.self_attn.{name}_proj.weight", matrix(outputs, 2 * hidden)
        yield "midlayer.self_attn.o_proj.weight", matrix(hidden, attended)
        yield from gated("midlayer.mlp", hidden, self.inner, matrix)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            yield f"midlayer.{name}.weight", _norm(hidden, device)
        yield "norm.weight", _norm(hidden, device)
        yield "d2t", self._offsets()

    def _offsets(self) -> torch.Tensor:
        """Draw which of the target's tokens it knows."""
        known_N = torch.randperm(self.vocabulary)[: self.draft_vocabulary].sort().values
        return known_N - torch.arange(self.draft_vocabulary)


KIMI_DRAFTER = DrafterShape("Kimi-K2.5's widths", 7168, 12288, 64, 64, 128, 163840, 32000, 61)
"""The layer of lightseekorg/kimi-k2.5-eagle3; drafters that know 32,000 tokens are as common."""
EMBEDDED_DRAFTER = DrafterShape("SmolLM2-135M's widths", 576, 1536, 9, 3, 64, 49152, 8192, 30)


def _norm(width: int, device: torch.device) -> torch.Tensor:
    return (0.5 + torch.rand(width, device=device)).bfloat16()


def drafters(
    slots: int, embedded_dir: Path | None, device: torch.device
) -> list[tuple[str, Callable[[], CheckedDrafter]]]:
    """Return every drafter by its name, to be read when it is wanted.

    The shipped one needs the embedded model.
    """
    first = EMBEDDED_DRAFTER.name, partial(EMBEDDED_DRAFTER.made_up, slots, device)
    if embedded_dir is not None:
        first = f"the shipped {_SHIPPED}", partial(shipped, embedded_dir, slots)
    return [first, (KIMI_DRAFTER.name, partial(KIMI_DRAFTER.made_up, slots, device))]


def shipped(embedded_dir: Path, slots: int) -> CheckedDrafter:
    """Return the drafter of the embedded model, with the embedding that both share."""
    directory = SHELF / _SHIPPED
    said, weights = read_config(directory), open_drafter(directory)
    layers = read_config(embedded_dir)["num_hidden_layers"]
    config = Eagle3Config.from_json(said, layers)
    embedding_VH = target_embedding(embedded_dir)
    tensors = {name: weights[name] for name in weights} | {"embed_tokens.weight": embedding_VH}
    target = TargetSide(layers, config.vocab_size, config.target_hidden_size, slots)
    return CheckedDrafter(f"the shipped {_SHIPPED}", config, tensors, target)
