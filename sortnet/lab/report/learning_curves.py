"""Learning curves as figures: Figures 3 and 4, with mean and band over seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sortnet.errors import UsageError
from sortnet.lab.experiments.results import CellResults, ExperimentResults
from sortnet.lab.report.style import COLORS, GREY, canvas, save, styled
from sortnet.lab.runs import RunRecord
from sortnet.lab.runs.curves import Curve
from sortnet.lab.statistics import summary

COLUMNS = 3
ZOOM = 0.6
"""The inset shows training after this fraction of the steps."""
INSET = 0.44
"""Lower edge of the inset, as a fraction of the axis."""


@styled
def curves(results: ExperimentResults, path: Path) -> list[Path]:
    """Draw the curves of every pair of rows that an experiment compares.

    Arguments:
        results: With at least one cell and its baseline.
        path: The figure, without suffix.

    Raises:
        UsageError: There is no such pair.
    """
    panels = [
        (base, cell)
        for cell, base in results.pairs()
        if cell.cell.metric == "error" and _drawable(base) and _drawable(cell)
    ]
    if not panels:
        raise UsageError(f"{results.source}: there are no two runs to compare yet")
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = canvas(rows, columns, max(3.8, 3.1 * columns), 2.6 * rows + 0.6)
    for axis, pair in zip(axes.flat, panels, strict=False):
        _panel(axis, pair)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for row in axes:
        row[0].set_ylabel("error (%)")
    _legend(figure, 4 if columns > 2 else 2)
    return save(figure, path)


def _drawable(cell: CellResults) -> list[RunRecord]:
    return [found for found in cell.records.values() if found.curves.get("train")]


def _panel(axis: Any, pair: tuple[CellResults, CellResults]) -> None:  # noqa: ANN401
    plain, second = pair
    inset = axis.inset_axes((0.5, INSET, 0.47, 0.5))
    low, high, last, below, top = 100.0, 0.0, 1.0, 0.0, 0.0
    for fusion, cell in (("sum", plain), ("sort", second)):
        for split in ("train", "validation"):
            records = _drawable(cell)
            drawn = mean_curve([r.curves[split] for r in records if split in r.curves])
            if drawn is None:
                continue
            x, mean, spread = drawn
            last = max(last, x[-1])
            for target in (axis, inset):
                _draw(target, drawn, fusion, split)
            late = [i for i, step in enumerate(x) if step >= ZOOM * x[-1]]
            below = max([below, *(v for s, v in zip(x, mean, strict=True) if s >= x[-1] / 2.2)])
            top = max(top, *mean)
            low = min([low, *(mean[i] - spread[i] for i in late)])
            high = max([high, *(mean[i] + spread[i] for i in late)])
    for boundary in _boundaries(_drawable(plain)[0]):
        axis.axvline(boundary, color="0.8", lw=0.8, zorder=0)
    margin = 0.08 * (high - low) + 0.05
    inset.set(xlim=(ZOOM * last, last), ylim=(max(0, low - margin), high + margin))
    inset.tick_params(labelsize=6.5, length=2)
    inset.set_xticks([])
    for spine in inset.spines.values():
        spine.set(visible=True, color=GREY, linewidth=0.6)
    axis.indicate_inset_zoom(inset, edgecolor=GREY, linewidth=0.6, alpha=0.8)
    top = max(top, below / (INSET - 0.06))  # the inset must not hide the curves under it
    axis.set(xlim=(0, last), ylim=(0, top), xlabel="steps")
    axis.set_yticks([tick for tick in axis.get_yticks() if tick <= min(100, top)])
    titles = [f"{one.cell.row}: {_final(one)}" for one in pair]
    axis.set_title(f"{plain.cell.column}\n{titles[0]}, {titles[1]}", fontsize=8)
    if last >= 2000:
        axis.set_xlabel("steps (thousands)")
        ticks = [tick for tick in axis.get_xticks() if 0 <= tick <= last]
        axis.set_xticks(ticks, [f"{tick / 1000:g}" for tick in ticks])


def _draw(axis: Any, drawn: tuple[Any, Any, Any], fusion: str, split: str) -> None:  # noqa: ANN401
    x, mean, spread = drawn
    held = split == "validation"
    axis.plot(x, mean, "-" if held else ":", color=COLORS[fusion], lw=1.4 if held else 0.9)
    axis.fill_between(x, mean - spread, mean + spread, color=COLORS[fusion], alpha=0.15, lw=0)


def mean_curve(curves: Sequence[Curve]) -> tuple[Any, Any, Any] | None:
    """Return steps, mean error and deviation over seeds, as far as all of them go."""
    import numpy as np

    length = min((len(curve["step"]) for curve in curves), default=0)
    if length == 0:
        return None
    values = np.asarray([curve["error"][:length] for curve in curves], dtype=float)
    spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros(length)
    return np.asarray(curves[0]["step"][:length], dtype=float), values.mean(0), spread


def _boundaries(one: RunRecord) -> list[int]:
    steps = [section.steps for section in one.run.recipe.sections]
    return [sum(steps[: i + 1]) for i in range(len(steps) - 1)]


def _final(cell: CellResults) -> str:
    """Return the final test error, which the paper has in its legends."""
    mean = summary(list(cell.values.values())).mean
    return "\N{EN DASH}" if mean is None else f"{mean:.2f}"


def _legend(figure: Any, columns: int) -> None:  # noqa: ANN401
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=COLORS[fusion], ls=style, label=f"{name}, {what}")
        for fusion, name in (("sum", "sum"), ("sort", "SORT"))
        for style, what in (("-", "held-out images"), (":", "training images"))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
