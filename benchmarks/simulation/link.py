"""A simulated session's streams to target and drafter: everything takes a hop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from benchmarks.simulation.drafter import DRAFTER_ID, Drafter, Following
from benchmarks.simulation.guesses import Guesser
from benchmarks.simulation.session import PROMPT_LEN, Session
from benchmarks.simulation.target import Decode, Frame, Target
from protos.messages import DraftTree, Plan, Verdict


class Hop(Protocol):
    """Lets something arrive elsewhere, with so many rows of taps."""

    def __call__(self, deliver: Callable[[], None], tap_rows: int = 0) -> None: ...


class Link:
    """One session's. A drafter that begins to follow gets the taps of all rows before."""

    def __init__(self, hop: Hop, target: Target, drafter: Drafter, guesser: Guesser) -> None:
        self.session: Session
        self._hop, self._target, self._drafter, self._guesser = hop, target, drafter, guesser
        self._decode = Decode(PROMPT_LEN, self._on_verdict)
        # By the drafter's name, with the plan that was asked for last.
        self._followings: dict[str, Following] = {}
        self._asked: dict[str, Plan] = {}

    def open(self, session: Session) -> None:
        """Let the target begin with a session's prompt."""
        self.session = session
        self._target.begin(self._decode, session.rounds.run_until)

    def verify(self, tree: DraftTree) -> None:
        """Send the target a tree."""
        self._hop(partial(self._target.verify, self._decode, tree))

    def run(self, until_len: int) -> None:
        """Let the target decode plainly until so many tokens are committed."""
        self._hop(partial(self._target.run, self._decode, until_len))

    def ask(self, name: str, plan: Plan) -> None:
        """Have a drafter follow the session with this standing plan."""
        if name not in self._followings:
            following = Following(plan, self._guesser, partial(self._on_tree, name))
            self._followings[name] = following
            self._hop(partial(self._attach, name, following))
        elif plan != self._asked[name]:
            self._hop(partial(setattr, self._followings[name], "plan", plan))
        self._asked[name] = plan

    def leave(self, name: str) -> None:
        """Send a drafter away."""
        following = self._followings.pop(name)
        self._decode.followers.pop(following, None)
        self._hop(partial(self._drafter.close, following))

    def _attach(self, name: str, following: Following) -> None:
        """The draft service has the session: it subscribes to its taps."""
        self._hop(partial(self._subscribe, name, following))
        self._hop(partial(self.session.on_drafter_open, name, name or DRAFTER_ID))

    def _subscribe(self, name: str, following: Following) -> None:
        # It may have been sent away meanwhile.
        if following is self._followings.get(name):
            self._decode.followers[following] = partial(self._on_frame, following)
            self._on_frame(following, self._decode.told)

    def _on_frame(self, following: Following, frame: Frame) -> None:
        self._hop(partial(self._drafter.arrive, following, frame), frame.rows)

    def _on_verdict(self, verdict: Verdict) -> None:
        self._hop(partial(self.session.on_verdict, verdict))

    def _on_tree(self, name: str, tree: DraftTree) -> None:
        self._hop(partial(self.session.on_tree, name, tree))
