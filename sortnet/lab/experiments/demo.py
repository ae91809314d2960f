"""What `sortnet demo` trains: LeNet, its two-branch form, and that form with SORT, on digits."""

from dataclasses import replace

from sortnet.lab.recipes import LENET
from sortnet.lab.runs import Run

_RECIPE = replace(LENET.scaled(0.005), batch=50)

RUNS = (
    Run("lenet", _RECIPE, validation=200),
    Run("lenet", _RECIPE, options={"branched": True}, validation=200),
    Run("lenet", _RECIPE, "sort", options={"branched": True}, validation=200),
)
