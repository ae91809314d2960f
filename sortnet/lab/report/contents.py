"""What a page shows, as data; files that cannot be read are listed with the reason."""

import base64
import binascii
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import sortnet
from sortnet import files
from sortnet.errors import UsageError
from sortnet.lab.experiments.baselines import baseline, paper_values
from sortnet.lab.report import benchmark_tables, comparison, groups
from sortnet.lab.runs import Run, RunRecord, record
from sortnet.lab.runs.curves import DIGITS, Curve, extremes, finite
from sortnet.lab.runs.settings import flat, text

METRICS = {
    "validation error": ("validation", "error"),
    "train loss": ("train", "loss"),
    "train error": ("train", "error"),
    "learning rate": ("train", "rate"),
    "gradient norm": ("train", "gradient"),
}
"""The curves that can be drawn: by name, split and column."""
POINTS = 200_000
"""Points of all curves together; at least `FEWEST` and at most `MOST` of one."""
FEWEST, MOST = 250, 4_000
PICTURES = 1_400_000
"""Characters of all images together."""
EVENTS = 200
"""The last events of a run that are kept."""
VERDICTS = ("holds", "does not hold", "not decided")
READ = ("run.json", "metrics.jsonl", "events.jsonl", "result.json", "mistakes.json")
"""The files of a run that the page depends on."""
CLAIMS, COST = "claims.json", "cost.json"
BESIDE = (comparison.FILE, CLAIMS, COST)
"""Files next to the runs that the page shows."""
BROKEN = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors raised by reading a file with unexpected content."""
PNG = b"\x89PNG\r\n\x1a\n"

Json = dict[str, Any]
T = TypeVar("T")


@dataclass
class Problems:
    """Files that could not be read, and why."""

    found: list[dict[str, str]] = field(default_factory=list)

    @contextmanager
    def at(self, path: Path) -> Iterator[None]:
        """Record what is wrong with a file and continue."""
        try:
            yield
        except (*BROKEN, OSError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            reason = reason.removeprefix(f"{path} ")
            self.found.append({"where": str(path), "reason": reason[:300]})


@dataclass(frozen=True)
class Share:
    """How much of a page one run may take: points of a curve and characters of images."""

    points: int
    pictures: int

    @classmethod
    def of(cls, count: int) -> "Share":
        """Return an equal share for each of so many runs."""
        points = POINTS // (count * (len(METRICS) - 1))  # the learning rate has hardly any
        return cls(max(FEWEST, min(MOST, points)), PICTURES // count)


def gather(directories: Sequence[Path]) -> Json:
    """Return everything that a page shows.

    Arguments:
        directories: Searched for runs: run directories, or the JSON files that `sortnet reproduce
            --results` writes. They may contain ``claims.json``, a list of claims with verdicts,
            and ``cost.json``, as `sortnet bench --json` writes it.

    Raises:
        UsageError: There is no run.
    """
    sources, problems = find_all(directories), Problems()
    share = Share.of(len(sources))
    records: list[RunRecord] = []
    entries: list[Json] = []
    classes: dict[tuple[str, ...], int] = {}
    for source in sources:
        found, wrong = _read(source, stamp(source), share)
        problems.found += wrong
        if found is not None:
            one, entry = found
            place = classes.setdefault(one.classes, len(classes))
            records.append(one)
            entries.append({**entry, "id": shown(source, directories), "classes": place})
    configurations = groups.grouped(records)
    settings = [entry["settings"] for entry in entries]
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": sortnet.__version__,
        "metrics": list(METRICS),
        "runs": entries,
        "groups": configurations,
        "classes": [list(names) for names in classes],
        "differences": groups.differences(configurations, settings),
        "comparisons": _beside(directories, comparison.FILE, comparison.read, problems),
        "claims": _beside(directories, CLAIMS, claims, problems),
        "cost": _beside(directories, COST, _cost, problems),
        "faults": problems.found,
    }


def find_all(directories: Sequence[Path]) -> list[Path]:
    """Return the runs in and below directories.

    A stored record is left out if the directory of the same run is beside it.

    Raises:
        UsageError: There is none.
    """
    for directory in directories:
        if not directory.is_dir():
            raise UsageError(f"{directory} is not a directory: give the directories of runs")
    found = record.find_all(*directories)
    if not found:
        places = ", ".join(map(str, directories)) or "no directory at all"
        raise UsageError(
            f"no runs in {places}: a run has a run.json, which `sortnet train` writes"
        )
    return [source for source in found if source.is_dir() or source.with_suffix("") not in found]


def stamp(source: Path) -> tuple[tuple[int, int], ...]:
    """Return a value that changes whenever a file that the page depends on does."""
    stamps = []
    for path in [source, *(source / name for name in READ)]:
        try:
            status = path.stat()
            stamps.append((status.st_mtime_ns, status.st_size))
        except OSError:
            stamps.append((0, 0))
    return tuple(stamps)


def shown(source: Path, directories: Sequence[Path]) -> str:
    """Return the path of a run relative to the directory that was given."""
    source = source if source.is_dir() else source.with_suffix("")
    for root in directories:
        if source != root and source.is_relative_to(root):
            return str(source.relative_to(root))
    return str(source)


@lru_cache(maxsize=1024)  # a served page is built repeatedly
def _read(
    source: Path, _stamp: object, share: Share
) -> tuple[tuple[RunRecord, Json] | None, list[dict[str, str]]]:
    """Return a run, what is shown of it, and which of its files could not be read."""
    problems = Problems()
    with problems.at(source / "run.json" if source.is_dir() else source):
        one = record.read(source, problems.at)
        _check(one.run)
        return (one, _entry(one, share, problems)), problems.found
    return None, problems.found


def _check(run: Run) -> None:
    """Check the types of what runs are grouped and compared by."""
    kinds = {"fusion": str, "data": str, "seed": int, "options": dict}
    for name, kind in kinds.items():
        value = getattr(run, name)
        if not isinstance(value, kind):
            raise UsageError(f"the run's {name} {text(value)} is not of type {kind.__name__}")
    for name in ("scale", "steps"):
        if finite(getattr(run.recipe, name)) is None:
            raise UsageError(f"the recipe's {name} is not a number")
    groups.key(run)  # fails for what JSON cannot hold
    baseline(run)
    paper_values(run)


def _entry(one: RunRecord, share: Share, problems: Problems) -> Json:
    """Return what the page shows of a run."""
    run = one.run
    data = {name: one.data.get(name) for name in ("fingerprint", "images")}
    entry: Json = {
        "title": run.title,
        "seed": run.seed,
        "total": run.recipe.steps,
        "settings": flat(run.as_json()) | flat({"machine": one.machine, "data": data}),
        "curves": _curves(one.curves, share.points),
        "events": [],
        "ended": one.ended,
        "steps": one.steps,
        "confusion": one.confusion,
        "mistakes": [],
        "mistakes_kept": 0,
        "where": one.where,
        "seconds": one.seconds,
        "alive": one.last_change(),
        **{name: one.test.get(name) for name in ("error", "error5", "loss", "images")},
    }
    with problems.at(one.source / "events.jsonl"):
        entry["events"] = [_event(event) for event in one.events()][-EVENTS:]
    with problems.at(one.source / "mistakes.json"):
        found = [_mistake(mistake, len(one.classes)) for mistake in one.mistakes()]
        entry["mistakes"], entry["mistakes_kept"] = _fitting(found, share), len(found)
    return entry


def _curves(curves: Mapping[str, Curve], limit: int) -> dict[str, list[Any]]:
    """Return by metric the difference of each step from the one before it, and the values."""
    packed: dict[str, list[Any]] = {}
    for name, (split, column) in METRICS.items():
        curve = curves.get(split, {"step": [], column: []})
        known = [i for i, value in enumerate(curve[column]) if value is not None]
        if known:
            steps, values = ([curve[key][i] for i in known] for key in ("step", column))
            steps, values = extremes(steps, values, limit)
            gaps = [b - a for a, b in zip([0, *steps], steps, strict=False)]
            packed[name] = [gaps, [rounded(value) for value in values]]
    return packed


def rounded(value: float) -> float:
    """Round a value to `DIGITS` significant digits; whole numbers become integers."""
    short = float(f"{value:.{DIGITS}g}")
    if math.isinf(short):  # the largest numbers are rounded up to it
        return value
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _event(event: Json) -> Json:
    time = finite(event["time"])
    if time is None:
        raise UsageError(f"the time {event['time']!r} of an event is not a number")
    rest = {k: v for k, v in event.items() if k not in ("time", "event", "step")}
    return {
        "time": time,
        "event": str(event["event"]),
        "step": finite(event.get("step")),
        "details": flat(rest),
    }


def _mistake(mistake: Json, classes: int) -> Json:
    png, sure = str(mistake["png"]), finite(mistake["probability"])
    try:
        picture = base64.b64decode(png, validate=True)
    except binascii.Error:
        picture = b""
    if not picture.startswith(PNG):
        raise UsageError(f"the picture of image {mistake['image']!r} is not a PNG file")
    label, taken_for = int(mistake["label"]), int(mistake["taken_for"])
    if sure is None or not (0 <= label < classes and 0 <= taken_for < classes):
        raise UsageError(f"image {mistake['image']!r} is of no class that there is")
    image = text(mistake["image"])
    return {"image": image, "label": label, "as": taken_for, "sure": rounded(sure), "png": png}


def _fitting(mistakes: list[Json], share: Share) -> list[Json]:
    """Return as many of the first pictures as fit into a run's share of the page."""
    kept, left = [], share.pictures
    for mistake in mistakes:
        left -= len(mistake["png"])
        if left < 0:
            break
        kept.append(mistake)
    return kept


def _beside(
    directories: Sequence[Path], name: str, read: Callable[[Any], list[T]], problems: Problems
) -> list[T]:
    """Return the content of the first file with a name, in any of the directories."""
    found: list[T] = []
    for path in dict.fromkeys(directory / name for directory in directories):
        if path.is_file():
            with problems.at(path):
                found += read(files.read_json(path))
    return found


def claims(value: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Return the claims and verdicts of a ``claims.json``, checked."""
    found = []
    for claim in value:
        if claim["verdict"] not in VERDICTS:
            raise UsageError(f"the verdict {claim['verdict']!r} is none of {', '.join(VERDICTS)}")
        names = ("name", "place", "text", "verdict", "figures")
        found.append({name: str(claim.get(name, "")) for name in names})
    return found


def _cost(value: Json) -> list[Json]:
    tables = benchmark_tables.tables(value).items()
    return [{"title": t, "heading": heading, "rows": rows} for t, (heading, rows) in tables]
