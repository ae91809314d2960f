"""Recipes: the paper's schedules, and the learning rate as a function of the step."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortnet.lab.recipes import (
    ALEXNET,
    BIGNET,
    IMAGENET_RESNET,
    LENET,
    RECIPES,
    RESNET,
    SCRATCH,
    WRN,
    Recipe,
    default_recipe,
)

recipes = st.sampled_from(list(RECIPES.values()))


def test_models_of_other_libraries_have_a_default_recipe() -> None:
    """`sortnet train torchvision:resnet18`, as its help shows it."""
    assert default_recipe("torchvision:resnet18") is SCRATCH
    with pytest.raises(ValueError, match="unknown network 'resnet19'; there are lenet, bignet"):
        default_recipe("resnet19")


def test_schedules_are_as_long_as_the_paper_says() -> None:
    lengths = {"lenet": 70_000, "bignet": 120_000, "resnet": 64_000, "wrn": 64_000}
    lengths |= {"alexnet": 450_000, "imagenet-resnet": 600_000}
    assert {name: RECIPES[name].steps for name in lengths} == lengths
    assert [r.batch for r in (LENET, BIGNET, RESNET, WRN)] == [100] * 4
    assert [r.batch for r in (ALEXNET, IMAGENET_RESNET)] == [256] * 2


@given(recipes, st.floats(1e-5, 3))
def test_scaling_keeps_the_sections(recipe: Recipe, factor: float) -> None:
    scaled = recipe.scaled(factor)
    assert [s.rate for s in scaled.sections] == [s.rate for s in recipe.sections]
    assert all(s.steps >= 1 for s in scaled.sections)
    assert abs(scaled.steps - factor * recipe.steps) <= len(recipe.sections)
    assert scaled.scale == factor
    assert scaled.ours == recipe.ours


@given(recipes, st.data())
def test_rate_falls_by_ten_from_section_to_section(recipe: Recipe, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, recipe.steps - 2))
    drop = recipe.learning_rate(step) / recipe.learning_rate(step + 1)
    assert drop == pytest.approx(1) or drop == pytest.approx(10)
    ends = [sum(s.steps for s in recipe.sections[:i]) for i in range(1, len(recipe.sections))]
    assert (drop > 2) == (step + 1 in ends)


def test_warm_up_rises_to_the_rate() -> None:
    recipe = Recipe("warm", LENET.sections, warm_up=500)
    rates = [recipe.learning_rate(step) for step in range(600)]
    assert rates[0] == pytest.approx(1e-2 / 500)
    assert rates == sorted(rates)
    assert rates[499:] == [1e-2] * 101


@pytest.mark.parametrize("step", [-1, 70_000])
def test_there_is_no_step_outside(step: int) -> None:
    with pytest.raises(ValueError, match="steps 0 to 69999"):
        LENET.learning_rate(step)


def test_what_the_paper_does_not_say_is_marked() -> None:
    assert {"momentum", "decay", "pad", "flip", "clip"} <= set(RESNET.ours)
    assert not {"sections", "batch"} & set(RESNET.ours)


def test_reading_recipes_and_the_paper_does_not_need_torch() -> None:
    code = "import sys, sortnet.lab.paper, sortnet.lab.recipes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
