"""The tensors of an EAGLE-3 checkpoint: of the shape its config promises, or refused.

A drafter whose tensors do not mean what its config says would still run, at accept length 1. So
each tensor is checked against the sizes of config and target, and one left over is an error too.
What a checkpoint leaves out, embedding or head, is the target's.

Legend: V target's vocabulary, N drafter's vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from draft_service.drafters.draft_vocabulary import known_tokens
from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.target_side import TargetSide
from draft_service.weights import Checkpoint, target_embedding, target_head
from kernels.latent_attention import LatentSizes

_CPU = torch.device("cpu")
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# Of use in training only, or a buffer that old exporters wrote out. `verifier_lm_head` is what the
# drafter learnt from, not its own head.
IGNORED_TENSORS = frozenset(
    {
        "t2d",
        "midlayer.self_attn.rotary_emb.inv_freq",
        "verifier_lm_head.weight",
        "verifier_norm.weight",
    }
)

# Two layers with the same input, and what engines call them when they are one, queries first.
DOWN_PROJECTIONS = (
    "midlayer.self_attn.q_a_proj.weight",
    "midlayer.self_attn.kv_a_proj_with_mqa.weight",
)
FUSED_DOWN = (
    "midlayer.self_attn.fused_qkv_a_proj_with_mqa.weight",
    "midlayer.self_attn.fused_qkv_a_proj.weight",
)


class Eagle3Tensors:
    """A checkpoint's tensors by name, checked, on a device, in the dtype of its `fc.weight`."""

    def __init__(
        self,
        config: Eagle3Config,
        weights: Checkpoint,
        target: TargetSide,
        device: torch.device = _CPU,
    ) -> None:
        _check_target(config, target)
        self.config = config
        self.device = device
        self._weights = weights
        self._target = target
        self._unused = set(weights) - IGNORED_TENSORS
        self.dtype = weights["fc.weight"].dtype

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Return a tensor. Raises ValueError if it is missing or has another shape."""
        self._unused.discard(name)
        return self._checked(name, self._weights[name], shape)

    def bias(self, name: str, size: int) -> torch.Tensor | None:
        """Return a linear layer's bias, or None if the checkpoint has none."""
        return self.take(name, size) if name in self._weights else None

    def down_projections(self, sizes: LatentSizes) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the down-projections of queries and of latents, from whichever form they have."""
        inputs = 2 * self.config.hidden_size
        outputs = (sizes.query_rank, sizes.latent + sizes.rotated)
        if (fused := next((name for name in FUSED_DOWN if name in self._weights), None)) is None:
            query, latent = (
                self.take(name, rows, inputs)
                for name, rows in zip(DOWN_PROJECTIONS, outputs, strict=True)
            )
        else:
            query, latent = self.take(fused, sum(outputs), inputs).split(outputs)
        return query, latent

    def fc(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return weight and bias of the layer that joins the taps."""
        config = self.config
        width = self._weights["fc.weight"].shape[-1]
        if width != config.tapped_width:
            raise ValueError(
                f"fc.weight takes {width} inputs, but {len(config.tap_layers)} taps of target "
                f"hidden size {config.target_hidden_size} make {config.tapped_width}"
            )
        weight = self.take("fc.weight", config.hidden_size, config.tapped_width)
        if config.bias:
            return weight, self.take("fc.bias", config.hidden_size)
        return weight, self.bias("fc.bias", config.hidden_size)

    def embedding(self) -> torch.Tensor:
        """Return the embedding of the target's tokens, the target's own if none was shipped."""
        shape = self.config.vocab_size, self.config.hidden_size
        if "embed_tokens.weight" in self._weights:
            return self.take("embed_tokens.weight", *shape)
        return self._shared("embed_tokens.weight", target_embedding, shape)

    def head(self) -> torch.Tensor:
        """Return the output head. One that was not shipped is cut out of a whole vocabulary's."""
        config = self.config
        if "lm_head.weight" in self._weights:
            head_NH = self.take("lm_head.weight", config.draft_vocab_size, config.hidden_size)
            return _trained(head_NH)
        shape = config.vocab_size, config.hidden_size
        tied = config.tied_head
        head_VH = self.embedding() if tied else self._shared("lm_head.weight", target_head, shape)
        ids_N = self.target_ids()
        return head_VH if ids_N is None else head_VH[ids_N]

    def target_ids(self) -> torch.Tensor | None:
        """Return the target's id of each draft token; None if they are the same."""
        config = self.config
        self._unused.discard("d2t")
        return known_tokens(self._weights, config.draft_vocab_size, config.vocab_size)

    def check_all_used(self) -> None:
        """Raise ValueError if tensors are left over."""
        if self._unused:
            raise ValueError(
                f"the config has no use for these tensors of the checkpoint: {sorted(self._unused)}"
            )

    def _shared(
        self, name: str, read: Callable[[Path], torch.Tensor], shape: tuple[int, ...]
    ) -> torch.Tensor:
        if self._target.model_dir is None:
            raise ValueError(
                f"the drafter has no {name} and shares its target's: "
                "pass the target's model directory with --target-model"
            )
        return self._checked(f"the target's {name}", read(self._target.model_dir), shape)

    def _checked(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}, expected {list(shape)}")
        if tensor.dtype not in _FLOATS:
            raise ValueError(
                f"{name} has dtype {tensor.dtype}, supported: {', '.join(map(str, _FLOATS))}"
            )
        return tensor.to(self.device, self.dtype)


def _check_target(config: Eagle3Config, target: TargetSide) -> None:
    for name, ours, theirs in (
        ("vocab_size", config.vocab_size, target.vocab_size),
        ("target_hidden_size", config.target_hidden_size, target.hidden_size),
    ):
        if ours != theirs:
            raise ValueError(f"{name}: the drafter has {ours}, the target has {theirs}")


def _trained(head_NH: torch.Tensor) -> torch.Tensor:
    """Raise ValueError for a head that was never loaded: trainers begin with NaN or zeros."""
    low_N, high_N = torch.aminmax(head_NH, dim=-1)
    if not (low_N.isfinite() & high_N.isfinite()).all():
        raise ValueError("lm_head.weight has values that are not finite: it was never loaded")
    if not low_N.any() and not high_N.any():
        raise ValueError("lm_head.weight has nothing but zeros: it was never loaded")
    return head_NH
