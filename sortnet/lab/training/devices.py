"""The device a network runs on, and what it supports."""

import torch

from sortnet.errors import UsageError
from sortnet.fusion import private

DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")
"""Values of ``--device``."""


def resolve_device(device: str = "auto") -> torch.device:
    """Return the device with a name; ``auto`` is the accelerator if there is one, else the CPU.

    Arguments:
        device: One of `DEVICES`.

    Raises:
        UsageError: This machine has no such device.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    devices = [torch.device("cpu")] + ([] if accelerator is None else [accelerator])
    if device == "auto":
        return devices[-1]
    for found in devices:
        if found.type == device:
            return found
    names = ", ".join(found.type for found in devices)
    raise UsageError(f"no device {device!r} here; there are auto, {names}")


def has_native_bfloat16(device: torch.device) -> bool:
    """Return True if the device has native bfloat16 arithmetic.

    CUDA GPUs have it from compute capability 8.0 on, CPUs with AVX512-BF16 or AMX. For Apple's
    GPUs PyTorch does not say.
    """
    if device.type == "cpu":
        return private.cpu_has_bfloat16()
    if device.type in ("cuda", "xpu"):
        supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
        return supported is not None and bool(supported(including_emulation=False))
    return False


def widest_float(device: torch.device) -> torch.dtype:
    """Return float64, the dtype of sums, or float32 if the device has no float64."""
    if device.type == "mps":
        return torch.float32
    if device.type == "xpu" and not torch.xpu.get_device_properties(device).has_fp64:
        return torch.float32
    return torch.float64


def accelerator_name() -> str:
    """Return the name of the machine's accelerator, or ``none``."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return "none"
    name = getattr(torch.get_device_module(accelerator), "get_device_name", None)
    return accelerator.type if name is None else str(name())
