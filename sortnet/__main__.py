"""``python -m sortnet``, for torchrun and the like."""

import sys

from sortnet.cli import main

if __name__ == "__main__":
    sys.exit(main())
