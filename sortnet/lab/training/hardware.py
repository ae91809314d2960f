"""The machine: device, memory layout, precision and compilation."""

import ctypes
import logging
import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sortnet import __version__
from sortnet.errors import UsageError
from sortnet.lab.training.devices import accelerator_name, has_native_bfloat16, resolve_device

Module = TypeVar("Module", bound=nn.Module)

COMPILE = ("auto", "on", "off")
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Autocast dtype of each precision."""
COMPILED = ("cuda", "xpu")
"""Devices on which ``--compile auto`` may compile."""
FUSED = ("cpu", "cuda", "mps", "xpu")
"""Devices for which PyTorch has fused SGD."""
BREAK_EVEN = 2000
"""Steps from which ``--compile auto`` compiles a network on a GPU.

A guess: not measured on a GPU yet. On a CPU ``auto`` does not compile: it gains a few percent in
two networks and loses in most others (docs/cost.md).
"""


def tune() -> None:
    """Set up the process for fast training on a CPU.

    By default glibc returns the memory of large tensors to the system at once and maps it again,
    page by page, at the next operation, which can take half of a training step. And PyTorch starts
    a thread per core, even if the container may use fewer.
    """
    if platform.libc_ver()[0] == "glibc":
        mmap_threshold, trim_threshold = -3, -1
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)
    # When it compiles, torch looks for CUDA and warns if there is only a toolkit.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), cores()))


def cores() -> int:
    """Return the number of cores this process may use, by its affinity and container quota."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with suppress(OSError, ValueError):  # no cgroup, or "max": no quota
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        usable = min(usable or 1, round(int(quota) / int(period)))
    return max(1, usable or 1)


@dataclass(frozen=True)
class Machine:
    """Where and how a network runs.

    Attributes:
        device: Device of weights and batches.
        precision: One of `PRECISIONS`: dtype of convolutions and matrix products in training.
            Weights, momentum, batch statistics and the loss stay float32.
        compile: Whether to compile the whole network.
    """

    device: torch.device
    precision: str
    compile: bool

    @classmethod
    def here(
        cls,
        compile: str = "auto",
        steps: int | None = None,
        precision: str = "float32",
        device: str | torch.device = "auto",
    ) -> "Machine":
        """Return this machine.

        Arguments:
            compile: ``on``, ``off``, or ``auto``: where it pays off within `steps`.
            steps: Number of training steps.
            precision: One of `PRECISIONS`, or ``auto``; see `resolve_precision`.
            device: A device, or its name as `resolve_device` takes it.
        """
        if compile not in COMPILE:
            raise UsageError(
                f"unknown choice {compile!r} for compile; there are {', '.join(COMPILE)}"
            )
        if isinstance(device, str):
            device = resolve_device(device)
        worth = device.type in COMPILED and (steps is None or steps >= BREAK_EVEN)
        chosen = resolve_precision(precision, device)
        return cls(device, chosen, worth if compile == "auto" else compile == "on")

    def place(self, model: Module) -> Module:
        """Move a model to the device, in channels_last, the faster layout on CPUs and GPUs."""
        return model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def maybe_compile(self, model: nn.Module) -> nn.Module:
        """Return the model, compiled if that was chosen."""
        return torch.compile(model) if self.compile else model  # type: ignore[return-value]

    def images(self, images: Tensor) -> Tensor:
        """Move a batch of images to the device, asynchronously if its memory is pinned."""
        return images.to(self.device, non_blocking=True, memory_format=torch.channels_last)

    def labels(self, labels: Tensor) -> Tensor:
        """Move the labels of a batch to the device."""
        return labels.to(self.device, non_blocking=True)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context of a training step's forward pass."""
        dtype = PRECISIONS[self.precision]
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def sgd(
        self,
        parameters: Iterable[nn.Parameter] | list[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        decay: float,
        nesterov: bool = False,
    ) -> torch.optim.SGD:
        """Return SGD, fused if the device supports it."""
        return torch.optim.SGD(
            parameters,
            lr,
            momentum=momentum,
            weight_decay=decay,
            nesterov=nesterov,
            fused=True if self.device.type in FUSED else None,
        )


def resolve_precision(precision: str, device: str | torch.device = "auto") -> str:
    """Resolve ``auto``: bfloat16 if the hardware has it natively, else float32.

    Arguments:
        precision: ``auto``, or one of `PRECISIONS`.
        device: A device, or its name as `resolve_device` takes it.

    Raises:
        UsageError: There is no such precision or device.
    """
    if precision == "auto":
        device = resolve_device(device) if isinstance(device, str) else device
        return "bfloat16" if has_native_bfloat16(device) else "float32"
    if precision not in PRECISIONS:
        raise UsageError(
            f"unknown precision {precision!r}; there are auto, {', '.join(PRECISIONS)}"
        )
    return precision


def description() -> dict[str, str | int]:
    """Return machine and versions, stored with everything measured on it."""
    return {
        "processor": processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "gpu": accelerator_name(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sortnet": __version__,
        "commit": _commit(),
    }


def _commit() -> str:
    """Return the commit of the clone this package runs from, with ``+`` if changed."""
    clone = Path(__file__).parents[3]
    if not (clone / ".git").exists():
        return ""
    git = ["git", "-C", str(clone)]
    try:
        head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
        changes = subprocess.check_output([*git, "status", "--porcelain", "-uno"], text=True)
    except (OSError, subprocess.CalledProcessError):  # no git, or another user's clone
        return ""
    return head + "+" * bool(changes)


def processor() -> str:
    """Return the processor's model name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor() or platform.machine()
