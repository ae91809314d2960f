"""Learning curves as columns of numbers, and the two ways to reduce their points.

Stored curves are averaged: runs of one schedule keep the same steps, so that seeds can be
averaged. Drawn curves keep their extremes: no spike is lost.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sortnet.errors import UsageError

COLUMNS = ("loss", "error", "rate", "gradient")
"""Metrics of a row; evaluations have only the first two."""
STORED = ("loss", "error")
DIGITS = 5
"""Significant digits of a stored value."""

Curve = Mapping[str, list[Any]]
"""``step`` and a column per metric; None where a row has no finite number."""


def finite(value: object) -> float | None:
    """Return a value as a finite float; None for anything else that a file may hold."""
    if type(value) is float:  # the usual case
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of hundreds of digits
        return None


def columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """Return the curves of a run by split; the test split, evaluated once, has none.

    Arguments:
        rows: As in ``metrics.jsonl``.

    Raises:
        UsageError: A row has no step.
    """
    splits: dict[str, list[Mapping[str, Any]]] = {}
    for i, row in enumerate(rows, 1):
        if type(step := row.get("step")) is not int or not 0 <= step < 2**53:
            raise UsageError(f"row {i} of the metrics has no step")
        splits.setdefault(str(row.get("split")), []).append(row)
    splits.pop("test", None)
    return {
        split: {
            "step": [row["step"] for row in found],
            **{name: [finite(row.get(name)) for row in found] for name in COLUMNS},
        }
        for split, found in splits.items()
    }


def average(curve: Curve, points: int) -> dict[str, list[Any]]:
    """Reduce a curve to at most so many points: means over stretches of equal length.

    Example:
        >>> average({"step": [1, 2, 3, 4], "loss": [1, 2, 3, 4], "error": [50] * 4}, points=2)
        {'step': [2, 4], 'loss': [1.5, 3.5], 'error': [50.0, 50.0]}
    """
    width = max(1, -(-len(curve["step"]) // points))
    starts = range(0, len(curve["step"]), width)
    reduced = {"step": [curve["step"][i : i + width][-1] for i in starts]}
    for name in STORED:
        reduced[name] = [_mean(curve[name][i : i + width]) for i in starts]
    return reduced


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return float(f"{sum(found) / len(found):.{DIGITS}g}") if found else None


def extremes(
    steps: Sequence[int], values: Sequence[float], limit: int
) -> tuple[list[int], list[float]]:
    """Keep the first and the last point and the minimum and maximum of each stretch.

    Points inside a constant stretch are dropped first: their neighbors say the same.

    Example:
        >>> extremes(range(9), [5, 1, 1, 1, 1, 9, 1, 1, 0], limit=6)
        ([0, 1, 5, 6, 8], [5, 1, 9, 1, 0])
    """
    import numpy as np

    y = np.asarray(values, dtype=float)
    bends = np.ones(len(y), dtype=bool)
    bends[1:-1] = (y[1:-1] != y[:-2]) | (y[1:-1] != y[2:])
    kept: list[int] = np.flatnonzero(bends).tolist()
    if len(kept) > limit:
        stretches = np.array_split(np.array(kept[1:-1]), max(1, (limit - 2) // 2))
        ends = [{int(s[y[s].argmin()]), int(s[y[s].argmax()])} for s in stretches]
        kept = [kept[0], *(i for pair in ends for i in sorted(pair)), kept[-1]]
    return [steps[i] for i in kept], [values[i] for i in kept]
