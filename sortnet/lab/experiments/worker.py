"""One run of a sweep, in a process of its own: ``python -m sortnet.lab.experiments.worker``.

It is told what to do by a line of JSON on its standard input, reports its steps as lines of JSON,
and stops, saved, when that input ends: whatever became of the sweep, no run is left behind.
"""

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sortnet import files
from sortnet.errors import Damaged, UsageError
from sortnet.lab.runs import Result, Run, train
from sortnet.lab.runs.record import TRANSFER
from sortnet.lab.training import Callback, Diverged, Interrupted, TrainerOptions, tune

HELD = 75
"""The exit code if another process trains the run: try again later."""
PAUSE = 0.5
"""Seconds between two reports."""
LAYERS = ("pool5", "fc6", "fc7")
"""Of AlexNet; other chain networks have their own names for the same three."""


class Reporter(Callback):
    """Reports the steps taken, now and then."""

    def __init__(self) -> None:
        self.last = 0.0

    def step(self, step: int, images: int) -> None:
        """Report, if it is time."""
        if time.monotonic() - self.last > PAUSE:
            self.last = time.monotonic()
            with suppress(BrokenPipeError):  # the sweep is gone: the end of input will stop us
                print(json.dumps({"step": step}), flush=True)


def _stop_at_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), 1):  # not by sys.stdin, whose lock would outlive us
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def transferred(result: Result, data: str, root: Path, device: str = "auto") -> None:
    """Carry a trained network's features over to other data, as section 4.3 does, and store it."""
    from sortnet.lab.transfer import transfer

    path = result.directory / TRANSFER
    if result.ended != "finished" or path.is_file():
        return
    with files.locked(result.directory / "lock", f"carrying over {result.directory}"):
        # without names: the last pooling and what follows it
        found = transfer(result.directory, data, root, device=device)
        accuracy = {name: one.mean for name, one in zip(LAYERS, found.values(), strict=True)}
        files.write_json(path, {"data": data, "layers": list(found), "accuracy": accuracy})


def work(job: dict[str, Any]) -> None:
    """Train a run, and carry its features over if that is asked for."""
    run, root = Run.from_json(job["run"]), Path(job["root"])
    options = TrainerOptions(device=job["device"])
    try:
        result = train(run, job["out"], root, options=options, callbacks=[Reporter()])
    except Diverged:
        return  # the result says so: it is the paper's dash
    if job["transfer"]:
        transferred(result, job["transfer"], root, job["device"])


def main() -> int:
    """Do what the first line of the input says."""
    job = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    tune()
    try:
        work(job)
    except Interrupted as error:
        return 128 + error.number
    except files.LockHeld:
        return HELD
    except (UsageError, Damaged, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
