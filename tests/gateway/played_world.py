"""A session played against a made-up target and drafter, on a made-up clock.

Nothing is random but by seed, and nothing takes time: minutes of decoding are played in a second.
"""

import math
from dataclasses import dataclass, field
from random import Random

from gateway.experience import Experience
from gateway.policy import Wish, policy_for
from gateway.round import Rounds
from protos.messages import DraftTimings, DraftTree, Plan, Verdict, VerifyTimings

VOCAB_SIZE = 1000
DEADLINE_S = 0.05


@dataclass
class World:
    """What things cost, in microseconds, and how good the drafter is. Change it while it plays."""

    step_us: float = 10_000.0
    row_us: float = 200.0
    plain_other_us: float = 500.0
    other_us: float = 1_500.0
    extend_us: float = 500.0
    grow_us: float = 1_500.0
    # The chance that the text goes on with a node's first, second, ... child.
    hits: tuple[float, ...] = (0.6, 0.12, 0.06, 0.03)
    noise: float = 0.05
    drafter_open: bool = True
    draft_delay_us: float = 0.0
    # Others that share every step and do as we do.
    others: int = 0
    # Another drafter, "rival", that takes no time and is right so often.
    rival_hits: tuple[float, ...] | None = None
    chance: Random = field(default_factory=lambda: Random(1))

    @property
    def plain_us(self) -> float:
        """A plain step."""
        return self.plain_other_us + self.step_us + self.row_us * self.others

    def verify(self, rows: int) -> VerifyTimings:
        rows *= 1 + self.others
        return VerifyTimings(0, int(self._noisy(self.step_us + self.row_us * (rows - 1))), 0, rows)

    def grow(self, name: str, plan: Plan, committed_len: int, root: int) -> DraftTree:
        """Return a tree with a comb of first children; the text is what `truth` says."""
        hits = self.rival_hits if name and self.rival_hits else self.hits
        tokens, parents, logprobs = [root], [-1], [0.0]
        at, depth = 0, 0
        while depth < plan.steps and len(tokens) + min(plan.top_k, 4) <= plan.draft_tokens:
            rank = self._rank(hits)
            first = len(tokens)
            for child in range(min(plan.top_k, 4)):
                right = child == rank and (at == 0 or self._on_path)
                tokens.append(truth(committed_len + depth) if right else VOCAB_SIZE - 1 - child)
                parents.append(at)
                logprobs.append(math.log(max(hits[child], 1e-9)))
            self._on_path = rank == 0 and (at == 0 or self._on_path)
            at, depth = first, depth + 1
        timings = DraftTimings(0, int(self.extend_us), int(self._noisy(self.grow_us * plan.steps)))
        if name:
            timings = DraftTimings()
        return DraftTree(
            committed_len, tuple(tokens), tuple(parents), tuple(logprobs), name, timings
        )

    _on_path: bool = True

    def _rank(self, hits: tuple[float, ...]) -> int:
        draw = self.chance.random()
        for rank, hit in enumerate(hits):
            draw -= hit
            if draw < 0:
                return rank
        return len(hits)

    def _noisy(self, value: float) -> float:
        return value * self.chance.lognormvariate(0, self.noise) if self.noise else value


def truth(position: int) -> int:
    """The token that the target puts at a position."""
    return position % 500


@dataclass
class Played:
    """How a session went: when each verdict came, and how many tokens there were then."""

    times_us: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    # How many there would have been, decoded plainly in the world as it was all the while.
    plain_tokens: list[float] = field(default_factory=list)

    def over_plain(self, first: int = 0, last: int = -1) -> float:
        """Return how fast it was between two verdicts, plain decoding being 1."""
        tokens = self.tokens[last] - self.tokens[first]
        return tokens / (self.plain_tokens[last] - self.plain_tokens[first])

    def worst_window(self, seconds: float) -> float:
        """Return the least `over_plain` of all stretches of so many seconds."""
        worst, first = 1e9, 0
        for last, now_us in enumerate(self.times_us):
            while now_us - self.times_us[first + 1 if first < last else last] >= seconds * 1e6:
                first += 1
            if now_us - self.times_us[first] >= seconds * 1e6:
                worst = min(worst, self.over_plain(first, last))
        return worst


class Player:
    """One session; `play` takes it further."""

    def __init__(self, world: World, mode: str, plan: Plan, experience: Experience | None = None):
        self.world = world
        self.experience = experience or Experience()
        if world.rival_hits is not None:
            self.experience.rivals = ("rival",)
        self.policy = policy_for(Wish(mode, plan), self.experience, "")
        prompt = [truth(position) for position in range(8)]
        self.rounds = Rounds(
            prompt,
            self.policy,
            vocab_size=VOCAB_SIZE,
            max_new_tokens=1 << 30,
            deadline_s=DEADLINE_S,
        )
        self.now_us = 1.0
        self.went = Played()
        self._open: set[str] = set()
        self._plan = self.rounds.plan
        self._commit((), world.verify(len(prompt)))

    def play(self, tokens: int) -> Played:
        """Decode so many tokens more."""
        end = self.rounds.committed_len + tokens
        begin = len(self.went.times_us) - 1
        while self.rounds.committed_len < end:
            self._step()
        went = self.went
        return Played(went.times_us[begin:], went.tokens[begin:], went.plain_tokens[begin:])

    def _step(self) -> None:
        self.rounds.decide()
        self._follow()
        world = self.world
        if self.rounds.runs_on:
            verify = world.verify(1)
            self.now_us += world.plain_other_us + verify.forward_us
            self._commit((), verify)
            return
        tree = self._next_tree()
        verify = world.verify(len(tree.tokens))
        self.now_us += verify.forward_us
        self._commit(self._path(tree), verify)

    def _next_tree(self) -> DraftTree:
        """Wait for the draft, if there is one in time."""
        world, rounds, lead = self.world, self.rounds, self.policy.lead
        if self._plan.steps and lead in self._open:
            tree = world.grow(lead, self._plan, rounds.committed_len, rounds.tokens[-1])
            arrives_us = (
                self.now_us
                + world.other_us
                + tree.timings.extend_us
                + tree.timings.grow_us
                + world.draft_delay_us
            )
            if arrives_us <= rounds.deadline * 1e6:
                rounds.on_tree(lead, tree)
                self.now_us = arrives_us
        found = rounds.poll(self.now_us / 1e6, 1 << 30)
        if found is None:
            self.now_us = rounds.deadline * 1e6 + 1
            found = rounds.poll(self.now_us / 1e6, 1 << 30)
        self.now_us += world.plain_other_us
        assert found is not None, "the deadline has passed"
        return found

    def _path(self, tree: DraftTree) -> tuple[int, ...]:
        path: list[int] = []
        for node in range(1, len(tree.tokens)):
            parent = path[-1] if path else 0
            right = tree.tokens[node] == truth(tree.committed_len + len(path))
            if tree.parents[node] == parent and right:
                path.append(node)
        return tuple(path)

    def _commit(self, path: tuple[int, ...], verify: VerifyTimings) -> None:
        length = self.rounds.committed_len
        tokens = tuple(truth(length + i) for i in range(len(path) + 1))
        verdict = Verdict(length, path, tokens, (0.0,) * len(tokens), (), verify)
        self.rounds.on_verdict(verdict, self.now_us / 1e6)
        last_us = self.went.times_us[-1] if self.went.times_us else self.now_us
        last_plain = self.went.plain_tokens[-1] if self.went.plain_tokens else 0.0
        elapsed_us = self.now_us - last_us
        self.went.plain_tokens.append(last_plain + elapsed_us / self.world.plain_us)
        self.went.times_us.append(self.now_us)
        self.went.tokens.append(self.rounds.committed_len)

    def _follow(self) -> None:
        """Drafters open and go as they are wanted and are there; a plan works a round later."""
        wanted = self.rounds.drafters if self.world.drafter_open else {}
        for name in wanted.keys() - self._open:
            self.rounds.on_drafter_open(name, name or "d")
        for name in self._open - wanted.keys():
            self.rounds.on_drafter_lost(name, "gone")
        self._open = set(wanted)
        for name in wanted.keys() - {self.policy.lead}:
            length, root = self.rounds.committed_len, self.rounds.tokens[-1]
            self.rounds.on_tree(name, self.world.grow(name, wanted[name], length, root))
        self._plan = self.rounds.plan
