"""Messages before the first step: the header of a run, and whether kernels are compiled."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sortnet import __version__, files
from sortnet.fusion import Fusion, kernels

if TYPE_CHECKING:
    from sortnet.lab.training.loop import Trainer

COMPILING = "compiling kernels for the first step: up to half a minute, once on this machine"


def announce(trainer: "Trainer") -> None:
    """Print the header of a run, and a line if its first step compiles kernels."""
    if trainer.state.step >= trainer.recipe.steps:
        return
    for line in header(trainer):
        trainer.log.note(line)
    if _uses_kernels(trainer) and not _marker(trainer).exists():
        trainer.log.note(COMPILING)


def header(trainer: "Trainer") -> list[str]:
    """Return lines that name data, device, precision, length and directory of a run."""
    dataset, recipe, machine = trainer.dataset, trainer.recipe, trainer.machine
    splits = {"training": dataset.train, "validation": dataset.validation, "test": dataset.test}
    sizes = ", ".join(f"{len(s):,} {name}" for name, s in splits.items() if s is not None)
    epochs = recipe.steps * recipe.batch / len(dataset.train)
    processes = trainer.distributed.size
    threads = torch.get_num_threads()
    count = f"{threads} thread{'s' * (threads != 1)}" if machine.device.type == "cpu" else ""
    many = f"{processes} processes" if processes > 1 else ""
    where = ", ".join(filter(None, (str(machine.device), many, count, machine.precision)))
    return [
        f"{trainer.title} on {Path(dataset.name).name}: {sizes} images of {dataset.size} x"
        f" {dataset.size}, {len(dataset.classes)} classes",
        f"{recipe.steps:,} steps of {recipe.batch} images ({epochs:.3g} epochs) on {where}, in"
        f" {trainer.directory}",
    ]


def remember_kernels(trainer: "Trainer") -> None:
    """Note that the kernels of this run's steps are in the cache now."""
    if _uses_kernels(trainer):
        with suppress(OSError):  # a cache that cannot be written: it is only a line
            _marker(trainer).parent.mkdir(parents=True, exist_ok=True)
            _marker(trainer).touch()


def _uses_kernels(trainer: "Trainer") -> bool:
    if trainer.machine.compile or not kernels.enabled(trainer.machine.device.type):
        return False
    return any(isinstance(m, Fusion) and m.second_order for m in trainer.network.modules())


def _marker(trainer: "Trainer") -> Path:
    """Return the file in the kernels' cache that stands for all that decides a step's kernels."""
    decides = [
        *(torch.__version__, __version__, repr(trainer.network), trainer.dataset.size),
        *(trainer.recipe.batch, trainer.distributed.size, trainer.machine.precision),
        *(str(trainer.machine.device), torch.get_num_threads()),
    ]
    return _cache() / f"trained-{files.digest(files.canonical(decides))[:32]}"


def _cache() -> Path:
    """Return the directory of compiled kernels, see `sortnet.fusion.private`."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SORTNET_CACHE") or Path(home) / "sortnet" / "kernels")
