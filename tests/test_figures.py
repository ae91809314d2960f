"""Figures are drawn from what they are about, as SVG and PNG, the same each time."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from sortnet.fusion import Fusion
from sortnet.lab.experiments import figure_data as experiments
from sortnet.lab.experiments.definitions import EXPERIMENTS
from sortnet.lab.experiments.results import CellResults, ExperimentResults
from sortnet.lab.experiments.sizes import SIZES
from sortnet.lab.recipes import Section
from sortnet.lab.report import figures
from sortnet.lab.report import learning_curves as learning
from sortnet.lab.runs import RunRecord

CORRELATION = {
    "lags": [1, 2, 3],
    "series": [
        {"name": name, "fusion": fusion, "by_seed": [[0.9, 0.5, 0.1], [0.8, 0.4, 0.0]]}
        for name in ("ResNet-20", "ResNet-56")
        for fusion in ("sum", "sort")
    ],
}
GROWTH = {
    "about": "three steps",
    "series": [
        {"name": "sum", "loss": [2.3, 2.0, 1.8], "growth": [1.0, 1.01, 1.02]},
        {"name": "SORT, gates", "loss": [9.0, 4.0, 2.3], "growth": [1.1, 1.9, 2.4]},
    ],
}
ACTIVITY = {
    "about": "first weights",
    "series": [
        {"name": "LeNet*-SORT", "share": [0.1, 0.2, 0.15], "active": [0.3, 0.2, 0.4]},
        {"name": "one block", "share": [0.1], "active": [0.3]},
    ],
}


def curve(final: float, seed: int, steps: int) -> dict[str, Any]:
    """Errors that fall towards `final`, in two sections, as a run of a seed would have them."""
    at = [steps * (i + 1) // 40 for i in range(40)]
    train = [final + 60 / (1 + i) + 3 * ((i + seed) % 3) * (i < 20) for i in range(40)]
    held = [value + 2 for value in train[1::2]]
    return {
        "train": {"step": at, "error": train, "loss": [value / 30 for value in train]},
        "validation": {"step": at[1::2], "error": held, "loss": held},
    }


def stored(name: str, seeds: int, steps: int) -> ExperimentResults:
    """What `collect` would give for an experiment, with made-up runs: SORT is one better."""
    sections = tuple(Section(rate, steps // 2) for rate in (1.0, 2.0))
    cells = []
    for cell in EXPERIMENTS[name].cells:
        run, final = replace(cell.run, recipe=replace(cell.run.recipe, sections=sections)), 10.0
        final -= "SORT" in cell.row
        records = {
            seed: RunRecord(
                run,
                Path(f"seed{seed}.json"),
                data={"classes": list("0123456789")},
                ended="finished",
                steps=steps,
                test={"error": final + 0.1 * seed},
                curves=curve(final, seed, steps),
            )
            for seed in range(seeds)
        }
        cells.append(CellResults(cell, run, records))
    return ExperimentResults(EXPERIMENTS[name], SIZES["mini"], tuple(cells))


DRAWINGS: dict[str, tuple[Callable[[Path], list[Path]], list[str]]] = {
    "modules": (figures.modules, ["3 x 3 conv, 32", "3 x 3 conv, 16", "batch norm", "ReLU"]),
    "surfaces": (figures.surfaces, ["1.5", "8"]),
    "correlation": (
        lambda path: figures.correlation(CORRELATION, path),
        ["ResNet-20", "ResNet-56", "SORT", "layers"],
    ),
    "activity": (lambda path: figures.activity(ACTIVITY, path), ["LeNet*-SORT", "one block"]),
    "growth": (lambda path: figures.growth(GROWTH, path), ["gates", "convolution's norm"]),
    "curves": (
        lambda path: learning.curves(stored("bilinear", 2, 6000), path),
        ["BigNet*: 10.05, BigNet*-SORT: 9.05", "steps (thousands)", "held-out images"],
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_figures_are_drawn_twice_alike(name: str, tmp_path: Path) -> None:
    draw, texts = DRAWINGS[name]
    svg, png = draw(tmp_path / "new" / name)
    assert (svg.suffix, png.suffix) == (".svg", ".png")
    assert png.read_bytes().startswith(b"\x89PNG")
    drawn = svg.read_text()
    for text in texts:
        assert text in drawn
    (again, _) = draw(tmp_path / "again")
    assert re.sub("again", name, again.read_text()) == drawn


def test_drawing_leaves_matplotlib_as_it_was(tmp_path: Path) -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    figures.activity(ACTIVITY, tmp_path / "figure")
    assert dict(mpl.rcParams) == before


def test_blocks_are_labelled_by_what_they_are() -> None:
    assert figures.label(nn.Conv2d(3, 8, 7)) == "7 x 7 conv, 8"
    assert figures.formula(Fusion("max+prod"), "a", "b") == r"$\max(a, b) + a \odot b$"
    root = figures.formula(Fusion("sort", block="residual"), "x", "f")
    assert root == r"$x + f + \sqrt{\sigma(x) \odot \sigma(f) + \varepsilon}$"


def test_curves_need_two_runs_to_compare(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="figures, size mini: there are no two runs to compare"):
        learning.curves(stored("figures", 0, 100), tmp_path / "figure")


def test_the_first_steps_blow_up_weights_only_without_a_gate() -> None:
    """The cause of SORT's slow start, as docs/results.md describes it."""
    found = {series["name"]: series for series in experiments.growth(steps=8, batch=16)["series"]}
    plain, sort, gated = (found[name] for name in ("sum", "SORT", "SORT, gates from zero"))
    assert sort["growth"][-1] > 1.3 > 1.1 > max(plain["growth"][-1], gated["growth"][-1])
    assert sort["loss"][0] > 1.5 * plain["loss"][0] == 1.5 * gated["loss"][0]
