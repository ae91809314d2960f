"""What a page shows of run directories, as data; what cannot be read is listed with the reason."""

import base64
import binascii
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
from sortnet.lab import runs
from sortnet.lab.experiments.baselines import baseline, paper_values
from sortnet.lab.experiments.results import better_than_chance
from sortnet.lab.report import benchmark_tables as cost
from sortnet.lab.report import comparison, groups
from sortnet.lab.report.thinning import METRICS, curves, number, rounded
from sortnet.lab.runs import Run

POINTS = 200_000
"""Points of all curves together; at least `FEWEST` and at most `MOST` of one."""
FEWEST, MOST = 250, 4_000
PICTURES = 1_400_000
"""Characters of all pictures together."""
LARGEST = 1e15
"""A figure of a result beyond it is an error; sums of such numbers would be infinite."""
EVENTS = 200
"""Events of a run that are kept, the last ones."""
VERDICTS = ("holds", "does not hold", "not decided")
READ = ("run.json", "metrics.jsonl", "events.jsonl", "result.json", "mistakes.json")
"""The files of a run that the page depends on."""
BROKEN = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading a file raises that does not hold what it should."""
PNG = b"\x89PNG\r\n\x1a\n"

Json = dict[str, Any]
T = TypeVar("T")


@dataclass
class Faults:
    """What could not be read, and why."""

    found: list[dict[str, str]] = field(default_factory=list)

    @contextmanager
    def at(self, where: Path) -> Iterator[None]:
        """Go on after whatever is wrong with a file, and remember it."""
        try:
            yield
        except (*BROKEN, OSError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            reason = reason.removeprefix(f"{where} ")
            self.found.append({"where": str(where), "reason": reason[:300]})


@dataclass(frozen=True)
class Share:
    """How much of a page one run may take: points of a curve and characters of pictures."""

    points: int
    pictures: int

    @classmethod
    def of(cls, count: int) -> "Share":
        """An equal share for each of so many runs."""
        points = POINTS // (count * (len(METRICS) - 1))  # the rate has hardly any
        return cls(max(FEWEST, min(MOST, points)), PICTURES // count)


def gather(directories: Sequence[Path]) -> Json:
    """Everything that a page shows.

    Arguments:
        directories: In and below which the runs are. They may hold ``claims.json``, a list of
            claims with verdicts, and ``cost.json``, as `sortnet bench --json` writes it.

    Raises:
        ValueError: There is no run.
    """
    found, faults = found_in(directories), Faults()
    share = Share.of(len(found))
    known: list[Run] = []
    entries: list[Json] = []
    classes: dict[tuple[str, ...], int] = {}
    for directory in found:
        run, entry, wrong = _entry(directory, stamp(directory), share)
        faults.found += wrong
        if run is not None and entry is not None:
            names = tuple(entry["classes"])
            place = classes.setdefault(names, len(classes))
            known.append(run)
            entries.append({**entry, "id": shown(directory, directories), "classes": place})
    configurations = groups.grouped(known, entries)
    content = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": sortnet.__version__,
        "metrics": list(METRICS),
        "runs": entries,
        "groups": configurations,
        "classes": [list(names) for names in classes],
        "differences": groups.differences(configurations, entries),
        "comparisons": _beside(directories, comparison.FILE, comparison.read, faults),
        "claims": _beside(directories, "claims.json", claims, faults),
        "cost": _beside(directories, "cost.json", _cost, faults),
    }
    return content | {"faults": faults.found}


def found_in(directories: Sequence[Path]) -> list[Path]:
    """The runs in and below directories; that there is none is an error."""
    for directory in directories:
        if not directory.is_dir():
            raise UsageError(f"{directory} is not a directory: give the directories of runs")
    found = runs.find(*directories)
    if not found:
        places = ", ".join(map(str, directories)) or "no directory at all"
        raise UsageError(
            f"no runs in {places}: a run has a run.json, which `sortnet train` writes"
        )
    return found


def stamp(directory: Path) -> tuple[tuple[int, int], ...]:
    """Changes whenever a file that the page depends on does."""
    stamps = []
    for name in READ:
        try:
            status = (directory / name).stat()
            stamps.append((status.st_mtime_ns, status.st_size))
        except OSError:
            stamps.append((0, 0))
    return tuple(stamps)


def shown(directory: Path, directories: Sequence[Path]) -> str:
    """The directory as seen from the one that was given."""
    for root in directories:
        if directory != root and directory.is_relative_to(root):
            return str(directory.relative_to(root))
    return str(directory)


@lru_cache(maxsize=1024)  # a page that is served is made again and again
def _entry(
    directory: Path, _stamp: object, share: Share
) -> tuple[Run | None, Json | None, list[dict[str, str]]]:
    """A run, what is shown of it, and what of it could not be read."""
    faults = Faults()
    with faults.at(directory / "run.json"):
        run, about = runs.read(directory), files.read_sealed(directory / "run.json")
        entry = _described(run, about)
        _add_files(entry, directory, share, faults)
        return run, entry, faults.found
    return None, None, faults.found


def _checked(run: Run) -> None:
    """See that what runs are grouped and compared by is of the kind that it should be."""
    kinds = {"fusion": str, "data": str, "seed": int, "options": dict}
    for name, kind in kinds.items():
        if not isinstance(getattr(run, name), kind):
            raise UsageError(
                f"the run's {name} {groups.text(getattr(run, name))} is no {kind.__name__}"
            )
    for name in ("scale", "steps"):
        if number(getattr(run.recipe, name)) is None:
            raise UsageError(f"the recipe's {name} is no number")
    groups.key(run)  # which JSON can hold
    baseline(run)
    paper_values(run)


def _described(run: Run, about: Json) -> Json:
    """What run.json says."""
    _checked(run)
    data, machine = about.get("data") or {}, about.get("machine") or {}
    settings = groups.flat(run.as_json())
    settings |= groups.flat({"machine": machine})
    settings |= groups.flat({"data": {k: data.get(k) for k in ("fingerprint", "images")}})
    return {
        "title": run.title,
        "seed": run.seed,
        "total": run.recipe.steps,
        "settings": settings,
        "classes": [str(name) for name in data.get("classes") or []],
        "curves": {},
        "events": [],
        "ended": None,
        "converged": False,
        "steps": 0,
        "confusion": None,
        "mistakes": [],
        "mistakes_kept": 0,
        **dict.fromkeys(("where", "error", "error5", "loss", "images", "seconds", "alive")),
    }


def _add_files(entry: Json, directory: Path, share: Share, faults: Faults) -> None:
    """Add what the other files say, each for itself."""
    path = directory / "metrics.jsonl"
    with faults.at(path):
        rows = runs.rows(directory)
        entry["curves"] = curves(rows, share.points)
        entry["steps"] = max((row["step"] for row in rows), default=0)
        entry["alive"] = path.stat().st_mtime if rows else None
    with faults.at(directory / "events.jsonl"):
        entry["events"] = [_event(event) for event in runs.events(directory)][-EVENTS:]
    with faults.at(directory / "result.json"):
        result = runs.result(directory)
        if result is not None:
            entry |= _result(result, len(entry["classes"]))
    path = directory / "mistakes.json"
    with faults.at(path):
        if path.is_file():
            found = [_mistake(m, len(entry["classes"])) for m in files.read_json(path)]
            entry["mistakes"], entry["mistakes_kept"] = _fitting(found, share), len(found)


def _event(event: Json) -> Json:
    time = number(event["time"])
    if time is None:
        raise UsageError(f"the time {event['time']!r} of an event is no number")
    rest = {k: v for k, v in event.items() if k not in ("time", "event", "step")}
    return {
        "time": time,
        "event": str(event["event"]),
        "step": number(event.get("step")),
        "details": groups.flat(rest),
    }


def _result(result: runs.Result, classes: int) -> Json:
    entry: Json = {
        "ended": groups.text(result.ended),
        "where": None if result.where is None else groups.text(result.where),
        "seconds": number(result.seconds),
    }
    figures = (*result.test.values(), result.seconds)
    if large := [x for x in map(number, figures) if x is not None and abs(x) > LARGEST]:
        raise UsageError(f"{large[0]:g} is larger than any figure of a result can be")
    if (steps := number(result.steps)) is None:
        raise UsageError(f"steps {result.steps!r} is no number")
    entry["steps"] = int(steps)
    for name in ("error", "error5", "loss", "images"):
        entry[name] = number(result.test.get(name))
    if entry["ended"] == "finished" and entry["error"] is None:
        raise UsageError("the result has no test error")
    if entry["ended"] == "finished":
        entry["converged"] = better_than_chance(entry["error"], classes)
    if result.confusion is not None:
        rows = [[int(count) for count in row] for row in result.confusion]
        if not classes == len(rows) or any(len(row) != classes for row in rows):
            raise UsageError(f"the confusion matrix is not of {classes} x {classes} classes")
        entry["confusion"] = rows
    return entry


def _mistake(mistake: Json, classes: int) -> Json:
    png, sure = str(mistake["png"]), number(mistake["probability"])
    try:
        picture = base64.b64decode(png, validate=True)
    except binascii.Error:
        picture = b""
    if not picture.startswith(PNG):
        raise UsageError(f"the picture of image {mistake['image']!r} is not a PNG file")
    label, taken_for = int(mistake["label"]), int(mistake["taken_for"])
    if sure is None or not (0 <= label < classes and 0 <= taken_for < classes):
        raise UsageError(f"image {mistake['image']!r} is of no class that there is")
    image = groups.text(mistake["image"])
    return {"image": image, "label": label, "as": taken_for, "sure": rounded(sure), "png": png}


def _fitting(mistakes: list[Json], share: Share) -> list[Json]:
    """As many of the first pictures as a run's share of the page holds."""
    kept, left = [], share.pictures
    for mistake in mistakes:
        left -= len(mistake["png"])
        if left < 0:
            break
        kept.append(mistake)
    return kept


def _beside(
    directories: Sequence[Path], name: str, read: Callable[[Any], list[T]], faults: Faults
) -> list[T]:
    """What a file of that name holds, in any of the directories."""
    found: list[T] = []
    for path in dict.fromkeys(directory / name for directory in directories):
        if path.is_file():
            with faults.at(path):
                found += read(files.read_json(path))
    return found


def claims(value: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Claims with verdicts, as ``claims.json`` holds them."""
    found = []
    for claim in value:
        if claim["verdict"] not in VERDICTS:
            raise UsageError(f"the verdict {claim['verdict']!r} is none of {', '.join(VERDICTS)}")
        names = ("name", "place", "text", "verdict", "figures")
        found.append({name: str(claim.get(name, "")) for name in names})
    return found


def _cost(value: Json) -> list[Json]:
    tables = cost.tables(value).items()
    return [{"title": t, "heading": heading, "rows": rows} for t, (heading, rows) in tables]
