"""Processes that train and are killed on the way, for the tests of survival."""

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


class Fuse:
    """Counts calls of what it is put around, and kills the process at one of them."""

    def __init__(self, moment: int) -> None:
        self.moment, self.calls = moment, 0
        self.names: list[str] = []

    def around(self, owner: Any, name: str) -> None:  # noqa: ANN401
        """Put it around a function."""
        original: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self._burn(f"before {name}")
            result = original(*args, **kwargs)
            self._burn(f"after {name}")
            return result

        setattr(owner, name, counted)

    def _burn(self, name: str) -> None:
        if self.calls == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)
        self.calls += 1
        self.names.append(name)


def live(out: Path, moment: int = -1) -> list[str]:
    """Train, and be killed at a moment; the names of all moments there were."""
    torch.set_num_threads(1)
    kernels.set_mode("eager")  # nothing to be compiled
    fuse = Fuse(moment)
    fuse.around(Trainer, "step")
    fuse.around(os, "fsync")
    fuse.around(Path, "rename")
    fuse.around(Path, "replace")
    fuse.around(shutil, "rmtree")
    train(RUN, out, options=OPTIONS)
    return fuse.names


def write_moments(out: Path, where: Path) -> None:
    """Train to the end and write down the names of all moments."""
    where.write_text("\n".join(live(out)))


if __name__ == "__main__":  # as one of torchrun's workers: the second one dies once, at step 5
    torch.set_num_threads(1)
    out, marker = Path(sys.argv[1]), Path(sys.argv[2])
    if os.environ["RANK"] == "1" and not marker.exists():
        marker.touch()
        fuse = Fuse(10)
        fuse.around(Trainer, "step")
    train(RUN, out, options=OPTIONS)
