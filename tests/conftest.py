"""Every test starts from the same random state, on one thread, and none is timed."""

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
# A shell lets what it starts in the background ignore this signal, and so would what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def small_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tensors of any size by kernels, and forget those that other tests had compiled."""
    monkeypatch.setattr(kernels, "MIN_ELEMENTS", {"batch": 0, "image": 0})
    monkeypatch.setattr(kernels, "_kernels", {})
    monkeypatch.setattr(kernels, "_broken", set())
