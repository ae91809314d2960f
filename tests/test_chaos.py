"""A sample of the attacks; ``make chaos`` makes all of them."""

import os
import subprocess
import sys
from pathlib import Path

CHAOS = Path(__file__).with_name("chaos.py")


def test_a_sample_of_attacks_leaves_no_trace() -> None:
    """In a new process: commands are forked from one that has never computed a gradient."""
    done = subprocess.run(
        [sys.executable, str(CHAOS), "--sample"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "removal: 4 attempts, 0 failed" in done.stdout
    assert "directory changed: 8 attempts, 0 failed" in done.stdout
