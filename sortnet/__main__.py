"""The command ``sortnet``, also as ``python -m sortnet``."""

import sys

from sortnet.errors import MissingExtra, require_lab


def main() -> int:
    """Run a command, or print how to install the packages that commands need."""
    try:
        require_lab()
    except MissingExtra as error:
        print(f"sortnet: {error}", file=sys.stderr)
        return 1
    from sortnet.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
