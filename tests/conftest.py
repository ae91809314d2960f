"""Shared setup: every test has the same random state, one thread, and no hypothesis deadline."""

import math
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import settings
from torch import nn

from sortnet.fusion import kernels

if TYPE_CHECKING:
    from browser import Browser

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


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """A browser for the pages of a module's tests."""
    from browser import launch

    yield from launch()


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of each life in which a weight becomes infinite, counted from 1."""
    from sortnet.lab.runs import execute

    create_model, moments = execute.fresh, [6]

    def poison(*what: Any) -> Any:  # noqa: ANN401
        network, calls = create_model(*what), [0]

        def hook(module: nn.Module, _inputs: object) -> None:
            calls[0] += module.training
            if calls[0] in moments:
                module.get_parameter("weight").data[0] = math.inf

        network.get_submodule("conv2").register_forward_pre_hook(hook)
        return network

    monkeypatch.setattr(execute, "fresh", poison)
    return moments


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Let PyTorch report an accelerator of a kind, or none."""

    def report(kind: str | None) -> None:
        device = None if kind is None else torch.device(kind)
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available=False: device
        )

    return report
