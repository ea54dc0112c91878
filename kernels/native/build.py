"""Build the native library.

It lies beside its sources, under a name that holds a digest of them and of the torch it fits.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

import torch

_HERE = Path(__file__).parent
# Each file that needs more than the oldest x86-64 says so itself: one library serves all CPUs.
# GCC's own intrinsics trip over -Wuninitialized.
_FLAGS = ["-O3", "-std=c++20", "-fvisibility=hidden", "-Wno-uninitialized", "-Wno-psabi"]


def sources() -> list[Path]:
    """Return the C++ files."""
    return sorted(_HERE.glob("*.cpp"))


def library_path() -> Path:
    """Return where the library for these sources and this torch lies, or would lie."""
    digest = hashlib.sha256(torch.__version__.encode() + " ".join(_FLAGS).encode())
    for path in [*sources(), *sorted(_HERE.glob("*.h"))]:
        digest.update(path.read_bytes())
    return _HERE / "build" / f"slipstream_{digest.hexdigest()[:16]}.so"


def build() -> Path:
    """Build the library unless it is there. Raises RuntimeError if there is no compiler."""
    path = library_path()
    if path.is_file():
        return path
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise RuntimeError("no C++ compiler is there (g++): the reference kernels will be used")
    path.parent.mkdir(exist_ok=True)
    _compile(path)
    return path


def _compile(path: Path) -> None:
    # Imported here: it warns about compilers as soon as it is there.
    from torch.utils import cpp_extension

    # ninja lies beside the interpreter, which is on nobody's path in a virtual environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    cpp_extension.load(
        name=path.stem,
        sources=[str(source) for source in sources()],
        extra_cflags=_FLAGS,
        build_directory=str(path.parent),
        is_python_module=False,
    )
