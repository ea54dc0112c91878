"""A drafter that begins as a copy of what its target knows: last layer, final norm, head.

The last layer turns a hidden state into one that says which token follows; a drafter is to do the
same one token on. What it reads of the token's embedding begins with nothing, and so do all taps
but the last.
"""

from __future__ import annotations

import torch

from draft_service.weights import Weights
from training.draft_module import DraftModule

_COPIED = (
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "post_attention_layernorm",
)


@torch.no_grad()
def warm_start(
    module: DraftModule, target: Weights, num_layers: int, head_NH: torch.Tensor
) -> None:
    """Set a drafter's parameters from a target with the same layer shapes.

    Raises ValueError if they differ: then there is nothing to begin with.
    """
    last = f"model.layers.{num_layers - 1}."
    ours = dict(module.midlayer.named_parameters())
    for name in _COPIED:
        _copy(ours[f"{name}.weight"], target[f"{last}{name}.weight"], name)
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = ours[f"self_attn.{name}.weight"]
        hidden = weight.shape[1] // 2
        weight[:, :hidden] = 0
        _copy(weight[:, hidden:], target[f"{last}self_attn.{name}.weight"], name)
    _copy(module.midlayer.hidden_norm.weight, target[f"{last}input_layernorm.weight"], "norm")
    _copy(module.norm.weight, target["model.norm.weight"], "final norm")
    _copy(module.lm_head.weight, head_NH, "lm_head")
    hidden = module.fc.weight.shape[0]
    module.fc.weight.zero_()
    module.fc.weight[:, -hidden:] = torch.eye(hidden)


def _copy(ours: torch.Tensor, theirs: torch.Tensor, name: str) -> None:
    if ours.shape != theirs.shape:
        raise ValueError(
            f"{name}: the drafter has shape {list(ours.shape)}, the target {list(theirs.shape)}: "
            "a warm start needs the target's own layer; train from scratch instead"
        )
    ours.copy_(theirs)
