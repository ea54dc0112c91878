"""Build the native library.

It lies beside its sources, under a name that holds the family of CPUs that it is for, and a digest
of the sources, of the flags and of the torch it fits.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from kernels.native.family import FAMILIES, Family, family_here

_HERE = Path(__file__).parent
# Of a 64-bit ELF file: where the table of its sections begins, the size of an entry, and how many.
_ELF_HEADER = struct.Struct("<40x Q 10x 2H 2x")
# Files that need more than the oldest x86-64 say so themselves: a library serves all of a family.
# GCC's own intrinsics trip over -Wuninitialized.
FLAGS = ("-O3", "-std=c++20", "-fvisibility=hidden", "-Wno-uninitialized", "-Wno-psabi")
SANITIZED = (*FLAGS, "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined")


def library_path(flags: Sequence[str] = FLAGS, family: Family | None = None) -> Path:
    """Return where the library for these sources and this torch lies, or would lie.

    Without a family it is that of this CPU.
    """
    family = family or family_here()
    digest = hashlib.sha256(torch.__version__.encode() + " ".join(flags).encode())
    for path in [*_sources(family), *sorted(_HERE.glob("*.h"))]:
        digest.update(path.read_bytes())
    return _HERE / "build" / f"slipstream_{family.name}_{digest.hexdigest()[:16]}.so"


def _sources(family: Family) -> list[Path]:
    return [path for path in sorted(_HERE.glob("*.cpp")) if family.has(path, FAMILIES)]


def is_whole(path: Path) -> bool:
    """Whether a library is there to its end: the table of its sections, which is the last of it.

    Of one that was cut off, a page that is missing would end the process that touches it.
    """
    if not path.is_file() or path.stat().st_size < _ELF_HEADER.size:
        return False
    with path.open("rb") as file:
        begin, entry_size, entries = _ELF_HEADER.unpack(file.read(_ELF_HEADER.size))
    return begin + entry_size * entries <= path.stat().st_size


def build(flags: Sequence[str] = FLAGS, family: Family | None = None) -> Path:
    """Build the library unless it is there. Raises RuntimeError if there is no compiler."""
    family = family or family_here()
    path = library_path(flags, family)
    if is_whole(path):
        return path
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise RuntimeError(f"no C++ compiler is there (CXX={compiler!r})")
    path.parent.mkdir(exist_ok=True)
    # In a folder of its own, so that two builds at once do not meet, and moved when it is whole.
    folder = Path(tempfile.mkdtemp(dir=path.parent))
    try:
        _compile(path.stem, folder, _sources(family), (*flags, *family.flags))
        (folder / path.name).replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return path


def _compile(name: str, folder: Path, sources: Sequence[Path], flags: Sequence[str]) -> None:
    # Imported here: it warns about compilers as soon as it is there.
    from torch.utils import cpp_extension

    # ninja lies beside the interpreter, which is on nobody's path in a virtual environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    cpp_extension.load(
        name=name,
        sources=[str(source) for source in sources],
        extra_cflags=list(flags),
        extra_ldflags=[flag for flag in flags if flag.startswith("-fsanitize")],
        build_directory=str(folder),
        is_python_module=False,
    )
