"""The drafter on a GPU, with and without graphs: the trees of the CPU, and the same bits twice."""

import pytest
import torch

from draft_service.drafters.eagle3_gpu.drafter import Eagle3GpuDrafter
from protos.messages import Plan, SamplingParams
from tests.draft_service.drafters.played_session import GREEDY, load, target_side
from tests.kernels.gpu.eagle3_pair import PAGES, Pair, unrounded_logits, write_drafter

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
SAMPLED = SamplingParams(temperature=1.3, top_k=9, top_p=0.9, min_p=0.01, seed=77)
ROUNDS = 4


def played(path, *, graphs):
    """Return the drafts of some rounds. Their buckets come often enough to be captured."""
    drafter = Eagle3GpuDrafter.load(
        "gpu",
        path,
        target_side(),
        torch.device("cuda", 0),
        kv_tokens=64 * PAGES,
        graphs=graphs,
    )
    drafter.prepare(lambda *_: None)
    pair = Pair(load(path), drafter)
    chain, tree = pair.guest(GREEDY, prompt_len=8), pair.guest(SAMPLED, seed=2, prompt_len=6)
    rounds = []
    for _ in range(ROUNDS):
        of_chain, of_tree = pair.round([(chain, Plan(3)), (tree, Plan(2, 2, 4))])
        chain.commit(of_chain)
        tree.commit(of_tree)
        rounds.append((of_chain, of_tree))
    return rounds


def test_graphs_and_launches_draft_what_the_cpu_drafts(tmp_path):
    path = write_drafter(tmp_path)
    with unrounded_logits():
        captured, launched = (played(path, graphs=graphs) for graphs in (True, False))
    for drafts in captured:
        for one in drafts:
            one.check()
    assert captured == launched
