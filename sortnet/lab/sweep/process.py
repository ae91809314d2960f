"""The process that trains one run of a sweep: ``python -m sortnet.lab.sweep.process JOB``."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from sortnet import files
from sortnet.errors import Damaged, UsageError
from sortnet.lab.runs import Result, Run, train
from sortnet.lab.runs.record import TRANSFER
from sortnet.lab.sweep.job import HELD, Job
from sortnet.lab.training import Diverged, Interrupted, TrainerOptions, tune

LAYERS = ("pool5", "fc6", "fc7")
"""AlexNet's names; other chain networks have their own names for the same three."""


def _stop_at_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), 1):  # not sys.stdin, whose lock would be held at exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def transferred(result: Result, data: str, root: Path, device: str = "auto") -> None:
    """Evaluate a trained network's features on other data, as in section 4.3, and store it."""
    from sortnet.lab.transfer import transfer

    path = result.directory / TRANSFER
    if result.ended != "finished" or path.is_file():
        return
    with files.locked(result.directory / "lock", f"transferring {result.directory}"):
        # without names: the last pooling layer and those after it
        found = transfer(result.directory, data, root, device=device)
        accuracy = {name: one.mean for name, one in zip(LAYERS, found.values(), strict=True)}
        files.write_json(path, {"data": data, "layers": list(found), "accuracy": accuracy})


def work(job: Job) -> None:
    """Train a run, and evaluate its features on other data if the job says so."""
    run, root = Run.from_json(job.run), Path(job.root)
    try:
        result = train(run, job.out, root, options=TrainerOptions(device=job.device))
    except Diverged:
        return  # the result is stored as diverged: the paper's dash
    if job.transfer and os.environ.get("RANK", "0") == "0":
        transferred(result, job.transfer, root, job.device)


def main() -> int:
    """Run the job that the first argument describes."""
    job = Job(**json.loads(sys.argv[1]))
    if job.guarded:
        threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    tune()
    try:
        work(job)
    except Interrupted as error:
        return 128 + error.number
    except files.LockHeld:
        return HELD
    except (UsageError, Damaged, OSError) as error:
        print(f"sortnet: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
