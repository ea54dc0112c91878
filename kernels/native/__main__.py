"""`python -m kernels.native`: build the native kernels, once after installation."""

import subprocess
import sys

from kernels.native.build import build

if __name__ == "__main__":
    try:
        print(build())
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"error: the native kernels cannot be built: {error}")
