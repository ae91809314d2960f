"""The page and the tables compare the same runs in the same way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_runs import make, resnet

from sortnet.lab.experiments import results
from sortnet.lab.experiments.definitions import EXPERIMENTS
from sortnet.lab.experiments.sizes import size
from sortnet.lab.recipes import GATED
from sortnet.lab.report import tables
from sortnet.lab.report.contents import gather
from sortnet.lab.runs import Run

SEEDS = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ResNet-20 with the sum, SORT and gated SORT; the last seed of gated SORT stays at chance."""
    root = tmp_path_factory.mktemp("runs")
    for cell, level in zip(EXPERIMENTS["recipes"].cells, (8.3, 9.5, 7.9), strict=True):
        for seed in range(SEEDS):
            derive_seed = "gated" in cell.row and seed == SEEDS - 1
            run = size("mini").fit(cell.run, seed)
            make(root, run, level=89.9 if derive_seed else level, every=800, pictures=0)
    return root


def groups(root: Path) -> dict[str, dict[str, Any]]:
    """The page's configurations by the name of their runs' directory."""
    content = gather([root])
    named = {group["runs"][0]: group for group in content["groups"]}
    return {str(Path(content["runs"][i]["id"]).parent): group for i, group in named.items()}


def test_table_and_page_have_the_same_differences(root: Path) -> None:
    stored = results.collect("recipes", size("mini"), SEEDS, root)
    on_page = groups(root)
    lines = tables.comparisons(stored)
    assert len(lines) == 2
    for line in lines:
        row = line[0].partition(" \N{MINUS SIGN} ")[0]
        cell = stored.cell(row, "CIFAR-10")
        assert cell is not None
        gain = on_page[str(Path(cell.run.id).parent)]["gain"]
        assert line[2] == f"{gain['mean']:+.2f} [{gain['low']:+.2f}, {gain['high']:+.2f}]"
        assert line[3:5] == [f"{gain[p]:.2g}" for p in ("p", "adjusted_p")]
        assert line[5] == str(gain["pairs"]) == str(SEEDS - ("gated" in row))


def test_gated_runs_are_paired_with_their_sum_and_have_no_number_of_the_paper(root: Path) -> None:
    gated = groups(root)["cifar10/resnet20-sort-gated-x0.1"]
    assert gated["gain"]["mean"] == pytest.approx(-0.4, abs=0.3)
    assert gated["paper"] == []
    assert [p["value"] for p in groups(root)["cifar10/resnet20-x0.1"]["paper"]] == [7.72, 7.60]


@pytest.mark.parametrize(
    "other",
    [
        replace(resnet("sort", 0), precision="bfloat16"),
        replace(resnet("sort", 0), validation=1000),
        resnet("sort", 0, scale=0.2),
        replace(resnet("sort", 0), recipe=replace(GATED.scaled(0.1), warm_up=200)),
    ],
    ids=["precision", "validation", "scale", "warm-up"],
)
def test_runs_that_were_trained_otherwise_are_not_paired(other: Run, tmp_path: Path) -> None:
    make(tmp_path, resnet("sum", 0), every=800)
    make(tmp_path, other, every=800)
    assert [group["gain"] for group in gather([tmp_path])["groups"]] == [None, None]
