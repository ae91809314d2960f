"""Fault injection: disturb a small run in many ways and check its result (``make chaos``).

Every command runs in a process forked from this one, which has imported everything and has never
computed a gradient. An attempt succeeds if the run ends with the result of the undisturbed run, or
with an error of one line; after a kill or a full disk, the same command must then end with that
result.
"""

import argparse
import builtins
import errno
import importlib
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from sortnet import cli, files
from sortnet.lab.data import digits
from sortnet.lab.training import checkpoint, distributed
from sortnet.lab.training.hardware import description
from sortnet.lab.training.loop import Trainer
from sortnet.networks import create_model

TRAIN = (
    *("train", "lenet", "--scale", "0.0001", "--batch", "2", "--validation", "20"),
    *("--evaluations", "2", "--save-every", "2", "--threads", "1", "--precision", "float32"),
)
RUN = "digits/lenet-x0.0001/seed0"
BEFORE = ", as trained before"
"""What `sortnet train` prints for a run that had already finished."""
SECONDS = 560.0
PATIENCE = 120.0
"""Seconds after which a process counts as hung."""
MUTATIONS = 500
REMOVALS = ("unlink", "rmdir", "ftruncate", "truncate")
CHANGES = ("write", "fsync", "rename", "replace", "mkdir", *REMOVALS)
"""Functions of the module os."""
FREEING = tuple(f"before {name}" for name in REMOVALS)
ATTACKS = {
    "kill": "killed at each write, fsync, rename and removal",
    "ENOSPC": "disk full from each write on",
    "EIO": "I/O error at each write",
    "mutation": "a file of the run's directory changed",
    "rank": "one of two processes killed or stopped",
}


@dataclass(frozen=True)
class Attempt:
    """One attempt: the kind of attack, and which moment, mutation or action it is."""

    attack: str
    which: Any


@dataclass(frozen=True)
class Finished:
    """How a process ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def wrong(self) -> str | None:
        """What is wrong with the end of a failed process; None if it printed one line."""
        if "Traceback" in self.err or self.code not in (1, 2):
            lines = self.err.strip().splitlines()
            return f"ended with {self.code}: {lines[-1] if lines else 'nothing was said'}"
        said = [line for line in self.err.splitlines() if line.startswith("sortnet: ")]
        return None if len(said) == 1 and self.err.endswith(f"{said[0]}\n") else "not one line"


class Trap:
    """Counts the file operations below a directory, and injects a fault at one of them.

    Arguments:
        root: The directory.
        at: Index of the operation; -1 for none.
        kind: ``kill``, ``ENOSPC`` or ``EIO``. A full disk stays full.
    """

    def __init__(self, root: Path, at: int = -1, kind: str = "kill") -> None:
        self.root, self.at, self.kind = str(root), at, kind
        self.names: list[str] = []
        self.full = False

    def reach(self, name: str, begin: Callable[[], object] = lambda: None) -> None:
        """Count an operation, and inject the fault if it is the chosen one.

        Arguments:
            name: Name of the operation.
            begin: Called before the fault, to leave the operation half done.
        """
        kills = self.kind == "kill"
        if not kills and (name.startswith("after") or (self.kind == "ENOSPC" and name in FREEING)):
            return  # an operation does not fail after it is done, and a full disk allows removals
        if len(self.names) == self.at or (self.full and self.kind == "ENOSPC"):
            self.full = True
            begin()
            if kills:
                os.kill(os.getpid(), signal.SIGKILL)
            self.names.append(name)
            raise OSError(getattr(errno, self.kind), os.strerror(getattr(errno, self.kind)))
        self.names.append(name)

    def set(self) -> None:
        """Wrap all functions that change files."""
        for name in CHANGES:
            setattr(os, name, self._around(name, getattr(os, name)))
        opened = io.open

        def watched(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            found = opened(file, mode, *args, **kwargs)
            inside = not isinstance(file, int) and str(file).startswith(self.root)
            return Watched(found, self) if inside and set(mode) & set("wax+") else found

        io.open = builtins.open = watched

    def _around(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def trapped(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self.reach(f"before {name}")
            result = original(*args, **kwargs)
            self.reach(f"after {name}")
            return result

        return trapped


class Watched:
    """A file whose writes reach the disk at once, and are counted by a trap."""

    def __init__(self, file: Any, trap: Trap) -> None:  # noqa: ANN401
        self.file, self.trap = file, trap

    def write(self, content: Any) -> int:  # noqa: ANN401
        """Write all of the content, or half of it."""

        def half() -> None:
            self.file.write(content[: len(content) // 2])
            self.file.flush()

        self.trap.reach("in write", half)
        count: int = self.file.write(content)
        self.file.flush()
        self.trap.reach("after write")
        return count

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.file, name)


def run_forked(place: Path, arguments: Sequence[str], trap: Trap | None = None) -> Finished:
    """Run a command in a forked process."""
    said = [place.with_name(f"{place.name}.{name}") for name in ("out", "err", "moments")]
    child = os.fork()
    if child == 0:
        _run_child(said, arguments, trap)
    end = time.monotonic() + PATIENCE
    pause = 0.005
    while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(pause)
    code = os.waitstatus_to_exitcode(found[1])
    return Finished(code, *(path.read_text(errors="replace") for path in said[:2]))


def _run_child(said: Sequence[Path], arguments: Sequence[str], trap: Trap | None) -> None:
    """Run a command as the forked process."""
    code = 70
    try:
        for descriptor, path in enumerate(said[:2], 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        write = said[2].write_text
        if trap is not None:
            trap.set()
        try:
            code = cli.main(list(arguments))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        if trap is not None and trap.at < 0:
            write(json.dumps(trap.names))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def normalized_output(done: Finished, place: Path) -> str:
    """Return what a process printed, without paths and times."""
    return re.sub(rf" in \d+ s({BEFORE})?", "", done.out.replace(str(place), ""))


def outcome(directory: Path) -> dict[str, bytes]:
    """Return the files that must not depend on what happened to a run."""
    kept = {n: (directory / n).read_bytes() for n in ("model.safetensors", "metrics.jsonl")}
    result = json.loads((directory / "result.json").read_bytes())
    result = {k: v for k, v in result.items() if k in ("ended", "steps", "test", "confusion")}
    return kept | {"result": json.dumps(result).encode()}


class Campaign:
    """The attempts, and the result of an undisturbed run.

    Arguments:
        folder: An empty directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        torch.set_num_threads(1)
        warm_up()
        whole = folder / "whole"
        self.moments: dict[str, list[str]] = {}
        for kind in ("kill", "ENOSPC", "EIO"):
            shutil.rmtree(whole, ignore_errors=True)
            done = run_forked(whole, self.train(whole), Trap(whole, kind=kind))
            assert done.code == 0, done.err
            self.moments[kind] = json.loads((folder / "whole.moments").read_text())
        self.expected = outcome(whole / RUN)
        late = 3 * len(self.moments["kill"]) // 4
        assert (
            run_forked(folder / "part", self.train(folder / "part"), Trap(folder, late)).code == -9
        )
        self.bases = {"whole": whole, "part": folder / "part"}
        self.printed = {name: self.answers(base) for name, base in self.bases.items()}

    @staticmethod
    def train(out: Path) -> list[str]:
        """Return the command that trains, resumes or prints the run."""
        return [*TRAIN, "--out", str(out)]

    def answers(self, base: Path) -> dict[str, set[str]]:
        """Return what eval may print, and what train may print for a finished run.

        For an unfinished run, eval may use any of its checkpoints.
        """
        found = {"eval": {run_forked(base, ["eval", str(base / RUN)]).out}, "train": set()}
        if base.name == "whole":
            found["train"].add(normalized_output(run_forked(base, self.train(base)), base))
            return found
        older = self.folder / "older"
        shutil.copytree(base, older)
        steps = checkpoint.paths(older / RUN / "checkpoints")
        for path in steps[:-1]:
            shutil.rmtree(path)
            found["eval"].add(run_forked(older, ["eval", str(older / RUN)]).out)
        return found

    def attempts(self) -> Iterator[Attempt]:
        """Yield all attempts: slow ones first, then all kinds in turns, for a time limit."""
        yield from (Attempt("rank", action) for action in RANKS)
        kinds = [[Attempt(kind, i) for i in range(len(m))] for kind, m in self.moments.items()]
        kinds.append([Attempt("mutation", i) for i in range(MUTATIONS)])
        places = [(i / len(k), attempt) for k in kinds for i, attempt in enumerate(k)]
        yield from (attempt for _, attempt in sorted(places, key=lambda place: place[0]))

    def judge(self, attempt: Attempt) -> str | None:
        """Make an attempt; return what is wrong, or None."""
        place = self.folder / f"{attempt.attack}-{attempt.which}"
        try:
            if attempt.attack == "rank":
                return self._rank(place, attempt.which)
            if attempt.attack == "mutation":
                return self._mutated(place, attempt.which)
            return self._disturbed(place, attempt)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _disturbed(self, place: Path, attempt: Attempt) -> str | None:
        done = run_forked(place, self.train(place), Trap(place, attempt.which, attempt.attack))
        name = self.moments[attempt.attack][attempt.which]
        if attempt.attack == "kill" and done.code != -signal.SIGKILL:
            return f"{name}: was not killed"
        if attempt.attack != "kill" and done.code != 0 and done.wrong:
            return f"{name}: {done.wrong}"
        again = run_forked(place, self.train(place))
        if again.code != 0:
            return f"{name}: cannot resume: {again.err.strip().splitlines()[-1]}"
        return None if outcome(place / RUN) == self.expected else f"{name}: another result"

    def _mutated(self, place: Path, number: int) -> str | None:
        draw = random.Random(number)
        base = draw.choice(list(self.bases))
        what = None
        while what is None:
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(self.bases[base], place)
            what = f"{base}: {mutate(place / RUN, draw)}"
        for command in ("doctor", "eval", "train"):
            arguments = [command, str(place / RUN)] if command != "train" else self.train(place)
            done = run_forked(place, arguments)
            if done.code != 0:
                wrong = done.wrong
            elif command == "train" and BEFORE not in done.out:  # it resumed, or ended again
                wrong = None if outcome(place / RUN) == self.expected else "another result"
            else:
                known, said = self.printed[base].get(command), normalized_output(done, place)
                wrong = None if known is None or said in known else f"printed {said.strip()!r}"
            if wrong:
                return f"{what}: {command} {wrong}"
        return None

    def _rank(self, place: Path, action: str) -> str | None:
        quiet = self.folder / "quiet"
        with files.locked(self.folder / "quiet.lock", "training", wait=True):
            wrong = None if quiet.exists() else torchrun("quiet", quiet)
        if wrong or (wrong := torchrun(action, place)):
            return wrong
        if not (place / "done").exists():
            return "was not disturbed"
        return None if outcome(place / RUN) == outcome(quiet / RUN) else "another result"


def torchrun(action: str, out: Path) -> str | None:
    """Train in two processes and disturb one of them; return what went wrong, or None."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
    command += ["--nproc-per-node=2", "--max-restarts=1", "--standalone", __file__]
    command += ["--rank", action, "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == 0:
        return None
    return f"ended with {done.returncode}: {done.stderr.strip().splitlines()[-1]}"


def warm_up() -> None:
    """Import everything that a command needs, and read few images, so that commands are short."""
    for name in ("sklearn.datasets", "torch._dynamo"):
        importlib.import_module(name)
    images, labels = (x[:400].clone() for x in digits._enlarged())
    digits._enlarged = lambda: (images, labels)
    digits.TEST = 40
    torch.optim.SGD(create_model("lenet").parameters(), 0.1)


def mutate(directory: Path, draw: random.Random) -> str | None:
    """Change a file of a run's directory; return what was done, or None if nothing changed."""
    every = sorted(path for path in directory.rglob("*") if path.is_file())
    path = draw.choice(every)
    name, content = str(path.relative_to(directory)), bytearray(path.read_bytes())
    before = bytes(content)
    kind = draw.choice(KINDS)
    if kind == "flip" and content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif kind == "truncate":
        del content[draw.randrange(len(content) + 1) :]
    elif kind == "delete":
        path.unlink()
        return f"{name} deleted"
    elif kind == "double":
        content.extend(before)
    elif kind == "other":
        content[:] = draw.choice(every).read_bytes()
    elif kind == "garbage":
        content[:] = draw.choice(GARBAGE)
    elif kind == "value" and name.endswith(("json", "jsonl")):
        content[:] = _other_value(before.decode(), draw).encode()
    path.write_bytes(content)
    return None if content == before else f"{name}, {kind}"


KINDS = (*("flip", "value") * 4, "truncate", "delete", "double", "other", "garbage")
"""Mostly changes that leave a file readable: only a checksum finds them."""
GARBAGE = (b"", b"null", b"[]", b"{}", b"[" * 100_000, b'{"run": NaN}', b"\x00" * 64, b"\xff\xfe")
VALUES = ("NaN", "-1", "1e999", "0", "null", '"x"', "[]", "{}", "true", "12345678901234567890")


def _other_value(text: str, draw: random.Random) -> str:
    """Replace one of the numbers of a JSON text by another value."""
    places = [i for i, c in enumerate(text) if c.isdigit() and text[i - 1] in " [:"]
    if not places:
        return text
    begin = end = draw.choice(places)
    while end < len(text) and text[end] in "0123456789.e-+":
        end += 1
    return text[:begin] + draw.choice(VALUES) + text[end:]


RANKS = ("kill-0", "kill-1", "pause-0", "pause-1", "stop-0", "stop-1")
"""Which process is disturbed, and how: killed, stopped for a while, or stopped for good."""


def run_rank(action: str, out: Path) -> int:
    """Run as one of torchrun's processes; one of them is disturbed once, at step 5."""
    distributed.PATIENCE = timedelta(seconds=20)
    kind, _, rank = action.partition("-")
    original, done = Trainer.step, out / "done"

    def step(self: Trainer, *args: Any, **kwargs: Any) -> tuple[bool, bool]:  # noqa: ANN401
        if self.state.step == 4 and os.environ["RANK"] == rank and not done.exists():
            done.touch()
            if kind == "pause":
                subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        return original(self, *args, **kwargs)

    out.mkdir(parents=True, exist_ok=True)
    Trainer.step = step  # type: ignore[method-assign]
    return cli.main([*TRAIN, "--out", str(out)])


def sample(campaign: Campaign) -> list[Attempt]:
    """Return a few attempts of each kind, for the tests."""
    chosen = [Attempt("mutation", i) for i in range(8)]
    for kind, count in (("kill", 4), ("ENOSPC", 2), ("EIO", 2)):
        moments = len(campaign.moments[kind])
        chosen += [Attempt(kind, (2 * i + 1) * moments // (2 * count)) for i in range(count)]
    return chosen


def carry_out(campaign: Campaign, attempts: Sequence[Attempt], seconds: float) -> dict[str, Any]:
    """Make attempts, several at a time, until the time is over; return the table of results."""
    started = time.monotonic()
    table = {kind: {"attempts": 0, "failed": 0, "late": 0} for kind in ATTACKS}

    def judge(attempt: Attempt) -> Verdict:
        return None if time.monotonic() > started + seconds else (campaign.judge(attempt),)

    global _judge
    _judge = judge  # a global, which forked processes inherit without pickling
    context = multiprocessing.get_context("fork")
    # twice as many processes as cores: attempts with torchrun mostly wait
    with context.Pool(2 * len(os.sched_getaffinity(0))) as pool:
        for i, (attempt, verdict) in enumerate(pool.imap_unordered(_judged, attempts), 1):
            row = table[attempt.attack]
            row["late" if verdict is None else "attempts"] += 1
            if verdict is not None and verdict[0] is not None:
                row["failed"] += 1
                print(f"FAIL {attempt.attack} {attempt.which}: {verdict[0]}", flush=True)
            if i % 50 == 0:
                spent = time.monotonic() - started
                print(f"{i} of {len(attempts)} attempts, {spent:.0f} s", flush=True)
    return {
        "torch": torch.__version__,
        "sortnet": description()["commit"],
        "seconds": round(time.monotonic() - started),
        "rows": [{"attack": ATTACKS[kind], **row} for kind, row in table.items()],
    }


Verdict = tuple[str | None] | None
"""A tuple with what is wrong, or None; None for an attempt that there was no time for."""
_judge: Callable[[Attempt], Verdict]


def _judged(attempt: Attempt) -> tuple[Attempt, Verdict]:
    try:
        return attempt, _judge(attempt)
    except Exception as error:  # an error of the attempt itself must not end the campaign
        return attempt, (f"{type(error).__name__}: {error}",)


def main() -> int:
    """Carry out a campaign and print attempts and failures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the table")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="time limit; remaining attempts are skipped"
    )
    parser.add_argument("--sample", action="store_true", help="only a few attempts")
    parser.add_argument("--only", default="", help="only this kind of attack")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        return run_rank(given.rank, given.out)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        campaign = Campaign(Path(folder))
        attempts = sample(campaign) if given.sample else list(campaign.attempts())
        attempts = [attempt for attempt in attempts if given.only in attempt.attack]
        table = carry_out(campaign, attempts, given.seconds)
    print(f"{table['seconds']} seconds")
    for row in table["rows"]:
        late = f", {row['late']} not tried for lack of time" if row["late"] else ""
        print(f"{row['attack']}: {row['attempts']} attempts, {row['failed']} failed{late}")
    if given.json:
        files.write_json(given.json, table)
    return int(any(row["failed"] for row in table["rows"]))


if __name__ == "__main__":
    sys.exit(main())
