"""Second-order terms and weights along a run, from its checkpoints."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sortnet import create_model
from sortnet.fusion import Fusion, kernels
from sortnet.lab.recipes import LENET
from sortnet.lab.runs import Run, train
from sortnet.lab.training import TrainerOptions
from tools import terms


def test_norms_by_hand() -> None:
    network = create_model("lenet", branched=True)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        weights = network.state_dict()  # shares memory with the parameters
        weights["conv1.branch1.0.weight"][0, 0, 0] = torch.tensor([1.0, 2.0, 2.0])
        weights["conv1.branch2.2.weight"][0, 0, 0, 0] = 4.0
    assert terms.norms(network) == {"conv1": 5, "conv2": 0, "conv3": 0, "fc4": 0, "fc5": 0}


def test_agreement_by_hand() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fusion = Fusion("sum")

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.fusion(x[:, 0], x[:, 1])
            return y

    images = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 0.0], [2.0, 3.0]])
    assert terms.agreement(Pair(), images) == {"fusion": 0.5}


def test_every_checkpoint_of_a_run_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = LENET.scaled(4 / LENET.steps)
    options = {"branched": True}
    run = Run("lenet", recipe, "sort", "digits", options=options, validation=100)
    with kernels.using("plain"):
        train(run, tmp_path / "runs", options=TrainerOptions(save_every=2))
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["terms", "runs"])
    terms.main()
    (steps,) = json.loads(terms.STORED.read_text()).values()
    kept = sorted(path.name for path in (tmp_path / "runs").rglob("step-*"))
    assert [f"step-{int(step):07d}" for step in steps] == kept
    assert len(kept) > 1
    for found in steps.values():
        assert [term["name"] for term in found["terms"]] == [f"conv{i}.fusion" for i in (1, 2, 3)]
        assert all(0 < term["share"] < 1 and term["sign"] == 1 for term in found["terms"])
    content = terms.STORED.read_bytes()
    monkeypatch.setattr(terms, "measured", lambda *_: pytest.fail("measured again"))
    terms.main()
    assert terms.STORED.read_bytes() == content


def test_table_has_the_mean_over_seeds_and_the_ratio_of_paired_runs() -> None:
    def found(share: float, norm: float) -> dict[str, object]:
        return {
            "terms": [{"name": f"conv{i}.fusion", "share": share} for i in (1, 2, 3)],
            "both": {f"conv{i}.fusion": norm / 100 for i in (1, 2, 3)},
            "norms": {"conv1": norm, "conv2": norm, "conv3": 2 * norm, "fc4": 1.0},
        }

    sort, plain = "cifar10/lenet-branched-sort-x/seed", "cifar10/lenet-branched-x/seed"
    stored = {
        f"{sort}0": {"10012": found(0.2, 6.0), "12500": found(0.9, 1.0)},  # 12500 is not shown
        f"{sort}1": {"9900": found(0.4, 3.0)},
        f"{plain}0": {"10000": found(0.0, 4.0)},
    }
    *_, row = terms.table(stored).splitlines()
    three = [" · ".join([x] * 3) for x in ("30.0", "4.5", "4.0", "1.50")]
    assert row == f"| CIFAR-10 | 10,000 | 2 | {' | '.join(three)} |"
