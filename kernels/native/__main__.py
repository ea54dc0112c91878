"""`python -m kernels.native`: build the native kernels, once after installation."""

import sys

from kernels.native.build import build

if __name__ == "__main__":
    try:
        print(build())
    except RuntimeError as error:
        sys.exit(f"error: {error}")
