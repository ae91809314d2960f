"""Curves of a run, thinned so that a page of many runs stays small and no spike is lost."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sortnet.errors import UsageError

METRICS = {
    "validation error": ("validation", "error"),
    "train loss": ("train", "loss"),
    "train error": ("train", "error"),
    "learning rate": ("train", "rate"),
    "gradient norm": ("train", "gradient"),
}
"""What can be drawn: by name, the split and the entry of a row of metrics."""

DIGITS = 5
"""Significant digits that are kept of a value."""

Curve = tuple[list[int], list[float]]


def number(value: object) -> float | None:
    """A value as a finite number; nothing for whatever else a file may hold."""
    if type(value) is float:  # nearly always
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of hundreds of digits
        return None


def curves(rows: Sequence[Mapping[str, Any]], limit: int) -> dict[str, list[list[float]]]:
    """The curves of a run: by metric, how far each step is from the last one, and the values.

    Arguments:
        rows: As `sortnet.lab.runs.rows` reads them.
        limit: How many points of a curve are kept at most.

    Raises:
        ValueError: A row is none.
    """
    splits: dict[str, list[Mapping[str, Any]]] = {}
    for i, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not _is_step(row.get("step")):
            raise UsageError(f"row {i} of the metrics has no step")
        splits.setdefault(str(row.get("split")), []).append(row)
    found = {}
    for name, (split, entry) in METRICS.items():
        steps, values = _column(splits.get(split, []), entry)
        if len(steps):
            found[name] = _packed(*thin(steps, values, limit))
    return found


def _is_step(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _column(rows: Sequence[Mapping[str, Any]], entry: str) -> Curve:
    """The steps and values of all rows that have a number under a name."""
    values = [number(row.get(entry)) for row in rows]
    pairs = [(row["step"], v) for row, v in zip(rows, values, strict=True) if v is not None]
    return [step for step, _ in pairs], [value for _, value in pairs]


def thin(steps: Sequence[int], values: Sequence[float], limit: int) -> Curve:
    """Keep the first and the last point and, of each stretch, the least and the largest.

    A point in a level stretch says nothing that its neighbours do not say and goes first.

    Example:
        >>> thin(range(9), [5, 1, 1, 1, 1, 9, 1, 1, 0], limit=6)
        ([0, 1, 5, 6, 8], [5, 1, 9, 1, 0])
    """
    y = np.asarray(values, dtype=float)
    bends = np.ones(len(y), dtype=bool)
    bends[1:-1] = (y[1:-1] != y[:-2]) | (y[1:-1] != y[2:])
    kept: list[int] = np.flatnonzero(bends).tolist()
    if len(kept) > limit:
        stretches = np.array_split(np.array(kept[1:-1]), max(1, (limit - 2) // 2))
        ends = [{int(s[y[s].argmin()]), int(s[y[s].argmax()])} for s in stretches]
        kept = [kept[0], *(i for pair in ends for i in sorted(pair)), kept[-1]]
    return [steps[i] for i in kept], [values[i] for i in kept]


def _packed(steps: list[int], values: list[float]) -> list[list[float]]:
    """Steps as differences and values of few digits: half the size."""
    gaps = [b - a for a, b in zip([0, *steps], steps, strict=False)]
    return [list(gaps), [rounded(value) for value in values]]


def rounded(value: float) -> float:
    """A value of `DIGITS` significant digits, without a needless point."""
    short = float(f"{value:.{DIGITS}g}")
    if math.isinf(short):  # the largest numbers are rounded up to it
        return value
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
