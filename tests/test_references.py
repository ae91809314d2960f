"""A run's baseline and the paper's number for it, by the one rule that everything uses."""

from dataclasses import replace
from typing import Any

import pytest

from sortnet.lab.experiments.baselines import PaperValue, baseline, paper_values, training_key
from sortnet.lab.experiments.definitions import EXPERIMENTS, Cell
from sortnet.lab.experiments.sizes import SIZES, differences
from sortnet.lab.recipes import BIGNET, BVLC, GATED, IMAGENET_RESNET, LENET, RESNET, WRN, XU
from sortnet.lab.runs import Run

SUM = Run("resnet20", RESNET, "sum", "cifar10")


@pytest.mark.parametrize(
    ("changes", "paired"),
    [
        ({"fusion": "sort"}, True),
        ({"fusion": "max"}, True),
        ({"fusion": "sort", "recipe": GATED}, True),
        ({"fusion": "sort", "options": {"gate": "zero"}, "name": "gate"}, True),
        ({"fusion": "sort", "options": {"eps": 1e-3, "branched": False}}, True),
        ({"fusion": "sort", "evaluations": 4, "seed": 7}, True),
        ({"fusion": "sort", "precision": "bfloat16"}, False),
        ({"fusion": "sort", "recipe": XU}, False),
        ({"fusion": "sort", "recipe": RESNET.scaled(0.5)}, False),
        ({"fusion": "sort", "options": {"style": "xu"}}, False),
        ({"fusion": "sort", "data": "cifar100"}, False),
        ({"fusion": "sort", "validation": 1000}, False),
    ],
)
def test_a_baseline_differs_in_the_fusion_alone(changes: dict[str, Any], paired: bool) -> None:
    base = baseline(replace(SUM, **changes))
    assert base is not None
    assert base.seed == changes.get("seed", 0)
    assert (training_key(base) == training_key(SUM)) == paired
    assert baseline(base) is None


@pytest.mark.parametrize(
    ("run", "values"),
    [
        (SUM, [(7.72, "Table 2"), (7.60, "Table 1")]),
        (replace(SUM, precision="bfloat16"), [(7.72, "Table 2"), (7.60, "Table 1")]),
        (replace(SUM, recipe=XU, options={"style": "xu"}), [(7.72, "Table 2"), (7.60, "Table 1")]),
        (replace(SUM, fusion="root"), [(None, "Table 1")]),
        (replace(SUM, fusion="sort", recipe=GATED), []),
        (replace(SUM, fusion="sort", options={"gate": "one"}), []),
        (replace(SUM, recipe=GATED), [(7.72, "Table 2"), (7.60, "Table 1")]),  # it has no gate
        (replace(SUM, data="digits"), []),
        (replace(SUM, freeze=("layer1.*",)), []),
        (Run("wrn28", WRN, "sum", "svhn", options={"width": 2}), []),
        (Run("lenet", LENET, "sum", "cifar10"), [(14.37, "Table 2")]),
        (Run("resnet18", IMAGENET_RESNET, "sort", "imagenet"), [(29.95, "Table 3")]),
        (
            Run("bignet", BIGNET, data="cifar10", options={"branched": True, "head": "compact"}),
            [(8.01, "section 3.4")],
        ),
    ],
)
def test_the_paper_s_numbers_are_for_what_it_ran(
    run: Run, values: list[tuple[float | None, str]]
) -> None:
    assert paper_values(run) == [PaperValue(value, place, True) for value, place in values]


def test_another_schedule_than_the_paper_s_is_told() -> None:
    for recipe in (RESNET.scaled(0.1), replace(RESNET, batch=50), replace(RESNET, warm_up=9)):
        found = paper_values(replace(SUM, recipe=recipe))
        assert [value.same_schedule for value in found] == [False, False]
    (alexnet,) = paper_values(Run("alexnet", BVLC, "sum", "imagenet"))
    assert not alexnet.same_schedule
    quarter = SIZES["paper"].fit(replace(SUM, recipe=RESNET.scaled(0.25)))
    assert differences(quarter, quarter) == ["0.25 of the schedule"]


def test_transferred_features_have_their_numbers() -> None:
    run = Run("alexnet", BVLC, "sort", "imagenet", options={"branched": True})
    assert [value.value for value in paper_values(run, "fc6-accuracy")] == [77.12]
    assert [value.value for value in paper_values(run, "error5")] == [14.46]
    assert paper_values(run, "validation") == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "precision"])
def test_rows_of_a_table_are_paired_by_the_rule(name: str, size: str) -> None:
    """Also when a size has changed the runs; heads are compared with the head they replace."""
    cells = EXPERIMENTS[name].cells
    places: dict[tuple[str | None, str], Cell] = {(c.row, c.column): c for c in cells}
    for cell in cells:
        run, base = SIZES[size].fit(cell.run), baseline(SIZES[size].fit(cell.run))
        if "head" in run.options or cell.baseline is None:
            assert base is None or name in ("styles", "attempts")
            continue
        assert base is not None
        found = SIZES[size].fit(places[cell.baseline, cell.column].run)
        assert training_key(found) == training_key(base)
