"""The `decode` line tells what was decoded since the one before, and nothing when idle."""

import pytest
from structlog.testing import capture_logs

from protos.messages import DraftTree, SamplingParams, Verdict
from target_service.decode_log import DecodeLog
from target_service.kv_memory import KvMemory
from target_service.scheduler import Scheduler
from target_service.session import Session
from target_service.totals import Totals


@pytest.fixture
def scheduler():
    scheduler = Scheduler(KvMemory(8), step_rows=128, chunk_len=16, max_sessions=4)
    scheduler.open(Session("a", [1], SamplingParams(), 100, 50))
    scheduler.open(Session("b", [1], SamplingParams(), 100, 50))
    (rows, _) = scheduler.schedule(0.0)
    scheduler.ready(rows.session)
    return scheduler


def count(totals: Totals, drafted: int, accepted: int) -> None:
    """Count a step with a chain of which the first drafts were accepted."""
    session = Session("c", [1], SamplingParams(), 100, 50)
    session.tree = DraftTree.chain(1, (1,) * (drafted + 1))
    totals.count_step([session.next_rows(16)])
    path = tuple(range(1, accepted + 1))
    totals.count_verdict(Verdict(1, path, (2,) * (accepted + 1), (0.0,) * (accepted + 1)))


def test_it_tells_accept_length_and_load(scheduler):
    totals = Totals()
    log = DecodeLog(totals, scheduler, interval_s=1000)
    with capture_logs() as lines:
        for drafted, accepted in [(3, 2), (3, 1), (0, 0)]:
            count(totals, drafted, accepted)
            log.tick()
        assert lines == []
        log.flush()
    (line,) = lines
    assert line.pop("tokens_per_second") > 0
    assert line == {
        "event": "decode",
        "log_level": "info",
        "running_requests": 2,
        "queued_requests": 1,
        "tokens": 6,
        "accept_length": 2.0,
        "accept_rate": 0.5,
        "graph": False,
    }


def test_every_line_begins_anew(scheduler):
    totals = Totals()
    log = DecodeLog(totals, scheduler, interval_s=0)
    with capture_logs() as lines:
        for drafts in (4, 0):
            count(totals, drafts, drafts)
            log.tick()
    assert [line["tokens"] for line in lines] == [5, 1]
    assert [line["accept_rate"] for line in lines] == [1.0, 0.0]


def test_an_idle_target_says_nothing(scheduler):
    with capture_logs() as lines:
        DecodeLog(Totals(), scheduler).flush()
    assert lines == []
