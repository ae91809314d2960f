"""Programs of other projects that some tests need: a browser, SLURM."""

import os
from typing import NoReturn

import pytest


def absent(reason: str) -> NoReturn:
    """Skip a test whose program is missing; fail if `.ci/run` requires all programs."""
    if "SORTNET_REQUIRE_COMPONENTS" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)
