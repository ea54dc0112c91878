"""A mixture of experts: each row chooses some feed-forward layers of many, and sums their outputs.

The router of DeepSeek-V3 (arXiv 2412.19437) and Kimi-K2, "noaux_tc":

    s = sigmoid(logits)
    a group's score   the two largest s + bias of its experts, added; the best groups are kept
    chosen            the largest s + bias of the kept groups: the bias steers the choice only
    weight            s / sum of the chosen s, times a scale

Ties go to the smaller number. A logit that is no number is chosen last and weighs nothing.

    y = sum over choices, the best first, of weight down(silu(gate x) up x)  +  the shared expert

Sums are float32, rounded once; each expert's output is rounded before it, as a layer's is.

Legend: R rows, E experts, G groups of them, I experts of one, C choices of a row, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.dispatch import Op
from kernels.elementwise import silu_mul
from kernels.linear import DenseLinear, Linear

LOWEST = -1e30
"""What counts as the score of a logit that is no number."""
TINY = 1e-20


@dataclass(frozen=True)
class Routing:
    """How rows choose."""

    num_experts: int
    choices: int
    num_groups: int = 1
    groups_kept: int = 1
    normalized: bool = True
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.num_experts % self.num_groups:
            raise ValueError(f"{self.num_experts} experts are not {self.num_groups} equal groups")
        if self.choices > self.groups_kept * self.group_size or self.groups_kept > self.num_groups:
            raise ValueError(f"{self.groups_kept} groups have too few experts to choose from")
        if self.num_groups > 1 and self.group_size == 1:
            raise ValueError("a group of one expert has no two best")

    @property
    def group_size(self) -> int:
        return self.num_experts // self.num_groups


@dataclass(frozen=True)
class Expert:
    """A gated feed-forward layer; gate's outputs, then up's, are those of one product."""

    gate_up: Linear
    down: Linear

    def __call__(self, x_RH: torch.Tensor) -> torch.Tensor:
        return self.down(silu_mul(*self.gate_up(x_RH).chunk(2, dim=-1)))


@dataclass(frozen=True)
class Mixture:
    """The experts of a layer, and what chooses among them, in float32."""

    router: DenseLinear
    bias_E: torch.Tensor
    routing: Routing
    experts: Sequence[Expert]

    def __call__(self, x_RH: torch.Tensor, shared_RH: torch.Tensor) -> torch.Tensor:
        """Return what the experts that each row chooses say, and the shared one said."""
        logits_RE = self.router(x_RH.float())
        experts_RC, weights_RC = choose_experts(logits_RE, self.bias_E, self.routing)
        return mix_experts(x_RH, experts_RC, weights_RC, self.experts, shared_RH)


@Op
def choose_experts(
    logits_RE: torch.Tensor, bias_E: torch.Tensor, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int32 numbers of experts, the best first, and their float32 weights; [R, C] each."""
    # `torch.sigmoid` would not do: its vector and scalar forms differ in the last place.
    scores_RE = 1 / (1 + torch.exp(-logits_RE.float()))
    is_number_RE = scores_RE == scores_RE
    wanted_RE = torch.where(is_number_RE, scores_RE + bias_E, LOWEST)
    wanted_RE = _of_kept_groups(wanted_RE, routing)
    experts_RC = _best(wanted_RE, routing.choices)
    weights_RC = torch.where(is_number_RE, scores_RE, 0.0).gather(1, experts_RC)
    if routing.normalized:
        weights_RC = weights_RC / (weights_RC.sum(-1, keepdim=True) + TINY)
    return experts_RC.int(), weights_RC * routing.scale


@Op
def mix_experts(
    x_RH: torch.Tensor,
    experts_RC: torch.Tensor,
    weights_RC: torch.Tensor,
    experts: Sequence[Expert],
    shared_RH: torch.Tensor | None,
) -> torch.Tensor:
    """Return y_RH. A choice of -1 is none."""
    outputs_CRH = x_RH.new_zeros(experts_RC.shape[1], *x_RH.shape)
    for number in experts_RC.unique().tolist():
        if number >= 0:
            rows, choices = torch.where(experts_RC == number)
            outputs_CRH[choices, rows] = experts[number](x_RH[rows])
    total_RH = torch.zeros_like(x_RH, dtype=torch.float32)
    for outputs_RH, weights_R in zip(outputs_CRH, weights_RC.T, strict=True):
        total_RH += weights_R[:, None] * outputs_RH
    return (total_RH if shared_RH is None else total_RH + shared_RH).to(x_RH.dtype)


def _best(values_RX: torch.Tensor, num: int) -> torch.Tensor:
    """Return the places of the largest values, the largest first, the first of equal ones."""
    return torch.sort(values_RX, dim=-1, descending=True, stable=True).indices[:, :num]


def _of_kept_groups(wanted_RE: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Return -inf for what lies in groups that are not kept."""
    if routing.groups_kept == routing.num_groups:
        return wanted_RE
    wanted_RGI = wanted_RE.unflatten(1, (routing.num_groups, -1))
    group_scores_RG = wanted_RGI.topk(2, dim=-1).values.sum(-1)
    kept_RG = torch.zeros_like(group_scores_RG, dtype=torch.bool)
    kept_RG.scatter_(1, _best(group_scores_RG, routing.groups_kept), True)
    return wanted_RGI.masked_fill(~kept_RG[..., None], -torch.inf).flatten(1)
