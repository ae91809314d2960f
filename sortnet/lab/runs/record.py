"""One run as one typed record, from its directory or from the JSON file kept of it.

Tables, claims, figures, docs and the page read runs here and nowhere else. The JSON file is small
enough for a repository: configuration, machine, errors and an averaged learning curve.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sortnet import files
from sortnet.errors import UsageError
from sortnet.lab.runs import directory as layout
from sortnet.lab.runs.curves import Curve, average, columns, finite
from sortnet.lab.runs.run import Run
from sortnet.lab.runs.settings import text

POINTS = 100
"""Points of a stored learning curve."""
CHANCE = 0.97
"""A network whose error is above this share of a random guess's error has not converged."""
LARGEST = 1e15
"""A larger number in a result is damage; sums of such numbers could be infinite."""
TRANSFER = "transfer.json"
METRICS = "metrics.jsonl"

Guard = Callable[[Path], AbstractContextManager[object]]
"""Returns, for a file's path, a context that may suppress errors of reading the file."""


@dataclass(frozen=True)
class RunRecord:
    """Everything known about a run.

    Attributes:
        run: The run.
        source: The run's directory, or the JSON file.
        machine: Hardware, threads, versions and commit, as in run.json.
        data: Fingerprint, class names and number of images, as in run.json.
        ended: ``finished`` or ``diverged``; None while it has not ended.
        steps: Steps taken.
        seconds: Training time without evaluation.
        test: ``error`` and ``error5`` in percent, ``loss``, ``images``; empty unless finished.
        where: The module in which it diverged.
        confusion: Images of each class (row) by predicted class.
        transfer: Accuracy by layer after transfer (section 4.3), and the dataset.
        curves: Learning curves by split, ``train`` and ``validation``.
    """

    run: Run
    source: Path
    machine: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    ended: str | None = None
    steps: int = 0
    seconds: float | None = None
    test: Mapping[str, float] = field(default_factory=dict)
    where: str | None = None
    confusion: list[list[int]] | None = None
    transfer: Mapping[str, Any] | None = None
    curves: Mapping[str, Curve] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(str(name) for name in self.data.get("classes") or ())

    @property
    def converged(self) -> bool:
        """Whether it finished, and with an error below that of a random guess."""
        if self.ended != "finished":
            return False
        count = len(self.classes)
        return count < 2 or self.test["error"] < CHANCE * 100 * (1 - 1 / count)

    def value(self, metric: str) -> float | None:
        """Return a metric of a run that ended; None if it did not converge.

        Arguments:
            metric: ``error``, ``error5``, ``validation`` for the last error on held-out images,
                or a layer's accuracy after transfer, such as ``fc6-accuracy``.
        """
        if metric.endswith("-accuracy") and self.transfer is not None:
            return float(self.transfer["accuracy"][metric.removesuffix("-accuracy")])
        if not self.converged:
            return None
        if metric == "validation":
            return float(self.curves["validation"]["error"][-1])
        return self.test[metric]

    def has(self, metric: str) -> bool:
        """Whether `value` is final: features are transferred after a run has finished."""
        if metric.endswith("-accuracy") and self.ended == "finished":
            return self.transfer is not None
        return self.ended is not None

    def events(self) -> list[dict[str, Any]]:
        """Return starts, stops and failures; none if there is no directory."""
        return layout.events(self.source) if self.source.is_dir() else []

    def mistakes(self) -> list[dict[str, Any]]:
        """Return the most confident mistakes with their images, if they were kept."""
        path = self.source / "mistakes.json"
        return list(files.read_json(path)) if path.is_file() else []

    def last_change(self) -> float | None:
        """Return the time of the last metric; None if there is none."""
        path = self.source / METRICS
        return path.stat().st_mtime if self.steps and path.is_file() else None

    def averaged(self) -> dict[str, Curve]:
        """Return the curves as they are stored, of at most `POINTS` points."""
        return {split: average(curve, POINTS) for split, curve in self.curves.items()}

    def as_json(self) -> dict[str, Any]:
        """Return what `write` stores: everything but confusion matrix, events and mistakes."""
        return {
            "run": self.run.as_json(),
            "machine": dict(self.machine),
            "data": dict(self.data),
            "ended": self.ended,
            "steps": self.steps,
            "seconds": None if self.seconds is None else round(self.seconds, 2),
            "test": dict(self.test),
            "where": self.where,
            "transfer": self.transfer,
            "curve": self.averaged(),
        }


def write(record: RunRecord, results: Path) -> None:
    """Store a record as a JSON file in a directory of results."""
    file = results / f"{record.run.id}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write_sealed(file, record.as_json())


def find_all(*directories: str | Path) -> list[Path]:
    """Return the sources of all runs in and below directories, in order of their names."""
    roots = [Path(root) for root in directories]
    stored = {path for root in roots for path in root.rglob("seed*.json")}
    return sorted({*layout.find(*roots), *stored})


def find(run: Run, *directories: str | Path) -> RunRecord | None:
    """Return the record of a run that has ended, from the first directory that has it.

    Its curves are averaged, so that it does not matter whether the directory or the file is found.
    """
    for root in directories:
        for source, sign in ((run.id, "result.json"), (f"{run.id}.json", "")):
            if (Path(root) / source / sign).is_file():
                record = read(Path(root) / source)
                return replace(record, curves=record.averaged())
    return None


def read(source: str | Path, guard: Guard = lambda path: nullcontext()) -> RunRecord:
    """Read a run.

    Arguments:
        source: Its directory, or a file that `write` wrote.
        guard: Called with each file of a directory but run.json; what it suppresses is left out
            of the record.

    Raises:
        UsageError: A file has unexpected content.
    """
    source = Path(source)
    return _from_file(source) if source.is_file() else _from_directory(source, guard)


def _from_file(path: Path) -> RunRecord:
    stored = files.read_sealed(path)
    if not isinstance(stored, dict) or not {"run", "ended", "test", "data"} <= stored.keys():
        raise UsageError(f"{path} is not the record of a run")
    return RunRecord(
        Run.from_json(stored["run"]),
        path,
        stored.get("machine") or {},
        stored["data"] or {},
        transfer=stored.get("transfer"),
        curves=_stored_curves(stored.get("curve") or {}),
        **_outcome(stored, len(stored["data"].get("classes") or ())),
    )


def _stored_curves(curves: Mapping[str, Mapping[str, Any]]) -> dict[str, Curve]:
    """Bring stored curves into the form of `columns`."""
    rows = [
        {"split": split, "step": step} | {n: v[i] for n, v in curve.items() if n != "step"}
        for split, curve in curves.items()
        for i, step in enumerate(curve["step"])
    ]
    return columns(rows)


def _from_directory(directory: Path, guard: Guard) -> RunRecord:
    run = layout.read(directory)
    about = files.read_sealed(directory / "run.json")
    data = about.get("data") or {}
    found: dict[str, Any] = {}
    with guard(directory / METRICS):
        curves = columns(layout.rows(directory))
        found["curves"] = curves
        found["steps"] = max((max(curve["step"]) for curve in curves.values()), default=0)
    with guard(directory / "result.json"):
        result = layout.result(directory)
        if result is not None:
            found |= _outcome(vars(result), len(data.get("classes") or ()))
    path = directory / TRANSFER
    with guard(path):
        found["transfer"] = files.read_json(path) if path.is_file() else None
    return RunRecord(run, directory, about.get("machine") or {}, data, **found)


def _outcome(stored: Mapping[str, Any], classes: int) -> dict[str, Any]:
    """Check the fields of a result; numbers that are not finite are left out."""
    ended, where = stored["ended"], stored.get("where")
    seconds = finite(stored["seconds"])
    numbers = {k: v for k, v in stored["test"].items() if finite(v) is not None}
    if large := [x for x in (*numbers.values(), seconds or 0) if abs(x) > LARGEST]:
        raise UsageError(f"{large[0]:g} is larger than any number of a result can be")
    if (steps := finite(stored["steps"])) is None:
        raise UsageError(f"steps {stored['steps']!r} is not a number")
    if ended == "finished" and "error" not in numbers:
        raise UsageError("the result has no test error")
    return {
        "ended": text(ended),
        "steps": int(steps),
        "seconds": seconds,
        "test": numbers,
        "where": None if where is None else text(where),
        "confusion": _confusion(stored.get("confusion"), classes),
    }


def _confusion(stored: Any, classes: int) -> list[list[int]] | None:  # noqa: ANN401
    if stored is None:
        return None
    rows = [[int(count) for count in row] for row in stored]
    if len(rows) != classes or any(len(row) != classes for row in rows):
        raise UsageError(f"the confusion matrix is not of {classes} x {classes} classes")
    return rows
