"""What came of an experiment's runs, from which tables and curves are made.

A run that has ended is found in its directory, or kept as one JSON file, small enough for a
repository: what it was, on what machine, its errors and its learning curve.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sortnet import files
from sortnet.errors import UsageError
from sortnet.lab import runs
from sortnet.lab.experiments.definitions import Cell, experiment
from sortnet.lab.experiments.sizes import Size, differences
from sortnet.lab.runs import Run
from sortnet.lab.sweep.process import TRANSFER

POINTS = 100
"""Points of a stored learning curve."""
CHANCE = 0.97
"""A network whose error is above this part of a blind guess's has not converged."""

Stored = dict[str, Any]
Entry = dict[str, Any]


def collect(name: str, chosen: Size, seeds: int | None, *places: str | Path) -> Stored:
    """Gather the runs of an experiment that have ended.

    Arguments:
        name: Of the experiment.
        chosen: The size and precision of its runs.
        seeds: How many seeds; as many as the size has without it.
        places: Directories of runs or of what is kept of them; the first that has a run counts.

    Returns:
        ``cells`` with heading, the paper's figure and the runs that fill them; ``runs`` by id,
        with run.json, test result and a thinned learning curve.
    """
    wanted = experiment(name)
    count = chosen.seeds if seeds is None else seeds
    fitted = [[chosen.fit(cell.run, seed) for seed in range(count)] for cell in wanted.cells]
    entries = {run.id: entry(run, *places) for same in fitted for run in same}
    return {
        "experiment": wanted.name,
        "title": wanted.title,
        "size": chosen.name,
        "about": chosen.about,
        "precision": chosen.precision,
        "cells": [_cell(cell, same) for cell, same in zip(wanted.cells, fitted, strict=True)],
        "runs": {key: found for key, found in entries.items() if found is not None},
    }


def keep(stored: Stored, place: Path) -> None:
    """Keep each run as a JSON file."""
    for key, found in stored["runs"].items():
        file = place / f"{key}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write_sealed(file, found)


def _cell(cell: Cell, same: list[Run]) -> dict[str, Any]:
    return {
        "row": cell.row,
        "column": cell.column,
        "paper": cell.paper,
        "dash": cell.dash,
        "metric": cell.metric,
        "baseline": cell.baseline,
        "changed": differences(same[0], cell.run),
        "runs": {str(run.seed): run.id for run in same},
    }


def entry(run: Run, *places: str | Path) -> Entry | None:
    """What came of a run, out of the first place that has it; None if it has not ended."""
    for place in places:
        found = _read(Path(place) / run.id) or _kept(Path(place) / f"{run.id}.json")
        if found is not None:
            return found
    return None


def _kept(file: Path) -> Entry | None:
    """What `keep` has written."""
    if not file.is_file():
        return None
    found: Entry = files.read_sealed(file)
    if not {"ended", "test", "data"} <= found.keys():
        raise UsageError(f"{file} does not hold what is kept of a run")
    return found


def _read(directory: Path) -> Entry | None:
    """What is to be kept of a run that has ended, out of its directory."""
    result = runs.result(directory)
    if result is None:
        return None
    carried = directory / TRANSFER
    return {
        **files.read_sealed(directory / "run.json"),
        "ended": result.ended,
        "steps": result.steps,
        "seconds": round(result.seconds, 2),
        "test": dict(result.test),
        "where": result.where,
        "transfer": files.read_json(carried) if carried.is_file() else None,
        "curve": thinned(runs.rows(directory)),
    }


def thinned(rows: Iterable[Mapping[str, Any]], points: int = POINTS) -> dict[str, Any]:
    """A learning curve of at most so many points: means over stretches of equal length.

    Returns:
        By split ``step``, ``loss`` and ``error``, each a list.

    Example:
        >>> rows = [{"split": "train", "step": i, "loss": i, "error": 50} for i in range(1, 5)]
        >>> thinned(rows, points=2)
        {'train': {'step': [2, 4], 'loss': [1.5, 3.5], 'error': [50.0, 50.0]}}
    """
    splits: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["split"] != "test":  # it is looked at once, and is no curve
            splits.setdefault(row["split"], []).append(row)
    return {split: _thinned(found, points) for split, found in splits.items()}


def _thinned(rows: list[Mapping[str, Any]], points: int) -> dict[str, list[float]]:
    width = -(-len(rows) // points)
    parts = [rows[i : i + width] for i in range(0, len(rows), width)]
    curve: dict[str, list[float]] = {"step": [part[-1]["step"] for part in parts]}
    for key in ("loss", "error"):
        means = [sum(row[key] for row in part) / len(part) for part in parts]
        curve[key] = [float(f"{mean:.5g}") for mean in means]
    return curve


def values(stored: Stored, cell: Mapping[str, Any]) -> dict[int, float | None]:
    """A cell's figure by seed; None for a run that did not converge."""
    found = {}
    for seed, key in cell["runs"].items():
        run = stored["runs"].get(key)
        if run is not None and _measured(run, cell["metric"]):
            found[int(seed)] = _value(run, cell["metric"])
    return found


def _measured(entry: Mapping[str, Any], metric: str) -> bool:
    """Whether there is a figure, or never will be one; features are carried over afterwards."""
    carried = metric.endswith("-accuracy") and entry["ended"] == "finished"
    return not carried or entry["transfer"] is not None


def _value(entry: Mapping[str, Any], metric: str) -> float | None:
    if metric.endswith("-accuracy") and entry["transfer"] is not None:
        return float(entry["transfer"]["accuracy"][metric.removesuffix("-accuracy")])
    if not converged(entry):
        return None
    if metric == "validation":
        return float(entry["curve"]["validation"]["error"][-1])
    return float(entry["test"][metric])


def converged(entry: Mapping[str, Any]) -> bool:
    """Whether a run ended with finite numbers and better than by chance."""
    if entry["ended"] != "finished":
        return False
    return better_than_chance(entry["test"]["error"], len(entry["data"]["classes"]))


def better_than_chance(error: float, classes: int) -> bool:
    """Whether an error in per cent is below that of a blind guess among so many classes."""
    return classes < 2 or error < CHANCE * 100 * (1 - 1 / classes)
