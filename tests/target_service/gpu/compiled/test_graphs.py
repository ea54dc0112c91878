"""What is captured at the start is logged: a line a bucket, and a total."""

import structlog

from kernels.gpu.graphs import StepGraphs
from target_service.buckets import Buckets
from target_service.graphs import prepare


class EmptyStep:
    def __init__(self, bucket):
        self.runs = 0

    def clear(self):
        pass

    def run(self):
        self.runs += 1


def test_a_line_a_bucket_and_a_total():
    buckets, captured = Buckets(16, 8), []
    graphs = StepGraphs(EmptyStep, lambda run: captured.append(run) or run)
    with structlog.testing.capture_logs() as lines:
        prepare(lambda told: graphs.prepare(buckets.usual(), told))
    usual = list(buckets.usual())
    assert [line["event"] for line in lines] == ["step_prepared"] * 5 + ["steps_prepared"]
    assert [(line["rows"], line["nodes"], line["sessions"]) for line in lines[:-1]] == usual
    assert len(captured) == lines[-1]["buckets"] == 5
    assert abs(lines[-1]["seconds"] - sum(line["seconds"] for line in lines[:-1])) < 0.01
