"""One element of a SLURM array job: it trains one run, and is requeued until the run has ended.

The run is trained by another process, so that a signal never interrupts a step: the process is
asked to save, as on a local machine, and this one waits for it and is requeued by submitit.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from submitit.core.utils import DelayedSubmission

from sortnet.lab.sweep.job import HELD, Job

PAUSE = 1.0
"""Seconds between two checks of the job or of the lock of a run."""
GRACE = 120.0
"""Seconds from SIGTERM until SLURM ends a job that it cancels or preempts."""
IDLE = 3
"""Number of starts without a new checkpoint after which the element gives up."""


class Element:
    """Trains one run; submitit calls it with a job and stores what `checkpoint` returns."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.found: Path | None = None

    def __call__(self, job: Job, idle: int = 0) -> None:
        """Train a run until it has ended.

        Arguments:
            job: The run.
            idle: Number of earlier starts that ended without a new checkpoint.

        Raises:
            SystemExit: The run failed; its message is in the log.
        """
        asked: list[int] = []
        # SLURM sends the signal to the training process as well, which saves and ends
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
        self.found = _newest(job)
        while code := self._train(job):
            if asked:
                _wait_for_the_end()
                asked.clear()
            elif code == HELD or job.is_held:  # by another sweep, or by a disconnected node
                time.sleep(PAUSE)
            else:
                raise SystemExit(code)

    def _train(self, job: Job) -> int:
        self.process = subprocess.Popen(
            job.command, stdin=subprocess.DEVNULL, env=job.variables, preexec_fn=_ignore_requeue
        )
        return self.process.wait()

    def checkpoint(self, job: Job, idle: int = 0) -> DelayedSubmission | None:
        """Let the run save, and return what resumes it; None gives up.

        submitit calls this when SLURM announces the end of the job's time, or preempts it.
        """
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            # not wait(): the interrupted call holds its lock
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        idle = idle + 1 if _newest(job) == self.found else 0
        if idle >= IDLE:
            message = (
                f"sortnet: the time limit came {idle} times before a step was saved; raise --time"
            )
            print(message, file=sys.stderr, flush=True)
            return None
        return DelayedSubmission(Element(), job, idle)


def _ignore_requeue() -> None:
    """Ignore the signals that announce the end; SLURM sends them to every process of a job."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def _newest(job: Job) -> Path | None:
    return max((job.directory / "checkpoints").glob("step-*"), default=None)


def _wait_for_the_end() -> None:
    """Wait until SLURM ends this job, which it cancels or preempts.

    A preempted job may have minutes left before it receives the signal that requeues it.
    """
    until = time.monotonic() + GRACE
    while time.monotonic() < until:
        if _state() == "COMPLETING":
            raise SystemExit(128 + signal.SIGTERM)
        time.sleep(PAUSE)


def _state() -> str:
    array, element = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{element}" if array else os.environ["SLURM_JOB_ID"]
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
