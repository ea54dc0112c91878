"""Moves of accepted paths: the latent cache of Kimi-K2.5, and that of Llama-70B."""

import torch

from kernels.gpu import kv_moves
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Needs, Step, empty

SESSIONS, PAGES, PAGES_OF_SESSION = 32, 32, 512


def _move_accepted(layers: int, kv_heads: int, head_dim: int, most_nodes: int) -> Step:
    keys, values = empty(2, PAGES, layers, kv_heads, 64, head_dim).unbind()
    pages_NX = empty(SESSIONS, PAGES_OF_SESSION, dtype=torch.int32)
    path_NJ = empty(SESSIONS, most_nodes, dtype=torch.int32)
    prefix_len_N, path_len_N = empty(2, SESSIONS, dtype=torch.int32).unbind()
    return lambda sessions: kv_moves.move_accepted(
        pages_NX[:sessions],
        prefix_len_N[:sessions],
        path_NJ[:sessions],
        path_len_N[:sessions],
        keys,
        None if kv_heads == 1 else values,
    )


def _spec(name: str, layers: int, kv_heads: int, head_dim: int, most_nodes: int) -> CompileSpec:
    def prepare() -> Step:
        return _move_accepted(layers, kv_heads, head_dim, most_nodes)

    return CompileSpec(name, prepare, {"_move_accepted": Needs(waits=True)}, range(1, SESSIONS + 1))


SPECS = [
    _spec("moves of 8 nodes of 576", 61, 1, 576, 8),
    _spec("moves of 64 nodes of 576", 61, 1, 576, 64),
    _spec("moves of 64 nodes of 8 heads of 128", 80, 8, 128, 64),
]
