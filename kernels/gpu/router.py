"""The router of `kernels.experts.choose_experts`, a program a row.

A row's scores lie in the registers of one warp, [groups, experts of one]; a choice is a maximum and
the smallest number that has it, as often as there are choices. Nothing of it knows another row.

Legend: R rows, E experts, G groups of them, I experts of one, both padded to powers of two, C
choices of a row.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from kernels.experts import LOWEST, TINY, Routing

_LOWEST, _TINY = tl.constexpr(LOWEST), tl.constexpr(TINY)
_NEVER = tl.constexpr(float("-inf"))


def choose_experts(
    logits_RE: torch.Tensor,
    bias_E: torch.Tensor,
    live_R: torch.Tensor,
    routing: Routing,
    experts_RC: torch.Tensor,
    weights_RC: torch.Tensor,
) -> None:
    """Write int32 numbers of experts, the best first, and float32 weights.

    Logits and bias are float32. A row whose int32 `live` is 0 is padding: it chooses nothing, -1,
    so that no expert is read for its sake.
    """
    groups, size = routing.num_groups, routing.group_size
    _choose[(len(logits_RE),)](
        logits_RE,
        bias_E,
        live_R,
        experts_RC,
        weights_RC,
        GROUPS=groups,
        SIZE=size,
        G=triton.next_power_of_2(groups),
        I=triton.next_power_of_2(size),
        KEPT=routing.groups_kept,
        CHOICES=routing.choices,
        C=triton.next_power_of_2(routing.choices),
        NORMALIZED=routing.normalized,
        SCALE=routing.scale,
        num_warps=1,
        enable_fp_fusion=False,
    )


@triton.jit
@no_type_check
def _choose(
    logits_RE,
    bias_E,
    live_R,
    experts_RC,
    weights_RC,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    G: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    KEPT: tl.constexpr,
    CHOICES: tl.constexpr,
    C: tl.constexpr,
    NORMALIZED: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Choose for one row."""
    row = tl.program_id(0)
    groups, members = tl.arange(0, G)[:, None], tl.arange(0, I)[None, :]
    real_GI = (groups < GROUPS) & (members < SIZE)
    # What only fills the registers has no expert's number.
    experts_GI = tl.where(real_GI, groups * SIZE + members, GROUPS * SIZE)
    places = logits_RE + row.to(tl.int64) * (GROUPS * SIZE) + groups * SIZE + members
    logits_GI = tl.load(places, mask=real_GI, other=0.0)
    scores_GI = 1 / (1 + tl.exp(-logits_GI))
    is_number_GI = logits_GI == logits_GI
    bias_GI = tl.load(bias_E + groups * SIZE + members, mask=real_GI, other=0.0)
    wanted_GI = scores_GI + bias_GI
    wanted_GI = tl.where(is_number_GI, wanted_GI, _LOWEST)
    wanted_GI = tl.where(real_GI, wanted_GI, _NEVER)
    if KEPT < GROUPS:
        wanted_GI = _of_kept_groups(wanted_GI, G, I, KEPT)
    scores_GI = tl.where(is_number_GI, scores_GI, 0.0)
    slots = tl.arange(0, C)
    chosen_C, weights_C = tl.zeros([C], tl.int32), tl.zeros([C], tl.float32)
    total = 0.0
    for choice in tl.static_range(CHOICES):
        expert = _first_of_largest(wanted_GI, experts_GI, GROUPS * SIZE)
        weight = tl.sum(tl.where(experts_GI == expert, scores_GI, 0.0))
        wanted_GI = tl.where(experts_GI == expert, _NEVER, wanted_GI)
        chosen_C = tl.where(slots == choice, expert, chosen_C)
        weights_C = tl.where(slots == choice, weight, weights_C)
        total += weight
    if NORMALIZED:
        weights_C /= total + _TINY
    chosen_C = tl.where(tl.load(live_R + row) != 0, chosen_C, -1)
    places = row * CHOICES + slots
    tl.store(experts_RC + places, chosen_C, mask=slots < CHOICES)
    tl.store(weights_RC + places, weights_C * SCALE, mask=slots < CHOICES)


@triton.jit
@no_type_check
def _first_of_largest(values, numbers, beyond: tl.constexpr):
    """The smallest number of those with the largest value."""
    return tl.min(tl.where(values == tl.max(values), numbers, beyond))


@triton.jit
@no_type_check
def _of_kept_groups(
    wanted_GI,
    G: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    KEPT: tl.constexpr,
):
    """-inf for what lies in groups that are not kept. Of two equal groups the first is kept."""
    members = tl.arange(0, I)[None, :]
    best_G1 = tl.max(wanted_GI, 1, keep_dims=True)
    first_G1 = tl.min(tl.where(wanted_GI == best_G1, members, I), 1, keep_dims=True)
    others_GI = tl.where(members == first_G1, _NEVER, wanted_GI)
    scores_G1 = best_G1 + tl.max(others_GI, 1, keep_dims=True)
    groups = tl.arange(0, G)[:, None]
    kept_G1 = groups < 0
    for _ in tl.static_range(KEPT):
        left_G1 = tl.where(kept_G1, _NEVER, scores_G1)
        kept_G1 = kept_G1 | (groups == _first_of_largest(left_G1, groups, G))
    return tl.where(kept_G1, wanted_GI, _NEVER)
