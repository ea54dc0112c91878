"""Sessions that share steps, driven without a server, and everything each was told."""

import random
from dataclasses import dataclass, field

from protos.messages import DraftTree, SamplingParams
from target_service.engine import Outcome, StepEngine
from target_service.kv_memory import KvMemory
from target_service.scheduler import Scheduler
from target_service.session import Rows, Session
from tests.target_service.played_session import MAX_CONTEXT_LEN, Told, random_tree


@dataclass(eq=False)
class Client:
    """A session of a batch: what it was told, and what it is to be told."""

    session: Session
    reference: Told
    told: Told = field(default_factory=Told)

    @property
    def done(self) -> bool:
        return len(self.told.tokens) >= len(self.reference.tokens)

    def hear(self, rows: Rows, outcome: Outcome) -> None:
        """Note what a step told, of each row's taps the first."""
        first = max(self.session.told_len - rows.prefix_len, 0)
        self.told.taps.append(outcome.taps_KX[first:])
        self.session.told_len = max(self.session.told_len, rows.prefix_len + len(outcome.taps_KX))
        if outcome.verdict:
            self.told.tokens += outcome.verdict.tokens
            self.told.logprobs += outcome.verdict.logprobs
            self.told.top_logprobs += outcome.verdict.top_logprobs


class Batch:
    """A target without a server: the real scheduler, and an engine."""

    def __init__(
        self, engine: StepEngine, num_pages: int, *, vocab_size: int, step_rows: int, chunk_len: int
    ) -> None:
        self.engine = engine
        self.scheduler = Scheduler(
            KvMemory(num_pages), step_rows=step_rows, chunk_len=chunk_len, max_sessions=99
        )
        self._vocab_size = vocab_size
        self.clients: dict[Session, Client] = {}

    def open(
        self, name: str, sampling: SamplingParams, prompt: list[int], reference: Told
    ) -> Client:
        session = Session(name, list(prompt), sampling, MAX_CONTEXT_LEN, self._vocab_size)
        self.scheduler.open(session)
        self.clients[session] = Client(session, reference)
        return self.clients[session]

    def step(self, now: float) -> int:
        """Run a step; return how many sessions shared it."""
        batch = self.scheduler.schedule(now)
        outcomes = self.engine.step(batch) if batch else []
        for rows, outcome in zip(batch, outcomes, strict=True):
            self.commit(rows, outcome, now)
        return len(batch)

    def commit(self, rows: Rows, outcome: Outcome, now: float) -> None:
        session, client, goes_on = rows.session, self.clients[rows.session], True
        if client.session.told_len < rows.prefix_len:
            known = range(session.told_len, rows.prefix_len)
            client.told.taps.append(self.engine.stored_taps(rows.pages, known))
            session.told_len = rows.prefix_len
        client.hear(rows, outcome)
        if outcome.verdict is None:
            session.advance(len(rows.tokens))
        else:
            goes_on = session.commit(outcome.verdict.tokens)
        self.scheduler.computed(session)
        if goes_on:
            self.scheduler.ready(session)
        else:
            self.scheduler.silent(session, now)

    def offer(self, client: Client, rng: random.Random, nodes: int) -> None:
        """Ask for the next tokens, plainly or with a tree some of whose nodes are right."""
        session = client.session
        if session.tree is not None or client.done:
            return
        future = client.reference.tokens[session.num_new_tokens :]
        tokens, parents = random_tree(
            rng, future, self._vocab_size, rng.randint(0, nodes), hit_rate=0.8
        )
        root = session.tokens[-1]
        assert session.offer(DraftTree(session.committed_len, (root, *tokens), (-1, *parents)))
        self.scheduler.ready(session)

    def close(self, client: Client) -> None:
        self.scheduler.close(client.session)
        del self.clients[client.session]
