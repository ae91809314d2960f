"""Shared setup: every test has the same random state, one thread, and no hypothesis deadline."""

import os
import signal
import tempfile

import pytest
import torch
from hypothesis import settings

from sortnet.fusion import kernels

settings.register_profile("untimed", deadline=None, derandomize=True)
settings.load_profile("untimed")
os.environ.setdefault("SORTNET_HASHES", tempfile.mkdtemp(prefix="sortnet-hashes-"))
torch.set_num_threads(1)  # the tests run side by side, one process for each core
# Background jobs of a shell ignore SIGINT, and processes started by tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def small_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use kernels for tensors of any size, and drop those that other tests have compiled."""
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", {"batch": 0, "image": 0})
    monkeypatch.setattr(kernels, "_kernels", {})
    monkeypatch.setattr(kernels, "_broken", set())
