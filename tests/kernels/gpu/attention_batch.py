"""Batches for attention: sessions made of tokens, each of which has one query, key and value.

So a token can be decoded alone, in a chain, in a tree or in a chunk of a prompt: what it sees is
the same, only where it lies is not. Memory that nobody may see is NaN.

Legend: R rows, A query heads, C key-value heads, D head size, V value size, U tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from kernels import tree
from kernels.gpu.attention_plan import plan_attention
from kernels.gpu.attention_shape import AttentionPlan, AttentionShape, StepRows, Tiling, new_plan
from kernels.gpu.latent_attention import latent_attention
from kernels.gpu.paged_attention import paged_attention
from kernels.kv_pages import PAGE_LEN, num_pages_for

LAYER = 1
SMALL = Tiling(lines=16, warps=4, stages=2, programs=5, part_blocks=2)


@dataclass(frozen=True)
class Session:
    """A committed prefix and a tree after it, whose nodes from `first` on are rows of the step."""

    prefix: tuple[int, ...]
    nodes: tuple[int, ...]
    parents: tuple[int, ...]
    first: int = 0

    @cached_property
    def paths(self) -> list[tuple[int, ...]]:
        return tree.paths(self.parents)

    def text(self, node: int) -> tuple[int, ...]:
        """The tokens up to and including a node."""
        return self.prefix + tuple(self.nodes[n] for n in self.paths[node])

    def mask(self, node: int) -> int:
        """The node's ancestors as bits of an int64."""
        if tree.is_chain(self.parents) and len(self.parents) > 64:
            return -1
        mask = sum(1 << n for n in self.paths[node])
        return mask - (1 << 64) if mask >> 63 else mask


def chain(text: Sequence[int], rows: int) -> Session:
    """The last tokens of a text as rows."""
    end = len(text) - rows
    return Session(tuple(text[:end]), tuple(text[end:]), tuple(range(-1, rows - 1)))


def random_parents(nodes: int, seed: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return (-1, *(draw.randrange(node) for node in range(1, nodes)))


def grown(prefix: int, parents: Sequence[int], first_token: int = 0, first: int = 0) -> Session:
    """A session whose tokens count from `first_token`."""
    middle = first_token + prefix
    nodes = tuple(range(middle, middle + len(parents)))
    return Session(tuple(range(first_token, middle)), nodes, tuple(parents), first)


@dataclass(frozen=True)
class Model:
    """Heads and sizes, and what each token asks and is. Without values, keys begin with them."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    q_UAD: torch.Tensor
    k_UCD: torch.Tensor
    v_UCV: torch.Tensor
    latent: bool

    def __hash__(self) -> int:
        return id(self)


def model(heads: int, kv_heads: int, dim: int, tokens: int, dtype: torch.dtype) -> Model:
    q_UAD, k_UCD, v_UCV = (
        torch.randn(tokens, count, dim).to(dtype) for count in (heads, kv_heads, kv_heads)
    )
    return Model(heads, kv_heads, dim, dim, dim**-0.5, q_UAD, k_UCD, v_UCV, latent=False)


def latent_model(heads: int, latent: int, rotated: int, tokens: int, dtype: torch.dtype) -> Model:
    made = model(heads, 1, latent + rotated, tokens, dtype)
    return replace(made, value_dim=latent, v_UCV=made.k_UCD[..., :latent], latent=True)


@dataclass(frozen=True)
class Batch:
    """What one step is given."""

    model: Model
    sessions: tuple[Session, ...]
    rows: StepRows
    q_RAD: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    pages: int

    @property
    def texts(self) -> list[tuple[int, ...]]:
        """What each row sees."""
        return [s.text(n) for s in self.sessions for n in range(s.first, len(s.nodes))]


def lay_out(
    of: Model,
    sessions: Sequence[Session],
    padding_rows: int = 0,
    padding_sessions: int = 0,
    seed: int = 0,
) -> Batch:
    """Write sessions into pages in random order, and describe their rows."""
    slots = [s.prefix + s.nodes for s in sessions]
    width = max(num_pages_for(len(tokens)) for tokens in slots) + 1
    pool = [*range(1, 1 + width * len(sessions))]
    random.Random(seed).shuffle(pool)
    pages_NX = torch.zeros(len(sessions) + padding_sessions, width, dtype=torch.int32)
    shape = (len(pool) + 1, LAYER + 2, of.kv_heads, PAGE_LEN)
    keys = torch.full((*shape, of.head_dim), torch.nan, dtype=of.q_UAD.dtype)
    values = keys if of.latent else torch.full_like(keys, torch.nan)
    for n, tokens in enumerate(slots):
        for x in range(num_pages_for(len(tokens))):
            page, held = pool.pop(), torch.tensor(tokens[x * PAGE_LEN : (x + 1) * PAGE_LEN])
            pages_NX[n, x] = page
            values[page, LAYER, :, : len(held), : of.value_dim] = of.v_UCV[held].transpose(0, 1)
            keys[page, LAYER, :, : len(held)] = of.k_UCD[held].transpose(0, 1)
    rows = _rows(sessions, pages_NX, padding_rows)
    asked = [s.nodes[n] for s in sessions for n in range(s.first, len(s.nodes))]
    q_RAD = of.q_UAD[torch.tensor(asked + [0] * padding_rows)]
    return Batch(of, tuple(sessions), rows, q_RAD, keys, values, width)


def _rows(sessions: Sequence[Session], pages_NX: torch.Tensor, padding_rows: int) -> StepRows:
    all_rows = [(i, s, n) for i, s in enumerate(sessions) for n in range(s.first, len(s.nodes))]
    counts = [len(s.nodes) - s.first for s in sessions]
    ends = [sum(counts[:n]) for n in range(len(sessions) + 1)]
    idle = len(pages_NX) - len(sessions)
    prefixes = [len(s.prefix) for s in sessions] + [0] * idle
    padding = [0] * padding_rows
    return StepRows(
        _int32([i for i, _, _ in all_rows] + padding),
        _int32([len(s.text(n)) - 1 for _, s, n in all_rows] + padding),
        torch.tensor([s.mask(n) for _, s, n in all_rows] + padding),
        _int32(ends + ends[-1:] * idle),
        _int32(prefixes),
        pages_NX,
    )


def _int32(numbers: Sequence[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def plan_of(batch: Batch, tiling: Tiling = SMALL, items: int | None = None) -> AttentionPlan:
    """Plan a batch; by default with as many items as parts can be."""
    of = batch.model
    shape = AttentionShape(
        tiling,
        of.heads,
        of.kv_heads,
        of.head_dim,
        of.value_dim,
        batch.keys.shape[1],
        *batch.rows.pages_NX.shape,
    )
    rows = len(batch.q_RAD)
    if items is None:
        items = shape.most_tiles(rows) * (batch.pages // tiling.part_blocks + 2)
    plan = new_plan(shape, rows, items, batch.q_RAD.device)
    for buffer in plan.buffers[-3:]:
        buffer.fill_(torch.nan)
    plan_attention(batch.rows, plan)
    return plan


def attend(batch: Batch, plan: AttentionPlan | None = None) -> torch.Tensor:
    """Return what the kernels give every row, padding included, [R, A, V]."""
    of, plan = batch.model, plan or plan_of(batch)
    out = torch.full((*batch.q_RAD.shape[:2], of.value_dim), torch.nan, dtype=batch.q_RAD.dtype)
    if of.latent:
        latent_attention(batch.q_RAD, batch.keys, LAYER, of.scale, batch.rows, plan, out)
    else:
        paged_attention(
            batch.q_RAD, batch.keys, batch.values, LAYER, of.scale, batch.rows, plan, out
        )
    return out


def expected(batch: Batch) -> torch.Tensor:
    """The definition, in float64, [R, A, V]."""
    of = batch.model
    return torch.stack([_attended(of, torch.tensor(text)) for text in batch.texts])


def _attended(of: Model, text: torch.Tensor) -> torch.Tensor:
    group = of.heads // of.kv_heads
    q_CGD = of.q_UAD[text[-1]].double().unflatten(0, (of.kv_heads, group))
    k_CDS, v_CSV = of.k_UCD[text].double().permute(1, 2, 0), of.v_UCV[text].double().transpose(0, 1)
    weights_CGS = torch.softmax(q_CGD @ k_CDS * of.scale, dim=-1)
    return (weights_CGS @ v_CSV).flatten(0, 1)
