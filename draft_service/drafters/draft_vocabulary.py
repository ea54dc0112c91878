"""Which tokens of the target a drafter knows: `d2t`, and `t2d` if there is one, must make sense.

`d2t` holds offsets: draft token i is the target's token i + d2t[i]. Exporters write the tokens in
ascending order. A map that says something else would draft the wrong tokens, at accept length 1,
so it is refused; some exporters wrote the tokens themselves instead of offsets.

Legend: N drafter's vocabulary, V target's vocabulary.
"""

from __future__ import annotations

import math

import torch

from draft_service.weights import Checkpoint

# As likely as this, a choice of tokens is taken for an accident that never happens.
_NEVER = math.log(1e-9)


def known_tokens(
    weights: Checkpoint, draft_vocab_size: int, vocab_size: int
) -> torch.Tensor | None:
    """Return the target's id of each draft token of a checkpoint, [N]; None if it knows them all.

    Raises ValueError for a map that is none, and for one that is missing.
    """
    every_V = torch.arange(vocab_size)
    if "d2t" in weights:
        ids_N = target_ids(weights["d2t"], draft_vocab_size, vocab_size)
    elif draft_vocab_size == vocab_size:
        ids_N = every_V
    else:
        raise ValueError(
            f"draft_vocab_size is {draft_vocab_size}, vocab_size {vocab_size}, "
            "but there is no d2t to map one to the other"
        )
    if "t2d" in weights:
        check_mask(weights["t2d"], ids_N, vocab_size)
    return None if torch.equal(ids_N, every_V) else ids_N


def target_ids(d2t_N: torch.Tensor, draft_vocab_size: int, vocab_size: int) -> torch.Tensor:
    """Return the target's id of each draft token, [N]. Raises ValueError for a map that is none."""
    if d2t_N.shape != (draft_vocab_size,):
        raise ValueError(
            f"d2t has shape {list(d2t_N.shape)}, but draft_vocab_size is {draft_vocab_size}"
        )
    if d2t_N.is_floating_point() or d2t_N.is_complex() or d2t_N.dtype == torch.bool:
        raise ValueError(f"d2t has dtype {d2t_N.dtype}, but offsets are integers")
    ids_N = torch.arange(len(d2t_N)) + d2t_N.long()
    _check_inside(ids_N, vocab_size)
    _check_ascending(ids_N)
    _check_neighbours(ids_N, vocab_size)
    return ids_N


def check_mask(t2d_V: torch.Tensor, ids_N: torch.Tensor, vocab_size: int) -> None:
    """Raise ValueError unless `t2d` marks exactly the tokens that `d2t` leads to."""
    if t2d_V.shape != (vocab_size,):
        raise ValueError(f"t2d has shape {list(t2d_V.shape)}, but vocab_size is {vocab_size}")
    expected_V = mask_of(ids_N, vocab_size)
    differing = (t2d_V.bool() != expected_V).nonzero().flatten()
    if len(differing):
        token = int(differing[0])
        says, maps = bool(t2d_V[token]), bool(expected_V[token])
        raise ValueError(
            f"t2d and d2t disagree about {len(differing)} tokens: t2d of token {token} is {says}, "
            f"and d2t {'leads' if maps else 'does not lead'} to it"
        )


def mask_of(ids_N: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return `t2d`: which of the target's tokens are draft tokens, [V]."""
    return torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, ids_N, True)


def _check_inside(ids_N: torch.Tensor, vocab_size: int) -> None:
    outside = ((ids_N < 0) | (ids_N >= vocab_size)).nonzero().flatten().tolist()
    if outside:
        first = outside[0]
        raise ValueError(
            f"d2t maps draft token {first} to {int(ids_N[first])}, "
            f"outside the target's vocabulary of {vocab_size}; "
            "it holds offsets: draft token i is the target's token i + d2t[i]"
        )


def _check_ascending(ids_N: torch.Tensor) -> None:
    wrong = (ids_N.diff() <= 0).nonzero().flatten().tolist()
    if wrong:
        i = wrong[0]
        raise ValueError(
            f"d2t maps draft tokens {i} and {i + 1} to {int(ids_N[i])} and {int(ids_N[i + 1])}: "
            "target tokens must ascend, each of them once"
        )


def _check_neighbours(ids_N: torch.Tensor, vocab_size: int) -> None:
    """Notice token ids in place of offsets: they would never lead to two neighbouring tokens."""
    neighbours = bool((ids_N.diff() == 1).any())
    if not neighbours and _log_chance_of_none(len(ids_N), vocab_size) < _NEVER:
        raise ValueError(
            f"d2t leads to no two neighbouring tokens of the target, which {len(ids_N)} tokens of "
            f"{vocab_size} always have: does it hold the target's tokens? It must hold offsets: "
            "draft token i is the target's token i + d2t[i]"
        )


def _log_chance_of_none(chosen: int, of: int) -> float:
    """Log-probability that no two of so many things chosen of a row of things are neighbours."""
    if chosen > of - chosen + 1:
        return -math.inf
    return _log_choices(of - chosen + 1, chosen) - _log_choices(of, chosen)


def _log_choices(of: int, chosen: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)
