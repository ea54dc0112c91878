"""Models, engines and steps small enough for an interpreter."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from kernels.gpu.graphs import Capture
from protos.messages import DraftTree, SamplingParams
from target_service.device_engine import DeviceEngine, Load
from target_service.device_steps import Place
from target_service.engine import Outcome
from target_service.models.target_model import TargetModel
from target_service.session import Rows, Session
from tests.target_service.played_session import MAX_CONTEXT_LEN

VOCAB = 150
TAPS = (2, 0, 1)
CPU = torch.device("cpu")
_SIZES = {"layers": 2, "hidden": 32, "heads": 2, "kv_heads": 1, "vocab": VOCAB}
_SIZES |= {"dtype": torch.bfloat16}
KINDS = {
    "llama": _SIZES,
    "norms and biases": _SIZES
    | {"architecture": "Qwen3ForCausalLM", "attention_bias": True, "mlp_bias": True, "tie": True},
}
KINDS["two key-value heads"] = KINDS["norms and biases"] | {"kv_heads": 2}
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0, top_logprobs=3),
    "nucleus": SamplingParams(
        temperature=0.8, top_p=0.95, top_k=40, min_p=0.01, seed=2**63 + 7, top_logprobs=3
    ),
    "everything": SamplingParams(
        temperature=1.0,
        seed=11,
        presence_penalty=0.5,
        frequency_penalty=0.7,
        repetition_penalty=1.3,
        logit_bias={5: 4.0, 6: 4.0, 7: -100.0},
        suppressed_token_ids=tuple(range(0, VOCAB, 2)),
        min_new_tokens=3,
        top_logprobs=2,
    ),
}


def device_engine(
    model: TargetModel, num_pages: int, load: Load, capture: Capture | None = None
) -> DeviceEngine:
    """The engine of a GPU, on the CPU."""
    return DeviceEngine(model, TAPS, num_pages, load, Place(CPU, capture))


def chunk(tokens: Sequence[int], length: int, pages: Sequence[int]) -> Rows:
    """The first rows of a prompt."""
    session = Session("chunk", list(tokens), SAMPLINGS["greedy"], MAX_CONTEXT_LEN, VOCAB)
    return replace(session.next_rows(length), pages=tuple(pages))


def tree(
    text: Sequence[int],
    cached: int,
    nodes: Sequence[int],
    parents: Sequence[int],
    pages: Sequence[int],
    sampling: str = "greedy",
) -> Rows:
    """What is not cached of a text, and a tree with these nodes below its root."""
    session = Session("tree", list(text), SAMPLINGS[sampling], MAX_CONTEXT_LEN, VOCAB)
    session.cached_len = cached
    session.tree = DraftTree(len(text), (text[-1], *nodes), (-1, *parents))
    return replace(session.next_rows(MAX_CONTEXT_LEN), pages=tuple(pages))


def verdict_of(outcome: Outcome) -> tuple[object, ...]:
    """What an outcome says apart from its floats."""
    assert outcome.verdict
    likeliest = [top.token_ids for top in outcome.verdict.top_logprobs]
    verdict = outcome.verdict
    return verdict.committed_len, verdict.path, verdict.tokens, likeliest, verdict.timings.rows
