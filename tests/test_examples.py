"""The examples run as they stand, and say what they should."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
RUNS = {
    "resnext": (["--steps", "2", "--batch", "4"], "differ by 0\n"),
    "lstm": (["--steps", "5"], "sum+prod"),
    "densenet": (["--steps", "1"], "bit for bit: True"),
    "finetune": (["--steps", "2"], "outputs differ by 0\n"),
    "custom_fusion": (["--steps", "2"], "bounded"),
    "compare_own_data": (["--steps", "2", "--seeds", "2"], "2 seeds decide nothing"),
    "finetune_gates": (["--epochs", "0.05"], "outputs differ by 0\n"),
    "custom_dataset": ([], "of 36 images wrong"),  # all steps: it once diverged
}


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_examples_run(name: str) -> None:
    flags, says = RUNS[name]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *flags],
        env=os.environ | {"SORTNET_KERNELS": "plain", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert says in done.stdout
    assert done.stderr == ""


def test_with_the_sum_the_cell_is_pytorchs() -> None:
    example: dict[str, Any] = runpy.run_path(str(EXAMPLES / "lstm.py"))
    cell, theirs = example["LSTMCell"](3, 8, "sum"), nn.LSTMCell(3, 8)
    with torch.no_grad():
        theirs.weight_ih.copy_(cell.input.weight)
        theirs.weight_hh.copy_(cell.state.weight)
        theirs.bias_ih.copy_(cell.bias)
        theirs.bias_hh.zero_()
    x, h, c = torch.randn(5, 3), torch.randn(5, 8), torch.randn(5, 8)
    torch.testing.assert_close(cell(x, h, c), theirs(x, (h, c)))
    sort = example["LSTMCell"](3, 8, "sort")
    sort.load_state_dict(cell.state_dict())
    assert not torch.allclose(sort(x, h, c)[0], cell(x, h, c)[0])
