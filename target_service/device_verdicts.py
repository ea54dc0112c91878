"""Verdicts, as `judgement` gives them, of what a step on a GPU found out.

Legend: M nodes of all trees, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from protos.messages import TopLogprobs, Verdict
from target_service.device_buffers import StepOutputs
from target_service.judgement import top_logprobs_of
from target_service.step_shares import Share


def verdicts_of(
    shares: Sequence[Share], found: StepOutputs, logits_MV: torch.Tensor
) -> list[Verdict | None]:
    """Return the verdict on every tree, without timings; None for a chunk of a prompt.

    `logits_MV` are on the device: they are looked at only for who wants the likeliest tokens.
    """
    return [
        _verdict(share, found, number, logits_MV) if share.parents else None
        for number, share in enumerate(shares)
    ]


def _verdict(share: Share, found: StepOutputs, number: int, logits_MV: torch.Tensor) -> Verdict:
    path = found.paths_NT[number, : found.accepted_N[number]].tolist()
    nodes = [share.first_node + node for node in (0, *path)]
    session = share.rows.session
    return Verdict(
        committed_len=session.committed_len,
        path=tuple(path),
        tokens=tuple(found.tokens_M[nodes].tolist()),
        logprobs=tuple(found.logprobs_M[nodes].tolist()),
        top_logprobs=_top_logprobs(logits_MV, nodes, session.sampling.top_logprobs),
    )


def _top_logprobs(
    logits_MV: torch.Tensor, nodes: Sequence[int], count: int | None
) -> tuple[TopLogprobs, ...]:
    if not count:
        return ()
    picked = torch.tensor(nodes, device=logits_MV.device)
    return top_logprobs_of(logits_MV[picked].float(), count)
