"""Processes that are killed during training, for tests/test_survival.py."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sortnet.fusion import kernels
from sortnet.lab.recipes import RESNET, Recipe, Section
from sortnet.lab.runs import Run, train
from sortnet.lab.training import TrainerOptions
from sortnet.lab.training.loop import Trainer

RECIPE = Recipe("short", (Section(0.1, 9), Section(0.01, 5)), batch=2, nesterov=RESNET.nesterov)
RUN = Run("resnet20", RECIPE, fusion="sort", validation=40, evaluations=3)
OPTIONS = TrainerOptions(save_every=2, keep=2)


class KillSwitch:
    """Counts calls of wrapped functions, and kills the process at one of them."""

    def __init__(self, moment: int) -> None:
        self.moment, self.calls = moment, 0
        self.names: list[str] = []

    def wrap(self, owner: Any, name: str) -> None:  # noqa: ANN401
        """Wrap a function."""
        original: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self._count(f"before {name}")
            result = original(*args, **kwargs)
            self._count(f"after {name}")
            return result

        setattr(owner, name, counted)

    def _count(self, name: str) -> None:
        if self.calls == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)
        self.calls += 1
        self.names.append(name)


def train_until_killed(out: Path, moment: int = -1) -> list[str]:
    """Train, and be killed at a moment; return the names of all moments."""
    torch.set_num_threads(1)
    kernels.set_mode("eager")  # compile nothing
    switch = KillSwitch(moment)
    switch.wrap(Trainer, "step")
    switch.wrap(os, "fsync")
    switch.wrap(Path, "rename")
    switch.wrap(Path, "replace")
    switch.wrap(shutil, "rmtree")
    train(RUN, out, options=OPTIONS)
    return switch.names


def write_moments(out: Path, where: Path) -> None:
    """Train to the end and write the names of all moments to a file."""
    where.write_text("\n".join(train_until_killed(out)))


if __name__ == "__main__":  # a worker of torchrun: the second one is killed once, at step 5
    torch.set_num_threads(1)
    out, marker = Path(sys.argv[1]), Path(sys.argv[2])
    if os.environ["RANK"] == "1" and not marker.exists():
        marker.touch()
        switch = KillSwitch(10)
        switch.wrap(Trainer, "step")
    train(RUN, out, options=OPTIONS)
