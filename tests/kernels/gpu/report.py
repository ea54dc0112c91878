"""Prints what every kernel takes of every chip, as a table for the docs.

python -m tests.kernels.gpu.report
"""

from __future__ import annotations

from tests.kernels.gpu.proofs.binary import Binary
from tests.kernels.gpu.proofs.compile_spec import CompileSpec
from tests.kernels.gpu.proofs.fake_driver import CHIPS
from tests.kernels.gpu.specs import all_specs


def table(specs: list[CompileSpec]) -> str:
    """Return registers a thread and shared memory a block, a row a kernel and a column a chip."""
    chips = [f"sm_{sm}" for sm in CHIPS]
    lines = [("kernel", "warps", *chips), ("---",) * (2 + len(chips))]
    for spec in specs:
        for variants in zip(*(spec.compile(sm) for sm in CHIPS), strict=True):
            name = f"{spec.name}: `{variants[0].name}`"
            lines.append((name, str(variants[0].num_warps), *map(_cell, variants)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(binary: Binary) -> str:
    return f"{binary.registers} regs, {binary.shared / 1024:.1f} KB"


if __name__ == "__main__":
    print(table(all_specs()))
