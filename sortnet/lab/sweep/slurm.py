"""Train the runs of a sweep on a SLURM cluster, by submitit.

One array job has one element for each run. The directory `.slurm` beside the runs contains
submitit's files, the elements' logs, and jobs.json, which maps runs to elements so that another
process can attach to them.
"""

import io
import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sortnet import files
from sortnet.errors import UsageError
from sortnet.lab.sweep.grid import RunState
from sortnet.lab.sweep.job import Job, reason

QUEUE_PAUSE = 5.0
"""Seconds between two queries of the queue, which all users of a cluster share."""
GRACE = 10.0
"""Seconds after an element leaves the queue until its result must be visible here."""
PATIENCE = 300.0
"""Seconds in which canceled elements must leave the queue."""
FOREVER = 10**6
"""How often an element may reach its time limit."""


@dataclass(frozen=True)
class Options:
    """What is passed to SLURM, in the words of sbatch.

    Attributes:
        partition: Where to run.
        gpus: GPUs of each run; several are used under torchrun.
        cpus: CPUs of each run.
        memory: Memory of each run, such as ``64GB``.
        time: The time limit of each element; a run that takes longer is saved, requeued and
            resumed.
        account: Account to charge.
        setup: Shell commands that run first, such as ``module load cuda``.
        processes: Number of runs at a time; by default as many as SLURM can place.
    """

    partition: str | None = None
    gpus: int | None = None
    cpus: int | None = None
    memory: str | None = None
    time: str = "4:00:00"
    account: str | None = None
    setup: tuple[str, ...] = ()
    processes: int | None = None


@dataclass
class Slurm:
    """Trains every run in an element of an array job.

    Arguments:
        out: Directory of all runs, which has the same path on every node.
        options: What is passed to SLURM.
    """

    out: Path
    options: Options = field(default_factory=Options)
    pause: float = 1.0
    parting: str = (
        "left with {} of {} runs ended, SLURM trains the others; run the same command to follow"
        " them, or with --cancel to cancel them"
    )
    is_busy: bool = False

    def __post_init__(self) -> None:
        if find_spec("submitit") is None:
            raise UsageError("--on slurm needs submitit: pip install 'sortnet[slurm]'")
        if shutil.which("sbatch") is None:
            raise UsageError(
                "there is no SLURM here: sbatch is not on the PATH; use a machine that submits to"
                " a cluster, or install it (Debian: apt install slurm-wlm)"
            )
        self.folder = self.out.absolute() / ".slurm"
        self.name = f"sortnet-{files.digest(str(self.folder).encode())[:8]}"
        self.elements: dict[str, str] = {}
        self.gone: dict[str, float] = {}

    def start(self, jobs: Sequence[Job], ended: Callable[[str], bool]) -> str | None:
        """Attach to the elements that are in the queue, and submit the other jobs."""
        self.jobs, self.ended = jobs, ended
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # submitit unpickles from it
        with files.locked(self.folder / "lock", "submitting", wait=True):
            stored = self._stored()
            self.queue, self.asked = self._ask(), -math.inf
            active = {key: element for key, element in stored.items() if element in self.queue}
            self.elements = {job.id: active[job.id] for job in jobs if job.id in active}
            missing = [job for job in jobs if job.id not in active]
            attached = _said("attached to", self.elements)
            if missing:
                submitted = self._submit(missing)
                self.elements |= submitted
                files.write_json(self.folder / "jobs.json", active | submitted)
                attached += _said("submitted", submitted)
        return ", ".join(attached)

    def _stored(self) -> dict[str, str]:
        path = self.folder / "jobs.json"
        stored = files.read_json(path) if path.is_file() else {}
        if not isinstance(stored, dict):
            raise UsageError(f"{path} does not map runs to elements; remove it")
        return {key: element for key, element in stored.items() if isinstance(element, str)}

    def _ask(self) -> dict[str, str]:
        """Return the state of every element of this directory that is in the queue."""
        command = ["squeue", "--noheader", "--array", "--me", "--format=%i %T"]
        lines = _run(*command, f"--name={self.name}").splitlines()
        return {line.split()[0]: line.split()[1] for line in lines}

    def _submit(self, jobs: Sequence[Job]) -> dict[str, str]:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError

        from sortnet.lab.sweep.element import Element

        executor = SlurmExecutor(self.folder, max_num_timeout=FOREVER)
        executor.update_parameters(**self._parameters(len(jobs)))
        placed = [replace(job, gpus=self.options.gpus or 1) for job in jobs]
        try:
            with redirect_stderr(io.StringIO()):  # submitit prints what it raises
                elements = executor.map_array(Element(), placed)
        except FailedJobError as error:
            for left in (*self.folder.glob(".submission*"), *self.folder.glob("?" * 32 + ".pkl")):
                left.unlink()
            raise UsageError(f"SLURM refuses the job: {_one_line(str(error))}") from None
        return {job.id: each.job_id for job, each in zip(jobs, elements, strict=True)}

    def _parameters(self, count: int) -> dict[str, Any]:
        options = self.options
        given = {
            "partition": options.partition,
            "gpus_per_node": options.gpus,
            "cpus_per_task": options.cpus,
            "mem": options.memory,
            "account": options.account,
            "setup": list(options.setup) or None,
        }
        return {
            "job_name": self.name,
            "array_parallelism": options.processes or count,
            "additional_parameters": {"time": options.time, "requeue": True},
            **{name: value for name, value in given.items() if value is not None},
        }

    def poll(self) -> dict[str, RunState]:
        """Return the state of every job, by its directory and by the queue."""
        if time.monotonic() - self.asked > QUEUE_PAUSE:
            try:
                self.queue = self._ask()
            except OSError:  # a busy controller: keep the last known states
                return {job.id: RunState("ended") for job in self.jobs if self.ended(job.id)}
            self.asked = time.monotonic()
        return {job.id: self._state(job.id) for job in self.jobs}

    def _state(self, key: str) -> RunState:
        if self.ended(key):
            return RunState("ended")
        element = self.elements[key]
        if element in self.queue:
            self.gone.pop(key, None)
            return RunState("queued" if self.queue[element] == "PENDING" else "running")
        if self.asked - self.gone.setdefault(key, self.asked) < GRACE:
            return RunState("running")
        log = self.folder / f"{element}_0_log.err"
        text = log.read_text(errors="replace") if log.is_file() else ""
        return RunState("failed", f"{reason(text)} ({log})")

    def cancel(self, runs: Iterable[str]) -> list[str]:
        """Cancel the elements of some runs; they save first. Return the runs that had one."""
        stored, queue = self._stored(), self._ask()
        wanted = {key: stored[key] for key in runs if stored.get(key) in queue}
        if wanted:
            _run("scancel", *wanted.values())
        end = time.monotonic() + PATIENCE
        while set(wanted.values()) & self._ask().keys():
            if time.monotonic() > end:
                raise OSError(f"SLURM has not ended the jobs after {PATIENCE:.0f} s; see squeue")
            time.sleep(self.pause)
        return list(wanted)

    def leave(self) -> None:
        """Do nothing: the elements are SLURM's."""

    def close(self) -> None:
        """Do nothing: the elements are SLURM's."""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{command[0]}: {_one_line(done.stderr)}")
    return done.stdout


def _one_line(text: str) -> str:
    """Return SLURM's message without the names of its programs."""
    lines = [re.sub(r"^\w+: (error: |fatal: )?", "", line) for line in text.splitlines()]
    return "; ".join(line for line in lines if line)


def _said(doing: str, elements: dict[str, str]) -> list[str]:
    jobs = sorted({element.partition("_")[0] for element in elements.values()}, key=int)
    many = "run" if len(elements) == 1 else "runs"
    of = "job" if len(jobs) == 1 else "jobs"
    return [f"{doing} {len(elements)} {many} as {of} {', '.join(jobs)}"] if elements else []
