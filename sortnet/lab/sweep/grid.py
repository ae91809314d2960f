"""Train a list of runs with an engine, and report the progress.

A run that has ended is not trained again, one that was interrupted is resumed, and one that
diverges is a result. Several sweeps of one directory share the work.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from sortnet.errors import Damaged, UsageError
from sortnet.lab import data as datasets
from sortnet.lab import runs as directories
from sortnet.lab.measure import work
from sortnet.lab.runs import Result, Run
from sortnet.lab.runs.record import TRANSFER
from sortnet.lab.sweep.job import Job
from sortnet.lab.training import Interrupted
from sortnet.lab.training.failures import signals
from sortnet.networks import NETWORKS, create_model

TAIL = 4096
"""Bytes at the end of a file that contain the last row of metrics."""


class Stopped(Interrupted):
    """A signal ended the sweep; all progress is saved."""

    def __init__(self, number: int, message: str) -> None:
        Exception.__init__(self, message)
        self.number, self.step = number, 0


@dataclass(frozen=True)
class RunState:
    """The state of a run; `elsewhere` means that another sweep trains it."""

    kind: Literal["queued", "running", "elsewhere", "ended", "failed"]
    reason: str = ""


@dataclass(frozen=True)
class Failure:
    """Why a run could not be trained."""

    run: Run
    reason: str


class Engine(Protocol):
    """Where and when the processes of a sweep run.

    Attributes:
        pause: Seconds between two polls.
        parting: Message after a signal, with the number of runs ended and of all runs.
    """

    pause: float
    parting: str

    def start(self, jobs: Sequence[Job], ended: Callable[[str], bool]) -> str | None:
        """Start jobs; return a message for the user, if any.

        Arguments:
            jobs: The jobs.
            ended: Returns whether the run with an id has ended, according to its directory.
        """

    def poll(self) -> dict[str, RunState]:
        """Return the state of every job."""

    def leave(self) -> None:
        """Prepare to end before the jobs do."""

    @property
    def is_busy(self) -> bool:
        """Whether to wait until `leave` has taken effect."""

    def close(self) -> None:
        """Release what the engine holds."""


@dataclass(frozen=True)
class SweepProgress:
    """The progress of a sweep.

    Attributes:
        share: Fraction of all work that is done, from 0 to 1.
        left: Estimated seconds left; None before there is anything to estimate it from.
        ended: Number of runs that have ended.
        total: Number of all runs.
        running: The runs in training, each with the fraction that is done.
        queued: Number of runs that wait.
        elsewhere: The runs that another sweep trains.
        news: What has just happened, if anything.
    """

    share: float
    left: float | None
    ended: int
    total: int
    running: tuple[tuple[str, float], ...] = ()
    queued: int = 0
    elsewhere: tuple[str, ...] = ()
    news: str | None = None

    def __str__(self) -> str:
        left = "" if self.left is None else f", {duration(self.left)} left"
        others = f", {len(self.elsewhere)} trained elsewhere" if self.elsewhere else ""
        state = f", {len(self.running)} running, {self.queued} queued"
        return f"{self.ended} of {self.total} runs, {100 * self.share:.0f} %{left}{state}{others}"


def duration(seconds: float) -> str:
    """Format a time for people.

    Example:
        >>> duration(50), duration(4000)
        ('50 s', '1 h 7 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


@cache
def _multiply_adds(network: str, options: tuple[tuple[str, Any], ...]) -> int:
    side = NETWORKS[network].size
    built = create_model(network, **dict(options))
    return work(built, torch.empty(1, 3, side, side)).total


def effort(run: Run) -> float:
    """Estimate the work of a run, in multiply-adds."""
    recipe = run.recipe
    options = {name: value for name, value in run.options.items() if name != "gate"}
    one = _multiply_adds(run.network, tuple(sorted(options.items())))
    return float(one) * recipe.batch * recipe.steps


def has_ended(directory: Path, transfer: str | None = None) -> bool:
    """Return True if nothing is left to do for a run; a damaged result has to be redone."""
    try:
        found = directories.result(directory)
    except (UsageError, Damaged):
        return False
    if found is None or transfer is None or found.ended == "diverged":
        return found is not None
    return (directory / TRANSFER).is_file()


def last_step(directory: Path) -> int:
    """Return the step of the last row of a run's metrics; 0 if there is none."""
    try:
        with (directory / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            return int(json.loads(file.read().split(b"\n")[-2])["step"])
    except (OSError, ValueError, LookupError, TypeError):
        return 0


@dataclass
class Board:
    """The states of all runs, and their display."""

    runs: Mapping[str, Run]
    out: Path
    show: Callable[[SweepProgress], None]
    states: dict[str, RunState]
    shares: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.efforts = {key: effort(run) for key, run in self.runs.items()}
        self.shares = {key: self._share(key) for key in self.runs}
        self.started, self.before = time.monotonic(), self.done

    def _share(self, key: str) -> float:
        if self.states[key].kind in ("ended", "failed"):
            return 1.0
        return min(1.0, last_step(self.out / key) / self.runs[key].recipe.steps)

    def of(self, *kinds: str) -> list[str]:
        """Return the runs in some states."""
        return [key for key, state in self.states.items() if state.kind in kinds]

    @property
    def done(self) -> float:
        """The fraction of all work that is done."""
        total = sum(self.efforts.values())
        return sum(self.efforts[key] * share for key, share in self.shares.items()) / total

    def update(self, states: Mapping[str, RunState]) -> None:
        """Update the states from an engine's report, and show the progress."""
        news = [key for key, state in states.items() if state != self.states[key]]
        self.states |= states
        for key in {*news, *self.of("running", "elsewhere")}:
            # a run that resumes repeats steps: the displayed progress never decreases
            self.shares[key] = max(self.shares[key], self._share(key))
        told = [text for key in news if (text := self._news(key))]
        for text in told:
            self.tell(text)
        if not told:
            self.tell()

    def _news(self, key: str) -> str | None:
        state = self.states[key]
        if state.kind == "elsewhere":
            return f"{key} is trained elsewhere"
        if state.kind == "failed":
            return f"{key}: {state.reason}"
        found = directories.result(self.out / key) if state.kind == "ended" else None
        if found is None:
            return None
        if found.ended == "diverged":
            return f"{key} diverged at step {found.steps}"
        return f"{key} error {found.error:.2f} %, {duration(found.seconds)}"

    def tell(self, news: str | None = None) -> None:
        """Show the progress."""
        done, spent = self.done, time.monotonic() - self.started
        gained = done - self.before
        left = spent * (1 - done) / gained if gained > 0.002 else None
        running = tuple((key, self.shares[key]) for key in self.of("running"))
        ended, queued = len(self.of("ended")), len(self.of("queued"))
        elsewhere = tuple(self.of("elsewhere"))
        self.show(
            SweepProgress(done, left, ended, len(self.runs), running, queued, elsewhere, news)
        )


def train_all(
    runs: Sequence[Run],
    out: str | Path = "runs",
    root: str | Path = "data",
    *,
    engine: Engine,
    device: str = "auto",
    transfer: str | None = None,
    environment: Mapping[str, str] | None = None,
    done: Collection[str] = (),
    show: Callable[[SweepProgress], None] = lambda progress: None,
) -> dict[str, Result | Failure]:
    """Train runs, several at a time, and return each one's result or failure by its id.

    Arguments:
        runs: The runs.
        out: Directory of all runs.
        root: Directory of all datasets.
        engine: Where to train: a new `Local` or `Slurm`.
        device: Device of the networks, one of `sortnet.lab.training.DEVICES`.
        transfer: A dataset on which the trained features are evaluated, as in section 4.3.
        environment: Environment variables of the training processes.
        done: The ids of runs that need no training; only `show` counts them.
        show: Called with the progress, about twice a second.

    Raises:
        FileNotFoundError: A dataset is missing; nothing was started.
        Stopped: A signal was received.
    """
    by_id, out = {run.id: run for run in runs}, Path(out)

    def ended(key: str) -> bool:
        return key in done or has_ended(out / key, transfer)

    states = {key: RunState("ended" if ended(key) else "queued") for key in by_id}
    missing = [run for key, run in by_id.items() if states[key].kind != "ended"]
    for name in {run.data for run in missing} | ({transfer} - {None} if missing else set()):
        datasets.find(str(name), root)
    board = Board(by_id, out, show, states)
    jobs = [
        Job(run.id, run.as_json(), str(out), str(root), device, transfer, environment or {})
        for run in missing
    ]
    with closing(engine):
        _follow(board, engine, jobs, ended)
    return {key: found for key in by_id if (found := _found(board, key)) is not None}


def _follow(
    board: Board, engine: Engine, jobs: Sequence[Job], ended: Callable[[str], bool]
) -> None:
    """Run an engine until all jobs have ended or a signal is received."""
    asked: list[int] = []
    with signals(asked.append):
        board.tell(engine.start(jobs, ended) if jobs else None)
        while not asked and board.of("queued", "running", "elsewhere"):
            board.update(engine.poll())
            time.sleep(engine.pause if board.of("queued", "running", "elsewhere") else 0)
        if asked:
            engine.leave()
        while asked and engine.is_busy:
            board.update(engine.poll())
            time.sleep(engine.pause)
        if asked and board.of("queued", "running", "elsewhere"):
            message = engine.parting.format(len(board.of("ended")), len(board.runs))
            raise Stopped(asked[0], message)


def _found(board: Board, key: str) -> Result | Failure | None:
    state = board.states[key]
    if state.kind == "failed":
        return Failure(board.runs[key], state.reason)
    return directories.result(board.out / key)
