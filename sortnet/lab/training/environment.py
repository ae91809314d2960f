"""What determines a run's bits besides its configuration, and whether that allows resuming."""

from typing import TYPE_CHECKING, Any

import torch

from sortnet.errors import UsageError
from sortnet.fusion import kernels
from sortnet.lab.data import Dataset
from sortnet.lab.training import checkpoint, hardware
from sortnet.lab.training.devices import accelerator_name
from sortnet.lab.training.distributed import Distributed
from sortnet.lab.training.hardware import Machine

if TYPE_CHECKING:
    from sortnet.lab.training.loop import Trainer


def describe(machine: Machine, distributed: Distributed, dataset: Dataset) -> dict[str, Any]:
    """Return everything that must stay the same for bit-identical resuming."""
    on_cpu = machine.device.type == "cpu"
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processes": distributed.size,
        "device": machine.device.type,
        "processor": hardware.processor() if on_cpu else accelerator_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "precision": machine.precision,
        "compile": "on" if machine.compile else "off",
        "kernels": _kernels(machine.device.type),
        "data": dataset.fingerprint,
    }


def _kernels(device: str) -> str:
    """Return the kernel mode; ``auto`` gives other bits without a compiler than with one."""
    if kernels.get_mode() != "auto":
        return kernels.get_mode()
    return f"auto, {'with' if kernels.available(device) else 'without'} a compiler"


def check_resumable(trainer: "Trainer", found: checkpoint.Checkpoint) -> None:
    """Refuse a checkpoint of another run, and an environment that would give other bits.

    Raises:
        UsageError: It names the first difference and the flag that ignores it.
    """
    for name, value in trainer.configuration.items():
        if found.run and found.run.get(name) != value:
            raise UsageError(
                f"{found.path} is a checkpoint of another run: its {name} is"
                f" {brief_difference(found.run.get(name), value)}; remove it, or give this run"
                " its own directory with --name"
            )
    if trainer.options.allow_mismatch:
        return
    now = describe(trainer.machine, trainer.distributed, trainer.dataset)
    for name, value in now.items():
        then = found.environment.get(name, value)  # older versions did not write all of them
        if then == value or (name == "data" and then == trainer.dataset.old_fingerprint):
            continue
        if name == "processes" and isinstance(value, int):
            _check_processes(trainer, found, then)
            continue
        raise UsageError(
            f"{trainer.directory} was trained with {name} {then}, but here it is {value}: the"
            " result would differ; --allow-mismatch resumes anyway"
        )


def _check_processes(trainer: "Trainer", found: checkpoint.Checkpoint, then: int) -> None:
    """Let another number of processes resume only between two epochs."""
    batch, images = trainer.recipe.batch, len(trainer.dataset.train)
    size = trainer.distributed.size
    number = f"{then} process{'es' * (then != 1)}"
    trained = f"{trainer.directory} was trained by {number}, but here there are {size}"
    if batch % size:
        raise UsageError(f"{trained}, and a batch of {batch} cannot be divided among them")
    if is_epoch_end(found.step, batch, images):
        trainer.log.note(f"{trained}: resuming, but not bit for bit as with {number}")
        return
    intact, _ = checkpoint.survey(trainer.checkpoints)
    ends = [c.step for c in intact if is_epoch_end(c.step, batch, images)]
    other = f"--resume-from {ends[0]} starts at the end of one, " if ends else ""
    raise UsageError(
        f"{trained}: batch normalization and dropout depend on that, and step {found.step} is in"
        f" the middle of an epoch; {other}--allow-mismatch resumes anyway"
    )


def is_epoch_end(step: int, batch: int, images: int) -> bool:
    """Return True if the last of `step` steps ended an epoch.

    Example:
        >>> [step for step in range(1, 7) if is_epoch_end(step, batch=480, images=1437)]
        [3, 6]
    """
    return step * batch % images < batch


def brief_difference(there: object, here: object) -> str:
    """Describe two differing values; of two objects only the first entry that differs.

    Example:
        >>> brief_difference({"rate": 0.1, "batch": 8}, {"rate": 0.3, "batch": 8})
        'rate 0.1, not 0.3'
    """
    if isinstance(there, dict) and isinstance(here, dict):
        for name in there:
            if there[name] != here.get(name):
                return f"{name} {brief_difference(there[name], here.get(name))}"
    return f"{there}, not {here}"
