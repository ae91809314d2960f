"""Training all runs of an experiment, several at a time, each in a process of its own.

A process trains with one thread, so that its result does not depend on how many there are. What
has ended is not trained again, what was interrupted goes on, and a run that diverges is a result.
Several sweeps of one directory share the work: a run that another one trains is waited for.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import IO, Any

import torch

from sortnet import files
from sortnet.errors import Damaged, UsageError
from sortnet.lab import runs
from sortnet.lab.experiments import results
from sortnet.lab.experiments.definitions import Experiment, experiment
from sortnet.lab.experiments.sizes import Size, size
from sortnet.lab.experiments.worker import HELD
from sortnet.lab.measure import work
from sortnet.lab.runs import Run, record
from sortnet.lab.training import Interrupted, resolve_device
from sortnet.lab.training.failures import signals
from sortnet.lab.training.hardware import cores
from sortnet.networks import NETWORKS, create_model

PAUSE = 0.5
"""Seconds between two looks at the processes."""


class Stopped(Interrupted):
    """A signal ended the sweep; what every run had learnt has been saved."""

    def __init__(self, number: int, ended: int, total: int) -> None:
        Exception.__init__(
            self,
            f"stopped with {ended} of {total} runs ended; the same command goes on from there",
        )
        self.number, self.step = number, ended


@dataclass(frozen=True)
class Progress:
    """How far a sweep is.

    Attributes:
        share: The part of all work that is done, from 0 to 1.
        left: Seconds that are left; none before anything can be said.
        ended: How many runs have ended.
        total: How many there are.
        running: The runs in training, each with the part of it that is done.
        elsewhere: The runs that another sweep trains.
        news: What happened just now, if anything did.
    """

    share: float
    left: float | None
    ended: int
    total: int
    running: tuple[tuple[str, float], ...] = ()
    elsewhere: tuple[str, ...] = ()
    news: str | None = None

    def __str__(self) -> str:
        left = "" if self.left is None else f", {duration(self.left)} left"
        others = f", {len(self.elsewhere)} trained elsewhere" if self.elsewhere else ""
        return f"{self.ended} of {self.total} runs, {100 * self.share:.0f} %{left}{others}"


def duration(seconds: float) -> str:
    """A time in words.

    Example:
        >>> duration(50), duration(4000)
        ('50 s', '1 h 7 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


@dataclass(frozen=True)
class Plan:
    """What is to be trained, and where.

    Attributes:
        wanted: The experiment.
        chosen: Its size.
        seeds: How many runs of each kind the experiment has.
        out: The directory of all runs.
        root: The directory of all data.
        runs: All runs, or those of a shard: first every cell with seed 0, then with seed 1.
        kept: The directory of what is kept of runs that have ended.
        device: Where networks run, one of `sortnet.lab.training.DEVICES`.
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
        """Where runs that have ended are found."""
        return (self.out,) if self.kept is None else (self.out, self.kept)

    @property
    def transfer(self) -> str | None:
        """The data to which features are carried over; at smoke size the embedded ones."""
        smoke = self.chosen.name == "smoke"
        return "digits" if smoke and self.wanted.transfer else self.wanted.transfer

    def ended(self, run: Run) -> bool:
        """Whether nothing is left to do for a run; a damaged result is made again."""
        try:
            runs.result(self.out / run.id)
        except (UsageError, Damaged):
            return False
        found = record.find(run, *self.places)
        if found is None or self.transfer is None:
            return found is not None
        return found.ended == "diverged" or found.transfer is not None


def plan(
    name: str,
    size_: str,
    seeds: int | None = None,
    root: str | Path = "data",
    out: str | Path = "runs",
    shard: str | None = None,
    kept: Path | None = None,
    only: str = "*",
    precision: str = "float32",
    device: str = "auto",
) -> Plan:
    """What of an experiment is to be trained.

    Arguments:
        name: Out of `EXPERIMENTS`.
        size_: Out of `SIZES`.
        seeds: How many seeds; as many as the size has without it.
        root: The directory of all data.
        out: The directory of all runs.
        shard: ``3/8`` for the third of eight parts.
        kept: The directory in which each run that has ended is kept as a JSON file; what is there
            already is not trained again.
        only: A pattern of the runs' names, if not all are wanted: ``cifar10/lenet*``.
        precision: What convolutions compute in; ``auto`` for the fastest here.
        device: Where networks run, one of `sortnet.lab.training.DEVICES`.
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
        raise UsageError(f"no run of {name} is like {only!r}; they are like {example}")
    part = every[_part(shard)]
    return Plan(wanted, chosen, count, Path(out), Path(root), part, kept, device)


def _part(shard: str | None) -> slice:
    if shard is None:
        return slice(None)
    index, _, count = shard.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise UsageError(f"shard {shard!r} must be like 3/8, the third of eight parts")
    return slice(int(index) - 1, None, int(count))


def commands(todo: Plan) -> str:
    """One command for each run of a plan, for whatever distributes commands over machines."""
    given = ["sortnet", "reproduce", todo.wanted.name, "--size", todo.chosen.name]
    given += ["--precision", todo.chosen.precision, "--seeds", str(todo.seeds)]
    given += ["--data", str(todo.root), "--out", str(todo.out)]
    given += [] if todo.kept is None else ["--results", str(todo.kept)]
    given += [] if todo.device == "auto" else ["--device", todo.device]
    return "\n".join(shlex.join([*given, "--only", run.id]) for run in todo.runs)


@cache
def _multiply_adds(network: str, options: tuple[tuple[str, Any], ...]) -> int:
    side = NETWORKS[network].size
    built = create_model(network, **dict(options))
    return work(built, torch.empty(1, 3, side, side)).total


def effort(run: Run) -> float:
    """About how much work a run is, in multiply-adds."""
    recipe = run.recipe
    options = {name: value for name, value in run.options.items() if name != "gate"}
    one = _multiply_adds(run.network, tuple(sorted(options.items())))
    return float(one) * recipe.batch * recipe.steps


@dataclass
class Board:
    """What the processes' threads know and the sweep shows."""

    efforts: dict[str, float]
    running: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    elsewhere: dict[str, Run] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    processes: set["subprocess.Popen[str]"] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: bool = False

    @property
    def done(self) -> float:
        """The part of all work that is done."""
        part = sum(self.efforts[key] for key in self.ended | self.failed.keys())
        part += sum(self.efforts[key] * share for key, share in self.running.items())
        return part / sum(self.efforts.values())

    def stop(self) -> None:
        """Ask every process to save and end, once: a second signal would not let it save."""
        with self.lock:
            if self.stopping:
                return
            self.stopping = True
            for process in self.processes:
                process.send_signal(signal.SIGTERM)


def reproduce(
    todo: Plan,
    processes: int | None = None,
    show: Callable[[Progress], None] = lambda progress: None,
) -> results.ExperimentResults:
    """Train what is not yet trained of a plan and give its experiment's results.

    Arguments:
        todo: What is to be trained.
        processes: How many runs are trained at a time; one for each core, or one on a GPU.
        show: Is told how far it is, about twice a second.

    Raises:
        Stopped: A signal came.
        OSError: Some runs could not be trained; the others were.
    """
    if processes is None:
        processes = cores() if resolve_device(todo.device).type == "cpu" else 1
    if processes < 1:
        raise UsageError(f"processes is {processes}, but must be 1 or more")
    board = Board({run.id: effort(run) for run in todo.runs})
    board.ended = {run.id for run in todo.runs if todo.ended(run)}
    try:
        _train(todo, board, processes, show)
    finally:
        stored = results.collect(todo.wanted.name, todo.chosen, todo.seeds, *todo.places)
        if todo.kept is not None:
            results.keep(stored, todo.kept)
    if board.failed:
        key, reason = next(iter(board.failed.items()))
        raise OSError(
            f"{len(board.failed)} of {len(todo.runs)} runs could not be trained,"
            f" first {key}: {reason}"
        )
    return stored


def _train(todo: Plan, board: Board, processes: int, show: Callable[[Progress], None]) -> None:
    started, before, total = time.monotonic(), board.done, len(todo.runs)
    asked: list[int] = []

    def progress(news: str | None = None) -> None:
        with board.lock:
            gained = board.done - before
            spent = time.monotonic() - started
            left = spent * (1 - board.done) / gained if gained > 0.002 else None
            running = tuple(board.running.items())
            others = tuple(board.elsewhere)
            show(Progress(board.done, left, len(board.ended), total, running, others, news))

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(processes))
        stack.callback(board.stop)  # an error here must not leave processes behind
        stack.enter_context(signals(asked.append))
        waiting: set[Future[str]] = {
            pool.submit(_one, todo, run, board) for run in todo.runs if run.id not in board.ended
        }
        progress()
        while waiting or (board.elsewhere and not board.stopping):
            finished = _finished(waiting)
            waiting -= finished
            waiting |= {pool.submit(_one, todo, run, board) for run in _freed(todo, board)}
            for future in finished:
                progress(future.result())
            if not finished:
                progress()
            if asked and not board.stopping:
                board.stop()
        if asked:
            raise Stopped(asked[0], len(board.ended), total)


def _finished(waiting: set["Future[str]"]) -> set["Future[str]"]:
    """Those that have ended after a moment."""
    if not waiting:
        time.sleep(PAUSE)
    return wait(waiting, PAUSE, FIRST_COMPLETED).done


def _freed(todo: Plan, board: Board) -> list[Run]:
    """Take back the runs that no other sweep trains any longer."""
    with board.lock:
        found = [run for run in board.elsewhere.values() if not _is_held(todo, run)]
        for run in found:
            del board.elsewhere[run.id]
    return found


def _is_held(todo: Plan, run: Run) -> bool:
    return files.holder(todo.out / run.id / "lock") is not None


def _one(todo: Plan, run: Run, board: Board) -> str:
    """Train one run, unless another sweep does or did, and say what came of it."""
    if _is_held(todo, run):
        return _left_to_others(run, board)
    if todo.ended(run):
        with board.lock:
            board.ended.add(run.id)
        return f"{_outcome(todo, run)}, trained elsewhere"
    return _trained(todo, run, board)


def _left_to_others(run: Run, board: Board) -> str:
    with board.lock:
        board.elsewhere[run.id] = run
    return f"{run.id} is trained elsewhere"


def _trained(todo: Plan, run: Run, board: Board) -> str:
    """Train one run in a process and say what came of it."""
    with tempfile.TemporaryFile("w+") as errors:
        process = _start(todo, run, board, errors)
        if process is None:
            return f"{run.id} was not started"
        with process:
            for step in _steps(process):
                board.running[run.id] = step / run.recipe.steps
        errors.seek(0)
        said = errors.read().strip().splitlines()
    code = process.returncode
    with board.lock:  # in one go, or the share that is shown would fall for a moment
        board.processes.discard(process)
        board.running.pop(run.id)
        if code == 0:
            board.ended.add(run.id)
        elif code != HELD and not board.stopping:
            board.failed[run.id] = said[-1] if said else f"its process ended with {code}"
    if code == 0:
        return _outcome(todo, run)
    if code == HELD:
        return _left_to_others(run, board)
    return f"{run.id}: {board.failed.get(run.id, 'stopped')}"


def _start(todo: Plan, run: Run, board: Board, errors: IO[str]) -> "subprocess.Popen[str] | None":
    job = {"run": run.as_json(), "out": str(todo.out), "root": str(todo.root)}
    environment = {**os.environ, **todo.chosen.environment, "OMP_NUM_THREADS": "1"}
    with board.lock:
        if board.stopping:
            return None
        process = subprocess.Popen(
            [sys.executable, "-m", "sortnet.lab.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C is ours to pass on, once
        )
        board.processes.add(process)
        board.running[run.id] = 0.0
    assert process.stdin is not None
    process.stdin.write(
        json.dumps({**job, "transfer": todo.transfer, "device": todo.device}) + "\n"
    )
    process.stdin.flush()  # and left open: its end would stop the run
    return process


def _steps(process: "subprocess.Popen[str]") -> Iterator[int]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)["step"]


def _outcome(todo: Plan, run: Run) -> str:
    found = record.find(run, *todo.places)
    assert found is not None
    if found.ended == "diverged":
        return f"{run.id} diverged at step {found.steps}"
    return f"{run.id} error {found.test['error']:.2f} %, {duration(found.seconds or 0)}"
