"""The families of CPUs that the native library is built for, the best one first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Family:
    """What its CPUs have, by the names of Linux, and what is compiled for them."""

    name: str
    features: frozenset[str]
    flags: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    """Of the sources that no other family has."""

    def has(self, source: Path, families: tuple[Family, ...]) -> bool:
        """Whether a source is compiled for it."""
        others = [one for one in families if source.stem.endswith(one.endings)]
        return not others or self in others


AVX512 = Family(
    "avx512",
    frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni"}),
    endings=("_avx512", "_avx512_bf16", "_amx"),
)
AVX2 = Family("avx2", frozenset({"avx2", "fma"}), ("-DSLIPSTREAM_AVX2",), ("_avx2",))
FAMILIES = (AVX512, AVX2)


@cache
def family_here() -> Family:
    """Return the best family of this CPU; the last one if it is of none, whose library says so."""
    features = _features()
    return next((one for one in FAMILIES if one.features <= features), FAMILIES[-1])


def _features() -> frozenset[str]:
    if not _CPUINFO.is_file():
        return frozenset()
    lines = _CPUINFO.read_text().splitlines()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
