"""Shared by commands that train several runs: the flags for where to train, and the progress."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sortnet import limits
from sortnet.errors import UsageError

if TYPE_CHECKING:
    from sortnet.lab.runs import Run
    from sortnet.lab.sweep.grid import Engine, SweepProgress


@dataclass(frozen=True)
class Grid:
    """Where runs are trained, and how many at a time."""

    on: Literal["local", "slurm"] = "local"
    """This machine, or a SLURM cluster: one array job with one element for each run."""
    processes: int | None = None
    """Number of runs trained at a time; by default one per core on this machine, and as many as
    SLURM can place on a cluster."""
    partition: str | None = None
    """SLURM's partition."""
    gpus: int | None = None
    """GPUs per run on SLURM; with several, the run is trained under torchrun."""
    cpus: int | None = None
    """CPUs per run on SLURM."""
    memory: str | None = None
    """Memory per run on SLURM, such as 64GB."""
    time: str | None = None
    """SLURM's time limit, 4:00:00 by default; a longer run is saved, requeued and resumed."""
    account: str | None = None
    """SLURM's account."""
    setup: tuple[str, ...] = ()
    """Shell commands that SLURM runs first, such as "module load cuda"."""
    cancel: bool = False
    """Cancel the SLURM jobs of these runs; their checkpoints stay."""

    def __post_init__(self) -> None:
        limits.check_given(processes=self.processes, gpus=self.gpus, cpus=self.cpus)
        shared = ("on", "processes")
        given = [f.name for f in fields(self) if f.name not in shared and getattr(self, f.name)]
        if self.on == "local" and given:
            raise UsageError(f"--{given[0]} is for --on slurm")

    def engine(self, out: Path) -> "Engine":
        """Return the engine that trains the runs.

        Arguments:
            out: The directory of all runs.
        """
        if self.on == "local":
            from sortnet.lab.sweep.local import Local

            return Local(self.processes)
        from sortnet.lab.sweep.slurm import Options, Slurm

        names = {f.name for f in fields(Options)}
        given = {name: getattr(self, name) for name in names if getattr(self, name)}
        return Slurm(out, Options(**given))

    def canceled(self, runs: "Sequence[Run]", out: Path) -> bool:
        """Cancel the jobs of some runs if `cancel` is set; return whether it is."""
        if not self.cancel:
            return False
        from sortnet.lab.sweep.slurm import Slurm

        found = Slurm(out).cancel(run.id for run in runs)
        print(f"canceled {len(found)} of {len(runs)} runs; without --cancel they are resumed")
        return True


Trained = Annotated[Grid, tyro.conf.arg(name="")]


@contextmanager
def shown() -> "Iterator[Callable[[SweepProgress], None]]":
    """Show the progress of a sweep on standard error."""
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TextColumn

    console = Console(file=sys.stderr)
    with Bar(TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("")

        def show(state: "SweepProgress") -> None:
            if state.news:
                console.print(state.news, highlight=False, markup=False)
            bar.update(task, description=str(state))

        yield show
