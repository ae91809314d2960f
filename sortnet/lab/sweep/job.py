"""The job of a process that trains one run of a sweep."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sortnet import files

HELD = 75
"""The exit code of a process whose run is being trained by another process."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    Attributes:
        id: The run's directory, below `out`.
        run: The run as JSON.
        out: The directory of all runs.
        root: The directory of all datasets.
        device: Device of the network, one of `sortnet.lab.training.DEVICES`.
        transfer: The dataset on which the trained features are evaluated, if any.
        environment: Environment variables of the process.
        gpus: The number of GPUs; several are used by one process each, under torchrun.
        guarded: Save and stop when standard input ends: then the parent process has ended.
    """

    id: str
    run: Mapping[str, Any]
    out: str
    root: str
    device: str = "auto"
    transfer: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 1
    guarded: bool = False

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return Path(self.out) / self.id

    @property
    def is_held(self) -> bool:
        """Whether a process is training the run."""
        return files.holder(self.directory / "lock") is not None

    @property
    def command(self) -> list[str]:
        """The command that trains the run."""
        several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.gpus}"]
        launcher = several if self.gpus > 1 else []
        return [
            sys.executable,
            *launcher,
            "-m",
            "sortnet.lab.sweep.process",
            json.dumps(asdict(self)),
        ]

    @property
    def variables(self) -> dict[str, str]:
        """The environment of the command, with one thread: no result depends on the cores."""
        return {**os.environ, **self.environment, "OMP_NUM_THREADS": "1"}


def reason(log: str, code: int | None = None) -> str:
    """Return why a process failed, in one line: its own last message, or else the scheduler's."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    ours = [line.removeprefix("sortnet: ") for line in lines if line.startswith("sortnet: ")]
    others = ("srun: ", "slurmstepd", "submitit ")
    rest = [line for line in lines if not line.startswith(others)] or lines
    if ours or rest:
        return (ours or rest)[-1]
    return "it left no message" if code is None else f"its process ended with {code}"
