"""Rotation and writes to pages: latent attention as in Kimi-K2.5, and heads as in Llama-70B."""

import torch

from kernels.gpu import rotary
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Needs, Step, empty

ROWS, POSITIONS, PAGES = 64, 4096, 32


def _grouped(heads: int, kv_heads: int, head_dim: int, layers: int) -> Step:
    """Queries, keys and values are columns of one product."""
    product_RX = empty(ROWS, (heads + 2 * kv_heads) * head_dim)
    q_RX, *kv = product_RX.split([heads * head_dim, *[kv_heads * head_dim] * 2], dim=1)
    q_RAD, k_RCD, v_RCD = (x_RX.unflatten(1, (-1, head_dim)) for x_RX in (q_RX, *kv))
    keys, values = empty(2, PAGES, layers, kv_heads, 64, head_dim).unbind()
    angles = empty(POSITIONS, head_dim), empty(POSITIONS, head_dim)
    positions_R, slots_R, out_RAD = (
        empty(ROWS, dtype=torch.int32),
        empty(ROWS, dtype=torch.int64),
        empty(*q_RAD.shape),
    )

    def step(rows: int) -> None:
        parts = (q_RAD[:rows], k_RCD[:rows], v_RCD[:rows])
        where = (positions_R[:rows], slots_R[:rows], keys, values, rows % layers)
        rotary.rotate_and_store(*parts, angles, *where, out_RAD[:rows])

    return step


def _latent(heads: int, layers: int) -> Step:
    """The rotated parts of queries are moved behind what heads see of the latent."""
    q_RAE, out_RAE = empty(ROWS, heads, 192)[..., 128:], empty(ROWS, heads, 576)[..., 512:]
    k_R1D, keys = empty(ROWS, 1, 576), empty(PAGES, layers, 1, 64, 576)
    angles = empty(POSITIONS, 64), empty(POSITIONS, 64)
    positions_R, slots_R = empty(ROWS, dtype=torch.int32), empty(ROWS, dtype=torch.int64)

    def step(rows: int) -> None:
        where = (positions_R[:rows], slots_R[:rows], keys, None, rows % layers)
        rotary.rotate_and_store(q_RAE[:rows], k_R1D[:rows], None, angles, *where, out_RAE[:rows])

    return step


SPECS = [
    CompileSpec(
        "rotation of 64 latent heads",
        lambda: _latent(64, layers=61),
        {"_rotate_and_store": Needs()},
    ),
    CompileSpec(
        "rotation of 64 and 8 heads of 128",
        lambda: _grouped(64, 8, 128, layers=80),
        {"_rotate_and_store": Needs()},
    ),
]
