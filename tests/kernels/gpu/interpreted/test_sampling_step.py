"""A verification's end as it is captured: shape, choose, walk; and a level of a drafter's growth.

Legend: R rows, V vocabulary, N trees, T places, P places of a list, W places of a frontier.
"""

import torch

from kernels.gpu import agreement_sampler
from kernels.gpu import candidates as candidates_of
from kernels.gpu.frontier import Frontier, Nodes, Plans, grow, num_nodes
from kernels.gpu.shaping import Shaped, Shaping, shape_logits
from kernels.gpu.tree_geometry import Geometry, Trees, tree_geometry
from kernels.gpu.tree_walk import Walked, tree_walk
from tests.kernels.gpu.interpreted import test_candidates
from tests.kernels.gpu.interpreted.sampled_rows import (
    FILTERS,
    draw_of,
    row_filters,
    unwritten_choice,
    unwritten_scratch,
)
from tests.kernels.gpu.proofs.capture_guard import CaptureGuard
from tests.kernels.gpu.proofs.recorded_step import StaticStep, check_replay

N, T, R, V, P, W = 2, 2, 4, 200, 8, 2


class Verification:
    """Two trees of two nodes."""

    def __init__(self):
        self.logits_RV, self.draw = torch.zeros(R, V), draw_of(R)
        self.filters = row_filters([*FILTERS[:3], FILTERS[1]])
        integers = (torch.zeros(R, P, dtype=torch.int32) for _ in range(2))
        seen_RP, biases_RP = torch.zeros(R, P, dtype=torch.bool), torch.zeros(R, P)
        lengths_R = torch.zeros(R, dtype=torch.int32)
        self.shaping = Shaping(lengths_R, *integers, seen_RP, biases_RP, *torch.ones(3, R))
        self.shaped = Shaped(torch.zeros(R, V), lengths_R)
        self.scratch, self.chosen = unwritten_scratch(R, V), unwritten_choice(R)
        parents_NT = torch.tensor([[-1, 0]] * N, dtype=torch.int32)
        self.trees = Trees(parents_NT, *torch.tensor([[2, 2], [0, 2]], dtype=torch.int32))
        depths_R = torch.zeros(R, dtype=torch.int32)
        self.geometry = Geometry(torch.zeros(R).long(), depths_R, torch.zeros(R).long())
        self.tokens_NT, self.lengths_N = torch.zeros(N, T).long(), torch.tensor([5, 9])
        paths_NT, accepted_N = torch.zeros(N, T).int(), torch.zeros(N).int()
        self.walked = Walked(paths_NT, accepted_N, torch.zeros(N).long(), torch.zeros(N).long())

    def step(self):
        tree_geometry(self.trees, self.lengths_N, self.geometry)
        shape_logits(self.logits_RV, self.shaping, self.shaped.logits_RV)
        agreement_sampler.agreement_tokens(
            self.logits_RV, self.shaped, self.filters, self.draw, self.scratch, self.chosen
        )
        tree_walk(
            self.trees,
            self.tokens_NT,
            self.chosen.tokens_R,
            self.geometry,
            self.lengths_N,
            self.walked,
        )

    def buffers(self):
        own = {"logits_RV": self.logits_RV, "tokens_NT": self.tokens_NT}
        return own | self.shaping._asdict() | self.chosen._asdict() | self.walked._asdict()


class Growth:
    """The first level of two trees."""

    def __init__(self):
        self.logits_RN, self.draw = torch.zeros(N, V), draw_of(N)
        self.filters = row_filters(FILTERS[1:3])
        self.scratch, self.found = test_candidates.buffers(N, V, W)
        self.plans = Plans(torch.full((N,), W).int(), torch.full((N,), 2).int())
        shape, places = (N, num_nodes(W, 2)), (N, W)
        self.nodes = Nodes(
            torch.zeros(shape).long(),
            torch.zeros(shape).int(),
            torch.zeros(shape).double(),
            torch.zeros(shape),
        )
        self.frontier = Frontier(
            torch.zeros(places).long(),
            torch.zeros(places).int(),
            torch.zeros(places).double(),
            torch.zeros(places).long(),
            torch.zeros(places).long(),
        )

    def step(self):
        candidates_of.agreement_candidates(
            self.logits_RN, None, self.filters, self.draw, self.scratch, self.found
        )
        grow(self.found, self.plans, self.nodes, None, self.frontier, 1)

    def buffers(self):
        return {"logits_RN": self.logits_RN} | self.nodes._asdict() | self.frontier._asdict()


def check(kind, contents):
    """Replays are the step, which takes no memory and waits for nothing."""

    def make():
        made = kind()
        return StaticStep(made.step, made.buffers)

    guarded = make()
    with CaptureGuard(most_bytes=0):
        guarded.run()
    check_replay(make, contents)


def test_the_end_of_a_verification_can_be_captured():
    contents = [
        {
            "logits_RV": torch.randn(R, V),
            "tokens_NT": torch.randint(0, V, (N, T)),
            "lengths_R": torch.randint(0, P, (R,)).int(),
            "tokens_RP": torch.stack([torch.randperm(V)[:P] for _ in range(R)]).int(),
            "biases_RP": 20 * torch.randn(R, P),
        }
        for _ in range(2)
    ]
    check(Verification, contents)


def test_a_level_of_growth_can_be_captured():
    check(Growth, [{"logits_RN": torch.randn(N, V)} for _ in range(2)])
