"""`python -m kernels.native`: build the native kernels, once after installation.

`--all` builds them for every family of CPUs, for an image that runs anywhere.
"""

import subprocess
import sys

from kernels.native.build import build
from kernels.native.family import FAMILIES, family_here


def main(arguments: list[str]) -> None:
    """Build, and print where the libraries lie."""
    if arguments not in ([], ["--all"]):
        sys.exit(f"error: the only argument is --all, got {' '.join(arguments)}")
    for family in FAMILIES if arguments else (family_here(),):
        print(build(family=family))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"error: the native kernels cannot be built: {error}")
