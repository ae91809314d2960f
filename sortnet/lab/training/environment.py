"""What decides the bits of a run besides its configuration, and what of it has changed."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sortnet.fusion import kernels
from sortnet.lab.data import Dataset
from sortnet.lab.training import hardware as here
from sortnet.lab.training.devices import accelerator_name
from sortnet.lab.training.distributed import Distributed
from sortnet.lab.training.hardware import Machine


def describe(machine: Machine, world: Distributed, dataset: Dataset) -> dict[str, Any]:
    """What a bit-identical continuation depends on."""
    on_cpu = machine.device.type == "cpu"
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processes": world.size,
        "device": machine.device.type,
        "processor": here.processor() if on_cpu else accelerator_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "precision": machine.precision,
        "compile": "on" if machine.compile else "off",
        "kernels": _kernels(machine.device.type),
        "data": dataset.fingerprint,
    }


def _kernels(device: str) -> str:
    """How fusions are run; without a compiler ``auto`` gives other bits than with one."""
    if kernels._mode != "auto":
        return kernels._mode
    return f"auto, {'with' if kernels.available(device) else 'without'} a compiler"


def changes(
    then: Mapping[str, Any], now: Mapping[str, Any], dataset: Dataset
) -> Iterator[tuple[str, Any, Any]]:
    """Name, value then and value now of what differs.

    Arguments:
        then: Of a checkpoint. What an earlier version did not write down is unknown and passes.
        now: Of this process.
        dataset: Whose earlier kind of fingerprint is as good as the present one.
    """
    for name, value in now.items():
        if name not in then or then[name] == value:
            continue
        if name == "data" and then[name] == dataset.former:
            continue
        yield name, then[name], value


def between_epochs(step: int, batch: int, images: int) -> bool:
    """Whether the last of so many steps has ended an epoch.

    Example:
        >>> [step for step in range(1, 7) if between_epochs(step, batch=480, images=1437)]
        [3, 6]
    """
    return step * batch % images < batch
