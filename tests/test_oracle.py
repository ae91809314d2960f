"""A sample of the oracle's cases; ``make oracle`` runs all of them."""

import pytest
from oracle import BLOCKS, Case, judge

EAGER = [Case(name, "sort", "channels_last", "float64") for name in BLOCKS]
EAGER += [Case(name, "gated", "contiguous", "float64", "formulas") for name in BLOCKS]
EAGER += [Case(name, "sort", "strided", "bfloat16", "formulas") for name in BLOCKS]
EAGER += [Case(name, "sort", "contiguous", "half", "formulas") for name in BLOCKS]
MODES = [
    Case("basic-projection", "sort", "contiguous", "float64", "export"),
    Case("basic-subsample", "sort", "contiguous", "float64", "checkpoint"),
    Case("basic", "sort", "channels_last", "bfloat16", "ddp"),
    Case("basic-projection", "gated", "contiguous", "float64", "frozen"),
    Case("basic", "sort", "contiguous", "float64", "cumulative"),
    Case("basic-projection", "gated", "contiguous", "float64", "double"),
    Case("pre-activation", "sort", "contiguous", "float64", "double"),
]
# Inductor chooses the layout by itself: contiguous input is what goes wrong first.
INDUCTOR = [
    Case("basic", "sort", "contiguous", "float64", "inductor"),
    Case("basic-subsample", "gated", "contiguous", "float64", "inductor"),
    Case("pre-activation", "sort", "contiguous", "bfloat16", "inductor"),
    Case("two-branch", "sort", "strided", "float64", "inductor"),
]
WHOLE = [
    Case("resnet20", "sort", "contiguous", "float64", "formulas", steps=3),
    Case("resnet20-xu", "gated", "channels_last", "float64", "formulas"),
    Case("wrn28", "sort", "channels_last", "bfloat16", "formulas"),
    Case("lenet", "sort", "channels_last", "bfloat16", "formulas"),
    Case("torchvision:resnet18", "sort", "contiguous", "float64", "formulas"),
    Case("timm:resnet10t", "gated", "channels_last", "float64", "formulas"),
]


@pytest.mark.usefixtures("small_kernels")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", [*EAGER, *MODES, *INDUCTOR, *WHOLE], ids=str)
def test_as_exact_as_the_plain_composition(case: Case) -> None:
    verdict = judge(case)
    assert verdict.passed, verdict
