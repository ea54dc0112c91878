"""Every kernel, as production launches it: fit for every chip, and compiled before it is needed."""

import pytest

from tests.kernels.gpu.proofs.capture_guard import CaptureGuard
from tests.kernels.gpu.proofs.compile_spec import faults
from tests.kernels.gpu.proofs.fake_driver import CHIPS, fake_driver
from tests.kernels.gpu.report import table
from tests.kernels.gpu.specs import all_specs

every_chip = pytest.mark.parametrize("sm", CHIPS, ids=lambda sm: f"sm_{sm}")
every_spec = pytest.mark.parametrize("spec", all_specs(), ids=lambda spec: spec.name)


@every_chip
@every_spec
def test_a_kernel_is_fit_for_a_chip(spec, sm):
    """No spills, no more shared memory than there is, wide loads and tensor cores."""
    binaries = spec.compile(sm)

    assert {binary.name for binary in binaries} == set(spec.kernels)
    assert {b.name: faults(b, spec.kernels[b.name]) for b in binaries} == {
        binary.name: [] for binary in binaries
    }


@every_spec
def test_what_is_warm_stays_warm(spec):
    """Steps of all sizes share few variants, take no memory, and are the same again."""
    step, plans = spec.prepare(), []
    for _ in range(2):
        with fake_driver() as driver, CaptureGuard():
            for size in spec.sizes:
                step(size)
        plans.append(driver.launches)

    assert plans[0] == plans[1]
    assert len(driver.variants) <= spec.most_variants


def test_the_table_has_a_row_a_kernel():
    specs = all_specs()[:1]

    lines = table(specs).splitlines()

    assert lines[0] == "| kernel | warps | sm_90 | sm_100 | sm_120 |"
    assert len(lines) == 2 + len(specs[0].kernels)
    assert "regs" in lines[2]
