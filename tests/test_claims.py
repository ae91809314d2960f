"""Every claim has a check; checks can fail; verdicts follow the results and nothing else."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sortnet.fusion import Fusion, fuse
from sortnet.lab import claims, measure, paper
from sortnet.lab.claims import CHECKS
from sortnet.lab.claims import equations as operation
from sortnet.lab.claims import training_curves as curves
from sortnet.lab.claims.accuracy import CHECKS as ACCURACY
from sortnet.lab.claims.evidence import Evidence
from sortnet.lab.claims.finding import Context
from sortnet.lab.experiments.definitions import EXPERIMENTS
from sortnet.lab.experiments.results import CellResults, ExperimentResults
from sortnet.lab.experiments.sizes import SIZES
from sortnet.lab.recipes import RESNET, Section
from sortnet.lab.runs import Run, RunRecord, record
from sortnet.lab.runs.curves import Curve
from sortnet.lab.sweep.process import LAYERS

Value = Callable[[str, str, int], float | None]


def stored(name: str, value: Value, size: str = "mini", seeds: int = 3) -> ExperimentResults:
    """Results of an experiment as `value` of row, column and seed has them; None: diverged."""
    chosen, wanted = SIZES[size], EXPERIMENTS[name]
    cells = []
    for cell in wanted.cells:
        runs = [chosen.fit(cell.run, seed) for seed in range(seeds)]
        records = {run.seed: entry(run, value(cell.row, cell.column, run.seed)) for run in runs}
        cells.append(CellResults(cell, chosen.fit(cell.run), records))
    return ExperimentResults(wanted, chosen, tuple(cells))


def entry(run: Run, error: float | None) -> RunRecord:
    return RunRecord(
        run,
        Path(f"{run.id}.json"),
        data={"classes": list(range(10))},
        ended="diverged" if error is None else "finished",
        seconds=1.0,
        test={} if error is None else {"error": error, "error5": error},
        transfer=None if error is None else {"accuracy": dict.fromkeys(LAYERS, error)},
        curves={"validation": {"step": [1], "loss": [error], "error": [error]}},
    )


def verdict(name: str, *results: ExperimentResults) -> str:
    return CHECKS[name](Context("smoke", results=results)).verdict


def better(row: str, column: str, seed: int) -> float | None:
    """The product lowers the error, and alone does not converge; with noise from seed to seed."""
    if row == "product":
        return None
    second = "SORT" in row or "product" in row
    plain = row in ("LeNet", "BigNet", "AlexNet")
    return 20 + 3 * plain - 2 * second + 0.1 * seed + 0.05 * ((7 * seed) % 3) * second


def worse(row: str, column: str, seed: int) -> float | None:
    return 20 + 2 * ("SORT" in row or "product" in row) + 0.1 * seed * len(row) % 0.3


def noisy(row: str, column: str, seed: int) -> float | None:
    return 20.0 + (seed - 1) * (3 if "SORT" in row or "product" in row else -3)


def test_every_claim_has_a_check() -> None:
    assert set(CHECKS) == {claim.name for claim in paper.CLAIMS}


@pytest.mark.parametrize("name", operation.CHECKS)
def test_the_operation_is_what_the_paper_says(name: str) -> None:
    found = CHECKS[name](Context("smoke"))
    assert found.verdict == "holds", found.figures


@pytest.mark.parametrize("name", ["gradient", "consistent-responses"])
def test_a_wrong_operation_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(a: Tensor, b: Tensor) -> Tensor:
        return fuse(a, b, ("sum", "max"))

    monkeypatch.setattr(operation, "PROD", wrong)
    assert verdict(name) == "does not hold"


@pytest.mark.parametrize("name", ["sum-plus-product", "max-plus-product", "sort-beats-sum"])
def test_verdicts_follow_the_seeds(name: str) -> None:
    table = "table2" if name == "sort-beats-sum" else "table1"
    assert verdict(name, stored(table, better)) == "holds"
    assert verdict(name, stored(table, worse)) == "does not hold"
    assert verdict(name, stored(table, noisy)) == "not decided"
    assert verdict(name, stored(table, better, seeds=2)) == "not decided"
    assert verdict(name, stored(table, worse, seeds=2)) == "not decided"


def test_what_does_not_converge_is_told() -> None:
    """Better on two seeds is not better if the third one fails."""

    def failing(row: str, column: str, seed: int) -> float | None:
        fails = seed == 2 and row == "ResNet-56-SORT"
        return None if fails else better(row, column, seed)

    found = CHECKS["sort-beats-sum"](Context("smoke", results=[stored("table2", failing)]))
    assert found.verdict == "not decided"
    assert found.figures.count("did not converge on one seed") == 3  # datasets
    found = CHECKS["gain-grows-with-depth"](Context("smoke", results=[stored("depth", failing)]))
    assert "did not converge on one seed" in found.figures


def test_product_alone() -> None:
    name = "product-alone-diverges"
    assert verdict(name, stored("table1", better)) == "holds"
    assert verdict(name, stored("table1", worse)) == "does not hold"
    only_one = stored("table1", lambda *cell: (better if cell[1] == "BigNet*" else worse)(*cell))
    assert verdict(name, only_one) == "not decided"
    assert verdict(name, stored("table1", better, seeds=2)) == "not decided"


def test_transfer_is_better_when_higher() -> None:
    assert verdict("features-transfer", stored("table4", better)) == "does not hold"
    assert verdict("features-transfer", stored("table4", worse)) == "holds"


@pytest.mark.parametrize("name", ACCURACY)
def test_smoke_tests_decide_nothing(name: str) -> None:
    results = [stored(table, better, "smoke") for table in EXPERIMENTS]
    assert verdict(name, *results) == "not decided"


def test_the_longest_results_count() -> None:
    context = Context(
        "smoke", results=[stored("table1", worse), stored("table1", better, "paper")]
    )
    found = CHECKS["sum-plus-product"](context)
    assert found.verdict == "holds"
    assert "size paper: as in the paper" in found.figures


def test_curves_of_different_experiments_are_not_paired() -> None:
    """They may be of different lengths or precisions."""
    long = stored("figures", better, "paper")
    only = tuple(c if "SORT" in c.cell.row else replace(c, records={}) for c in long.cells)
    context = Context("smoke", results=[replace(long, cells=only), stored("table2", worse)])
    pair = Evidence.of(context, *curves.SOURCES).pair("ResNet-56-SORT", "ResNet-56", "CIFAR-10")
    assert pair is not None
    assert [cell.records[0].test["error"] for cell in (pair.base, pair.row)] == [20.0, 22.0]


def test_runs_at_the_papers_schedule_count_most() -> None:
    """Where there are any, also in Xu's style; other comparisons rest on shorter runs."""
    long, short = stored("evidence", better, "paper"), stored("table2", noisy)
    found = CHECKS["sort-beats-sum"](Context("smoke", results=[short, long])).figures
    found = found.replace("\N{MINUS SIGN}", "less")
    pairs = found.split("; ")
    for name in (
        "LeNet*-SORT less LeNet*, CIFAR-100, size paper -1.9",
        "ResNet-20-SORT, Xu's less ResNet-20, Xu's, CIFAR-10, size paper -1.9",
        "LeNet*-SORT less LeNet*, SVHN, size mini +0.00",
    ):
        assert any(pair.startswith(name) for pair in pairs), name
    assert "evidence, size paper: 0.25 of the schedule" in found
    assert "table2, size mini" in found


def test_features_of_curves() -> None:
    recipe = replace(RESNET, sections=(Section(0.1, 4), Section(0.01, 2)))
    loss = [3, 1, 3, 1, 1, 0.5]
    train: Curve = {"step": [1, 2, 3, 4, 5, 6], "loss": loss, "error": [9, 8, 7, 6, 5, 4]}
    held = {"step": [3, 6], "loss": [1, 1], "error": [40, 20]}
    both = {"train": train, "validation": held}
    entry = RunRecord(Run("resnet20", recipe), Path("seed0.json"), steps=6, curves=both)
    assert curves.roughness(entry) == 400  # 3 1 3 1: every change of the change is 4
    assert curves.held_out(entry) == 30
    assert curves.last_section(entry) == 20
    assert curves.at_loss(entry, 1.0) == 40
    assert curves.at_loss(entry, 0.6) == 20
    assert curves.at_loss(entry, 0.1) is None


def test_claims_are_walked_in_order_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [paper.claim("gradient"), paper.claim("sum-plus-product")]
    monkeypatch.setattr(paper, "CLAIMS", chosen)
    shown: list[tuple[str, int, int]] = []
    results = tmp_path / "results"
    for cell in EXPERIMENTS["table1"].cells:
        for seed in range(3):
            error = better(cell.row, cell.column, seed)
            record.write(entry(SIZES["mini"].fit(cell.run, seed), error), results)
    state = torch.get_rng_state()
    found = list(claims.claims("smoke", show=lambda *s: shown.append(s), stored=results))
    assert torch.equal(state, torch.get_rng_state())
    assert [v.verdict for v in found] == ["holds", "holds"]
    assert shown == [("gradient", 0, 2), ("sum-plus-product", 1, 2)]
    claims.write(found, tmp_path / "new" / "claims.json")
    again = list(claims.claims("smoke", stored=tmp_path, only=["sum-*"]))
    assert [v.claim.name for v in again] == ["sum-plus-product"]
    claims.write(again, tmp_path / "new" / "claims.json")
    (first, second) = json.loads((tmp_path / "new" / "claims.json").read_text())
    assert (first["verdict"], second["verdict"]) == ("holds", "not decided")
    with pytest.raises(ValueError, match="no claim matches 'sums'; there are gradient, sum-plus"):
        list(claims.claims("smoke", only=["sums"]))
    assert set(first) == {"name", "place", "text", "verdict", "figures"}
    assert first["text"] == chosen[0].statement


def test_gradients_of_a_linear_network_are_its_weights() -> None:
    linear = nn.Linear(12, 5)
    network = nn.Sequential(nn.Flatten(), linear)
    direction = torch.randn(5)
    found = measure.input_gradients(network, torch.randn(4, 3, 2, 2), direction)
    torch.testing.assert_close(found, (direction @ linear.weight).expand(4, -1))


def test_autocorrelation_by_hand() -> None:
    series = torch.tensor([[1.0, 0.0], [0.0, 2.0], [2.0, 1.0], [1.0, 1.0]])
    centered = [(0.0, -1.0), (-1.0, 1.0), (1.0, 0.0), (0.0, 0.0)]
    power = sum(a * a + b * b for a, b in centered) / 4
    pairs = zip(centered, centered[2:], strict=False)
    two = sum(a * c + b * d for (a, b), (c, d) in pairs) / 2
    expected = torch.tensor([1.0, two / power], dtype=torch.float64)
    torch.testing.assert_close(measure.autocorrelation(series, [0, 2]), expected)


def test_calibration_leaves_the_network_as_it_was() -> None:
    network = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    images = 5 + torch.randn(6, 3, 4, 4)
    found = measure.gradient_correlation(network, images, [1], points=8)
    assert found.shape == (1,)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_activity_by_hand() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fusion = Fusion("sum+prod")

        def forward(self, x: Tensor) -> Tensor:
            response: Tensor = self.fusion(x, torch.full_like(x, 2.0))
            return response

    network = Two()
    (found,) = measure.activity(network, torch.tensor([[0.0, 1.0, 3.0, 0.0]]))
    assert found.share == pytest.approx(8 / (8 + 12))  # products 0 2 6 0, sums 2 3 5 2
    assert found.active == 0.5
    assert found.sign == 1
    assert not network.fusion._forward_hooks


def test_sign_of_gated_terms_by_hand() -> None:
    fusion = Fusion("sum+prod", gate="zero", channels=2)
    with torch.no_grad():
        fusion.gate.copy_(torch.tensor([1.0, -3.0]))  # type: ignore[union-attr]

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fusion = fusion

        def forward(self, x: Tensor) -> Tensor:
            response: Tensor = self.fusion(x, x)
            return response

    (found,) = measure.activity(Twice(), torch.ones(1, 2, 1, 1))
    assert found.sign == pytest.approx((1 - 3) / (1 + 3))
