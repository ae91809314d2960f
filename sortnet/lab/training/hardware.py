"""The machine at hand: where tensors live, in which layout and precision, compiled or not."""

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
"""The dtype of autocast for each precision of a run."""
COMPILED = ("cuda", "xpu")
"""Devices on which ``--compile auto`` may compile."""
FUSED_SGD = ("cpu", "cuda", "mps", "xpu")
"""Devices for which PyTorch has an SGD step in one kernel."""
BREAK_EVEN = 2000
"""Steps from which compiling a whole network pays on a GPU, by ``--compile auto``.

A guess until it is measured on one. On a CPU ``auto`` does not compile: docs/cost.md has what it
gains there, a few per cent in two networks, and what it loses in most others.
"""


def tune() -> None:
    """Set up the process for fast training on a CPU; does nothing that is not needed.

    glibc gives memory of large tensors back to the system at once and asks for it again, page by
    page, at the next operation; half of a training step can go into that. And a container's share
    of the cores can be smaller than their number, which is what torch goes by.
    """
    if platform.libc_ver()[0] == "glibc":
        mmap_threshold, trim_threshold = -3, -1
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)
    # Torch looks for CUDA whenever it compiles, and warns where there is just a toolkit.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), cores()))


def cores() -> int:
    """How many cores this process may use, by its affinity and its container's quota."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with suppress(OSError, ValueError):  # no cgroup, or "max": no quota
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        usable = min(usable or 1, round(int(quota) / int(period)))
    return max(1, usable or 1)


@dataclass(frozen=True)
class Machine:
    """Where and how a network is run.

    Attributes:
        device: Where weights and batches are.
        precision: One of `PRECISIONS`: what convolutions compute in during training.
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
        """The machine at hand.

        Arguments:
            compile: ``on``, ``off``, or ``auto``: where it pays within so many steps.
            steps: How many training steps there will be.
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
        """Move a model here; channels last is the faster layout on both kinds of device."""
        return model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def ready(self, model: nn.Module) -> nn.Module:
        """The model as it is to be called: compiled, if that was chosen."""
        return torch.compile(model) if self.compile else model  # type: ignore[return-value]

    def images(self, images: Tensor) -> Tensor:
        """Move a batch of images here, without waiting for it where memory is pinned."""
        return images.to(self.device, non_blocking=True, memory_format=torch.channels_last)

    def labels(self, labels: Tensor) -> Tensor:
        """Move a batch's labels here."""
        return labels.to(self.device, non_blocking=True)

    def autocast(self) -> AbstractContextManager[object]:
        """The context of a training step's forward pass."""
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
        """The optimizer, in its one-kernel form where the device has one."""
        return torch.optim.SGD(
            parameters,
            lr,
            momentum=momentum,
            weight_decay=decay,
            nesterov=nesterov,
            fused=True if self.device.type in FUSED_SGD else None,
        )


def resolve_precision(precision: str, device: str | torch.device = "auto") -> str:
    """Replace ``auto`` by the precision that is best on a device.

    That is bfloat16 where the hardware computes in it. Elsewhere it is emulated, slowly, and
    ``auto`` means float32.

    Arguments:
        precision: ``auto``, or one of `PRECISIONS`.
        device: A device, or its name as `resolve_device` takes it.

    Raises:
        ValueError: There is no such precision or device.
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
    """The machine and the versions, to be stored with whatever was measured on it."""
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
    """The commit of the clone that this package runs from, ``+`` if changed; else empty."""
    clone = Path(__file__).parents[3]
    if not (clone / ".git").exists():
        return ""
    git = ["git", "-C", str(clone)]
    try:
        head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
        changes = subprocess.check_output([*git, "status", "--porcelain", "-uno"], text=True)
    except (OSError, subprocess.CalledProcessError):  # no git, or a clone of somebody else's
        return ""
    return head + "+" * bool(changes)


def processor() -> str:
    """The processor's model."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor() or platform.machine()
