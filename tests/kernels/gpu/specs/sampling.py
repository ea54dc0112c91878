"""The sampler at Kimi-K2.5's vocabulary, whole and as one of eight shards."""

import torch

from kernels.gpu import agreement_sampler, choice, noise
from kernels.gpu.agreement_sampler import Draw, SamplerScratch
from kernels.gpu.choice import Chosen
from kernels.gpu.kept_limit import RowFilters
from kernels.gpu.shaping import Shaped, Shaping, shape_logits
from kernels.gpu.tree_geometry import MAX_NODES, Geometry
from kernels.gpu.tree_shaping import TreeLists, shape_trees
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Needs, Step, empty

ROWS, VOCABULARY, SHARDS, PLACES, BLOCKS = 64, 163840, 8, 4096, 160
BF16, FLOAT, INT, LONG = torch.bfloat16, torch.float32, torch.int32, torch.int64
NARROW = Needs(wide_loads=False)


def row_filters() -> RowFilters:
    return RowFilters(*(empty(ROWS, dtype=dtype) for dtype in (FLOAT, INT, FLOAT, FLOAT)))


def draw() -> Draw:
    return Draw(empty(ROWS, dtype=LONG), empty(ROWS, dtype=LONG))


def of_rows(parts, rows: int):
    """Return the first rows of every tensor of a tuple."""
    return type(parts)(*(part[:rows] for part in parts))


def _chosen() -> Chosen:
    return Chosen(empty(ROWS, 5, dtype=FLOAT), empty(ROWS, dtype=LONG), empty(ROWS, dtype=FLOAT))


def _sampler(vocab_size: int) -> Step:
    logits_RV, blocks = empty(ROWS, vocab_size), -(-vocab_size // 1024)
    shaped = Shaped(empty(ROWS, vocab_size, dtype=FLOAT), empty(ROWS, dtype=INT))
    shapes = (ROWS, blocks), (ROWS, 5, blocks), (ROWS, vocab_size), (ROWS,)
    scratch = SamplerScratch(*(empty(*shape, dtype=FLOAT) for shape in shapes))
    buffers = shaped, row_filters(), draw(), scratch, _chosen()

    def step(rows: int) -> None:
        parts = [of_rows(part, rows) for part in buffers]
        if vocab_size == VOCABULARY:
            agreement_sampler.agreement_tokens(logits_RV[:rows], *parts)
        else:
            agreement_sampler.choose_of_shard(logits_RV[:rows], *parts, 3 * vocab_size)

    return step


def _merge_of_shards() -> Step:
    gathered_SR5, chosen = empty(SHARDS, ROWS, 5, dtype=FLOAT), _chosen()
    return lambda rows: choice.merge_parts(
        gathered_SR5[:, :rows].permute(1, 2, 0), *of_rows(chosen, rows)
    )


def _shaping() -> Step:
    logits_RV, shaped_RV = empty(ROWS, VOCABULARY), empty(ROWS, VOCABULARY, dtype=FLOAT)
    dtypes = INT, INT, torch.bool, FLOAT
    lists = [empty(ROWS, PLACES, dtype=dtype) for dtype in dtypes]
    penalties = [empty(ROWS, dtype=FLOAT) for _ in range(3)]
    shaping = Shaping(empty(ROWS, dtype=INT), *lists, *penalties)
    return lambda rows: shape_logits(logits_RV[:rows], of_rows(shaping, rows), shaped_RV[:rows])


def _shaping_by_trees() -> Step:
    logits_MV, shaped_MV = empty(ROWS, VOCABULARY), empty(ROWS, VOCABULARY, dtype=FLOAT)
    tokens_NT = empty(ROWS, MAX_NODES, dtype=LONG)
    geometry = Geometry(*(empty(ROWS, dtype=dtype) for dtype in (LONG, INT, LONG)))
    of_trees = (empty(ROWS, dtype=dtype) for dtype in (INT, INT, FLOAT, FLOAT, FLOAT))
    lists = TreeLists(
        *(empty(ROWS, dtype=INT) for _ in range(2)), *of_trees, empty(ROWS * PLACES, 4, dtype=INT)
    )
    return lambda rows: shape_trees(logits_MV[:rows], tokens_NT, geometry, lists, shaped_MV[:rows])


def _noise() -> Step:
    noise_RV, drawn = empty(ROWS, VOCABULARY, dtype=FLOAT), draw()
    return lambda rows: noise.vocabulary_noise(*of_rows(drawn, rows), noise_RV[:rows])


_SAMPLER = {
    "_blocks_kernel": Needs(),
    "_limits_kernel": Needs(waits=True),
    "_race_kernel": Needs(),
    "_merge_kernel": NARROW,
}
_SHARD = {"_blocks_kernel": Needs(), "_merge_kernel": NARROW}
SPECS = [
    CompileSpec("sampler of 163840", lambda: _sampler(VOCABULARY), _SAMPLER),
    CompileSpec("sampler of a shard", lambda: _sampler(VOCABULARY // SHARDS), _SHARD),
    CompileSpec("merge of 8 shards", _merge_of_shards, {"_merge_kernel": NARROW}),
    CompileSpec("bias and penalties", _shaping, {"_copy_kernel": Needs(), "_shape_kernel": NARROW}),
    CompileSpec(
        "bias and penalties of trees",
        _shaping_by_trees,
        {"_copy_kernel": Needs(), "_shape_trees": NARROW},
    ),
    CompileSpec("noise of a vocabulary", _noise, {"_noise_kernel": NARROW}),
]
