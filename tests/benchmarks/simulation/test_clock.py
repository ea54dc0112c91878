"""Time passes in order, and a machine does one thing at a time."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation.clock import Clock, Machine, Work


@given(st.lists(st.floats(0, 10), max_size=20))
def test_events_happen_in_order_and_equal_times_in_the_order_they_were_set(moments):
    clock, happened = Clock(), []
    for number, moment in enumerate(moments):
        clock.at(moment, lambda number=number: happened.append((clock.now, number)))
    clock.run_until(10)
    assert happened == sorted((moment, number) for number, moment in enumerate(moments))


def test_what_is_set_for_the_past_happens_now():
    clock, happened = Clock(), []
    clock.after(2.0, lambda: clock.at(1.0, lambda: happened.append(clock.now)))
    clock.run_until(3)
    assert happened == [2.0]


class Jobs:
    """A worker with jobs of a second each."""

    def __init__(self, clock, jobs):
        self.clock, self.jobs, self.begun = clock, jobs, []

    def next_work(self):
        if not self.jobs:
            return None
        self.jobs -= 1
        self.begun.append(self.clock.now)
        return Work(1.0, lambda: None)


def test_one_machine_runs_one_piece_at_a_time_the_first_workers_first():
    clock = Clock()
    machine = Machine(clock)
    first, second = Jobs(clock, 2), Jobs(clock, 1)
    machine.add(first)
    machine.add(second)
    machine.wake()
    clock.run_until(10)
    assert first.begun == [0.0, 1.0]
    assert second.begun == [2.0]
    assert machine.busy_s == {first: 2.0, second: 1.0}


def test_a_machine_sees_all_that_arrives_at_one_moment():
    """A batch is made after everybody has come, not when the first one has."""
    clock, seen = Clock(), []
    machine = Machine(clock)

    class Counter:
        waiting = 0

        def next_work(self):
            if self.waiting:
                seen.append(self.waiting)
                self.waiting = 0

    counter = Counter()
    machine.add(counter)

    def arrive():
        counter.waiting += 1
        machine.wake()

    for _ in range(3):
        clock.at(1.0, arrive)
    clock.run_until(2)
    assert seen == [3]
