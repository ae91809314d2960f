"""Train the runs of a sweep in processes on this machine.

submitit's LocalExecutor is not suitable: it starts all jobs at once, hides the GPUs, kills a job
one second after asking it to stop, and its jobs outlive the process that submitted them.
"""

import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO

from sortnet.errors import UsageError
from sortnet.lab.sweep.grid import RunState
from sortnet.lab.sweep.job import HELD, Job, reason
from sortnet.lab.training import resolve_device
from sortnet.lab.training.hardware import cores


class Local:
    """Trains several runs at a time.

    Arguments:
        processes: Number of runs at a time; by default one per core, or one if there is a GPU.
    """

    pause = 0.5
    parting = "stopped with {} of {} runs ended; run the same command to resume"

    def __init__(self, processes: int | None = None) -> None:
        if processes is not None and processes < 1:
            raise UsageError(f"processes is {processes}, but must be 1 or more")
        self.count = processes
        self.jobs: dict[str, Job] = {}
        self.states: dict[str, RunState] = {}
        self.running: dict[str, tuple[subprocess.Popen[bytes], IO[str]]] = {}
        self.stopping = False

    def start(self, jobs: Sequence[Job], ended: Callable[[str], bool]) -> str | None:
        """Queue jobs; `poll` starts them."""
        self.jobs, self.ended = {job.id: replace(job, guarded=True) for job in jobs}, ended
        self.states = {job.id: RunState("queued") for job in jobs}
        if self.count is None:
            on_cpu = all(resolve_device(job.device).type == "cpu" for job in jobs)
            self.count = cores() if on_cpu else 1
        return None

    def poll(self) -> dict[str, RunState]:
        """Check which processes have ended, start others, and return the state of every job."""
        for key, (process, _) in list(self.running.items()):
            if process.poll() is not None:
                self.states[key] = self._outcome(key)
        for key, job in self.jobs.items():
            kind = self.states[key].kind
            if kind == "elsewhere" or (kind == "queued" and self._has_room()):
                self.states[key] = self._next(job)
        return dict(self.states)

    def _has_room(self) -> bool:
        assert self.count is not None
        return not self.stopping and len(self.running) < self.count

    def _next(self, job: Job) -> RunState:
        """Start a job, unless another sweep trains or has trained its run."""
        if job.is_held:
            return RunState("elsewhere")
        if self.ended(job.id):
            return RunState("ended")
        if not self._has_room():
            return RunState("queued")
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        process = subprocess.Popen(
            job.command,
            stdin=subprocess.PIPE,  # closing it stops the run
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=job.variables,
            start_new_session=True,  # Ctrl-C reaches only this process, which passes it on
        )
        self.running[job.id] = process, errors
        return RunState("running")

    def _outcome(self, key: str) -> RunState:
        process, errors = self.running.pop(key)
        with process, errors:
            errors.seek(0)
            log = errors.read()
        if process.returncode == 0:
            return RunState("ended")
        if process.returncode == HELD:
            return RunState("elsewhere")
        if self.stopping:
            return RunState("queued")
        return RunState("failed", reason(log, process.returncode))

    def leave(self) -> None:
        """Ask every process to save and stop."""
        self.stopping = True
        for process, _ in self.running.values():
            process.send_signal(signal.SIGTERM)

    @property
    def is_busy(self) -> bool:
        """Whether there are processes that `leave` has not ended yet."""
        return bool(self.running)

    def close(self) -> None:
        """End all processes."""
        if not self.stopping:
            self.leave()
        for process, errors in self.running.values():
            with process, errors:
                pass
