"""Reproduce an experiment: find the runs it needs, and train them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from sortnet.errors import Damaged, UsageError
from sortnet.lab.experiments import results
from sortnet.lab.experiments.definitions import Experiment, experiment
from sortnet.lab.experiments.sizes import Size, size
from sortnet.lab.runs import Run, record
from sortnet.lab.sweep.grid import Engine, Failure, SweepProgress, train_all
from sortnet.lab.training import resolve_device


@dataclass(frozen=True)
class ReproductionPlan:
    """What to train, and where.

    Attributes:
        wanted: The experiment.
        chosen: Its size.
        seeds: Number of seeds.
        out: Directory of all runs.
        root: Directory of all datasets.
        runs: The runs: first every cell with seed 0, then with seed 1, and so on.
        kept: Directory with one JSON file per finished run.
        device: Device of the networks, one of `sortnet.lab.training.DEVICES`.
    """

    wanted: Experiment
    chosen: Size
    seeds: int
    out: Path
    root: Path
    runs: tuple[Run, ...]
    kept: Path | None = None
    device: str = "auto"

    @property
    def places(self) -> tuple[Path, ...]:
        """The directories where finished runs are found."""
        return (self.out,) if self.kept is None else (self.out, self.kept)

    @property
    def transfer(self) -> str | None:
        """The dataset on which features are evaluated; the embedded digits at smoke size."""
        smoke = self.chosen.name == "smoke"
        return "digits" if smoke and self.wanted.transfer else self.wanted.transfer

    def is_kept(self, run: Run) -> bool:
        """Return True if a run is not in the directory of all runs, but its result was kept."""
        if self.kept is None or (self.out / run.id / "result.json").exists():
            return False
        found = record.find(run, self.kept)
        if found is None or self.transfer is None:
            return found is not None
        return found.ended == "diverged" or found.transfer is not None


def plan(
    name: str,
    size_: str,
    seeds: int | None = None,
    root: str | Path = "data",
    out: str | Path = "runs",
    kept: Path | None = None,
    only: str = "*",
    precision: str = "float32",
    device: str = "auto",
) -> ReproductionPlan:
    """Return the plan of an experiment.

    Arguments:
        name: A name in `EXPERIMENTS`.
        size_: A name in `SIZES`.
        seeds: Number of seeds; by default that of the size.
        root: Directory of all datasets.
        out: Directory of all runs.
        kept: Directory with one JSON file per finished run; runs with a file are not trained
            again.
        only: A pattern over the names of runs, such as ``cifar10/lenet*``.
        precision: Dtype of convolutions; ``auto`` selects the fastest on this machine.
        device: Device of the networks, one of `sortnet.lab.training.DEVICES`.
    """
    resolve_device(device)
    wanted, chosen = experiment(name), size(size_, precision, device)
    count = chosen.seeds if seeds is None else seeds
    if count < 1:
        raise UsageError(f"seeds is {count}, but must be 1 or more")
    fitted = (chosen.fit(run, seed) for seed in range(count) for run in wanted.runs)
    every = tuple({run.id: run for run in fitted if fnmatch(run.id, only)}.values())
    if not every:
        example = chosen.fit(wanted.runs[0]).id
        raise UsageError(f"no run of {name} matches {only!r}; an example of a run is {example}")
    return ReproductionPlan(wanted, chosen, count, Path(out), Path(root), every, kept, device)


def reproduce(
    todo: ReproductionPlan,
    engine: Engine,
    show: Callable[[SweepProgress], None] = lambda progress: None,
) -> results.ExperimentResults:
    """Train the runs of a plan that are missing, and return the results of its experiment.

    Arguments:
        todo: The plan.
        engine: Where to train; see `sortnet.lab.sweep`.
        show: Called with the progress.

    Raises:
        FileNotFoundError: A dataset is missing; nothing was started.
        Stopped: A signal was received.
        OSError: Some runs could not be trained; the others were.
    """

    def keep() -> results.ExperimentResults:
        stored = results.collect(todo.wanted.name, todo.chosen, todo.seeds, *todo.places)
        if todo.kept is not None:
            results.keep(stored, todo.kept)
        return stored

    ended = 0

    def update(progress: SweepProgress) -> None:
        nonlocal ended
        if todo.kept is not None and progress.ended > ended:  # a sweep may be killed after days
            ended = progress.ended
            with suppress(UsageError, Damaged):  # of a run that is going to be trained again
                keep()
        show(progress)

    try:
        found = train_all(
            todo.runs,
            todo.out,
            todo.root,
            engine=engine,
            device=todo.device,
            transfer=todo.transfer,
            environment=todo.chosen.environment,
            done={run.id for run in todo.runs if todo.is_kept(run)},
            show=update,
        )
    finally:
        stored = keep()
    failed = [one for one in found.values() if isinstance(one, Failure)]
    if failed:
        raise OSError(
            f"{len(failed)} of {len(todo.runs)} runs could not be trained,"
            f" first {failed[0].run.id}: {failed[0].reason}"
        )
    return stored
