"""Norms and activations as Kimi-K2.5 and its drafter launch them."""

import torch

from kernels.gpu import elementwise
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Needs, Step, empty

ROWS, HIDDEN, INNER, VOCABULARY = 64, 7168, 18432, 163840
EPS = 1e-6
RANKS = 8
NARROW = Needs(wide_loads=False)


def _rms_norm(width: int) -> Step:
    x_RH, weight_H, out_RH = empty(ROWS, width), empty(width), empty(ROWS, width)
    return lambda rows: elementwise.rms_norm(x_RH[:rows], weight_H, EPS, out_RH[:rows])


def _head_norm(heads: int, width: int) -> Step:
    qkv_RN, weight_D = empty(ROWS, (heads + 16) * width), empty(width)
    heads_RAD = qkv_RN.unflatten(1, (-1, width))[:, :heads]
    return lambda rows: elementwise.rms_norm(heads_RAD[:rows], weight_D, EPS, heads_RAD[:rows])


def _add_rms_norm() -> Step:
    weight_H = empty(HIDDEN)
    x_RH, h_RH, out_RH = (empty(ROWS, HIDDEN) for _ in range(3))
    return lambda rows: elementwise.add_rms_norm(
        x_RH[:rows], h_RH[:rows], weight_H, EPS, h_RH[:rows], out_RH[:rows]
    )


def _add_parts() -> Step:
    weight_H, parts_E = empty(HIDDEN), empty(RANKS * ROWS * HIDDEN)
    h_RH, out_RH = (empty(ROWS, HIDDEN) for _ in range(2))

    def step(rows: int) -> None:
        parts_PRH = parts_E[: RANKS * rows * HIDDEN].view(RANKS, rows, HIDDEN)
        h, out = h_RH[:rows], out_RH[:rows]
        elementwise.add_rms_norm(parts_PRH, h, weight_H, EPS, h, out)

    return step


def _norm_pair() -> Step:
    tokens_R, embedding_VH = empty(ROWS, dtype=torch.int64), empty(VOCABULARY, HIDDEN)
    norms, h_RH, pair_R2H = empty(2, HIDDEN), empty(ROWS, HIDDEN), empty(ROWS, 2 * HIDDEN)
    return lambda rows: elementwise.norm_pair(
        tokens_R[:rows], embedding_VH, norms[0], h_RH[:rows], norms[1], EPS, pair_R2H[:rows]
    )


def _silu_mul() -> Step:
    both_R2F, out_RF = empty(ROWS, 2 * INNER), empty(ROWS, INNER)
    return lambda rows: elementwise.silu_mul(*both_R2F[:rows].chunk(2, dim=1), out_RF[:rows])


SPECS = [
    CompileSpec("norm of 7168", lambda: _rms_norm(HIDDEN), {"_rms_norm": Needs()}),
    CompileSpec("norm of 21504", lambda: _rms_norm(3 * HIDDEN), {"_rms_norm": Needs()}),
    CompileSpec("norm of 64 heads of 128", lambda: _head_norm(64, 128), {"_rms_norm": NARROW}),
    CompileSpec("sum and norm of 7168", _add_rms_norm, {"_add_rms_norm": Needs()}),
    CompileSpec("sum of 8 parts and norm of 7168", _add_parts, {"_add_rms_norm": Needs()}),
    CompileSpec("pair of norms of 7168", _norm_pair, {"_norm_pair": Needs()}),
    CompileSpec("activation of 18432", _silu_mul, {"_silu_mul": Needs()}),
]
