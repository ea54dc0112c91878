"""Kernels that Triton compiled are counted as a driver sees them."""

from benchmarks.gpu_check.launches import CountingCapture, Launches
from tests.kernels.gpu.proofs.fake_driver import fake_driver
from tests.kernels.gpu.specs.elementwise import SPECS


def test_as_many_launches_are_counted_as_a_driver_gets():
    def capture(run):
        run()
        return lambda: None

    spec = SPECS[0]
    step, counting = spec.prepare(), CountingCapture(capture)
    with fake_driver() as driver:
        replay = counting(lambda: [step(size) for size in spec.sizes])
    replay()
    assert counting.take() == Launches(len(driver.launches), 1)
    assert len(driver.launches) >= len(spec.sizes)
