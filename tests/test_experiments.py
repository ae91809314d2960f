"""Experiments: every cell builds and learns, sweeps survive what happens to them."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cluster import until

from sortnet import files
from sortnet.cli import main
from sortnet.lab import measure, paper, runs
from sortnet.lab.experiments import reproduction
from sortnet.lab.experiments.definitions import EXPERIMENTS, Cell, Experiment
from sortnet.lab.experiments.sizes import SIZES, differences
from sortnet.lab.recipes import LENET, Section
from sortnet.lab.report import tables
from sortnet.lab.runs import Run
from sortnet.lab.runs.curves import average, columns
from sortnet.lab.sweep import grid
from sortnet.lab.sweep.local import Local
from sortnet.lab.training.failures import signals
from sortnet.networks import NETWORKS, create_model
from tools.scale import demand

RUNS = {run.id: run for experiment in EXPERIMENTS.values() for run in experiment.runs}
KINDS = {
    (run.network, run.fusion, tuple(sorted(run.options.items()))): run
    for first in RUNS.values()
    for run in (first, SIZES["mini"].fit(first), SIZES["smoke"].fit(first))
}


def test_every_number_of_the_paper_has_its_cell() -> None:
    """Except for the results that the paper cites from others."""
    own = Counter(r.value for r in paper.RESULTS if r.network in NETWORKS)
    cells = [EXPERIMENTS[f"table{i}"].cells for i in (1, 2, 3, 4)]
    assert Counter(cell.paper for table in cells for cell in table) == own
    assert sum(cell.dash for cell in EXPERIMENTS["table1"].cells) == 2


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_baselines_are_rows_of_the_same_column(name: str) -> None:
    cells = EXPERIMENTS[name].cells
    places = {(cell.row, cell.column) for cell in cells}
    assert len(places) == len(cells)
    assert all((c.baseline, c.column) in places for c in cells if c.baseline is not None)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}-{len(kind[2])}")
def test_every_cell_builds_and_takes_a_step(
    kind: tuple[str, str, tuple[tuple[str, Any], ...]],
) -> None:
    run = KINDS[kind]
    size = NETWORKS[run.network].size
    with torch.device("meta"):  # shapes only: nothing is computed
        network = create_model(run.network, 10, run.fusion, **run.options)
        images = torch.empty(2, 3, size, size)
        loss = F.cross_entropy(network(images), torch.zeros(2, dtype=torch.int64))
        torch.autograd.backward(loss)
    assert all(p.grad is not None and p.grad.shape == p.shape for p in network.parameters())


def test_a_gate_is_no_effort() -> None:
    run = Run("lenet", LENET, "sort", options={"branched": True})
    assert grid.effort(replace(run, options={**run.options, "gate": "zero"})) == grid.effort(run)


@pytest.mark.parametrize("size", SIZES)
def test_sizes_give_every_seed_a_directory_of_its_own(size: str) -> None:
    for experiment in EXPERIMENTS.values():
        plan = reproduction.plan(experiment.name, size, seeds=2, precision="float32")
        by_id = {run.id: run for run in plan.runs}
        for cell in experiment.cells:
            for seed in range(2):
                fitted = SIZES[size].fit(cell.run, seed)
                assert by_id[fitted.id] == fitted  # one id is one run
    assert differences(SIZES["paper"].fit(cell.run), cell.run) == []


def test_a_pattern_chooses_runs() -> None:
    small = reproduction.plan("table2", "mini", 2, only="cifar10/lenet*").runs
    assert {run.network for run in small} == {"lenet"}
    assert len(small) == 6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "table5"}, "unknown experiment 'table5'; there are table1, "),
        ({"size_": "huge"}, "unknown size 'huge'; there are smoke, mini, paper"),
        (
            {"only": "pets/*"},
            "no run of table1 matches 'pets/\\*'; an example of a run is digits/",
        ),
        ({"seeds": 0}, "seeds is 0, but must be 1 or more"),
    ],
)
def test_mistakes_are_one_line(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        reproduction.plan(**{"name": "table1", "size_": "smoke", **arguments})  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_an_experiment_that_learns_one_that_diverges_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(LENET, sections=(Section(1e-2, 80),), batch=16, clip=1.0)
    wild = replace(short, sections=(Section(1e30, 80),), clip=None)
    cells = (
        Cell("calm", "digits", Run("lenet", short, validation=20, evaluations=2), 11.1),
        Cell("wild", "digits", Run("lenet", wild, name="wild"), dash=True, baseline="calm"),
    )
    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment("tiny", "Tiny", cells))
    shown: list[grid.SweepProgress] = []
    kept = tmp_path / "results"
    todo = reproduction.plan("tiny", "paper", 1, out=tmp_path, kept=kept)
    with pytest.raises(ValueError, match="processes is 0, but must be 1 or more"):
        Local(0)
    stored: list[int] = []

    def show(progress: grid.SweepProgress) -> None:
        shown.append(progress)
        stored.append(len(list(kept.rglob("seed0.json"))))

    found = reproduction.reproduce(todo, Local(2), show=show)
    # each at once, so that a kill loses none; a result may be there before its process has ended
    assert all(n >= progress.ended for n, progress in zip(stored, shown, strict=True))
    assert [record.ended for record in found.records] == ["finished", "diverged"]
    assert shown[-1].share == 1
    assert shown[-1].ended == shown[-1].total == 2
    assert all(a.share <= b.share for a, b in pairwise(shown))
    assert any("wild" in (progress.news or "") for progress in shown)

    page = tables.markdown(found)
    test = runs.result(tmp_path / cells[0].run.id)
    assert test is not None
    assert f"| calm | {test.error:.2f} | 11.10 |" in page
    assert "| wild | \N{EN DASH} | \N{EN DASH} |" in page

    damaged = tmp_path / cells[0].run.id / "result.json"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    again = reproduction.reproduce(replace(todo, kept=None), Local(2))  # from a checkpoint
    assert [record.test for record in again.records] == [record.test for record in found.records]
    found = again
    reproduction.reproduce(todo, Local())

    monkeypatch.setattr(subprocess, "Popen", None)  # what has ended is not trained again
    assert reproduction.reproduce(replace(todo, kept=None), Local()) == found
    elsewhere = replace(todo, out=tmp_path / "elsewhere")
    times = {path: path.stat().st_mtime_ns for path in kept.rglob("*.json")}
    restored = reproduction.reproduce(elsewhere, Local())  # nor what is stored of runs now gone
    assert times == {path: path.stat().st_mtime_ns for path in kept.rglob("*.json")}
    assert [r.as_json() for r in restored.records] == [r.as_json() for r in found.records]
    (kept / f"{cells[0].run.id}.json").write_text("{}")
    with pytest.raises(ValueError, match=r"seed0\.json is not the record of a run"):
        reproduction.reproduce(elsewhere, Local())
    monkeypatch.undo()

    bad = (*cells, Cell("bad", "pets", Run("lenet", short, init="no/such/run", name="bad")))
    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment("tiny", "Tiny", bad))
    failed = r"^1 of 3 runs could not be trained, first digits/lenet-bad/seed0: no/such/run .*"
    with pytest.raises(OSError, match=failed):
        reproduction.reproduce(reproduction.plan("tiny", "paper", 1, out=tmp_path), Local(1))


def test_missing_data_is_one_line_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    root, out = tmp_path / "data", tmp_path / "runs"
    where = ["--size", "mini", "--data", str(root), "--out", str(out)]
    for experiment, name in (("table1", "cifar10"), ("table3", "imagenet"), ("roots", "cifar10")):
        assert main(["reproduce", experiment, *where]) == 1
        said = capsys.readouterr().err.strip()
        assert said.startswith(f"sortnet: {name} is not in {root}: ")
        assert f"`sortnet data get {name}" in said
        assert "\n" not in said
    assert not out.exists()
    with pytest.raises(FileNotFoundError, match="no/such/folder: no such folder of images"):
        grid.train_all([Run("lenet", LENET, data="no/such/folder")], out, engine=Local())


SWEEP = """
import sys
from dataclasses import replace
from sortnet.lab.recipes import LENET, Section
from sortnet.lab.runs import Run
from sortnet.lab.sweep.grid import Stopped, train_all
from sortnet.lab.sweep.local import Local
long = replace(LENET, sections=(Section(1e-2, 100_000),), batch=4)
try:
    train_all([Run("lenet", long)], sys.argv[1], engine=Local())
except Stopped as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_a_sweep_that_is_stopped_leaves_saved_runs(tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "digits/lenet/seed0"
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP, str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    until(lambda: any(row["step"] >= 100 for row in runs.rows(directory)))
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    if number == signal.SIGINT:
        assert said == ("stopped with 0 of 1 runs ended; run the same command to resume\n")
    until(lambda: runs.events(directory)[-1]["event"] == "stop")
    saved = runs.events(directory)[-1]["step"]
    assert (directory / "checkpoints" / f"step-{saved:07d}").is_dir()
    worker = json.loads((directory / "lock").read_text())["process"]

    def gone() -> bool:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{worker}/stat")  # one whose parent is gone may stay as a zombie
        return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"

    until(gone)


def test_only_a_second_sigint_ends_at_once() -> None:
    """SLURM, srun and torchrun send SIGTERM twice; the second must not interrupt the saving."""
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda *_: asked.append(0))
    try:
        with signals(asked.append):
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(number)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert asked == [signal.SIGTERM, signal.SIGTERM, signal.SIGINT]


SHARED = """
import sys
from dataclasses import replace
from sortnet.lab.recipes import LENET, Section
from sortnet.lab.runs import Run
from sortnet.lab.sweep.grid import train_all
from sortnet.lab.sweep.local import Local
recipe = replace(LENET, sections=(Section(1e-2, 20),), batch=4)
runs = [Run("lenet", recipe, name=f"n{i}") for i in range(2)]
def show(progress):
    if progress.news:
        print(progress, progress.news, sep=": ", flush=True)
found = train_all(runs, sys.argv[1], engine=Local(1), show=show)
assert [result.ended for result in found.values()] == ["finished", "finished"]
"""


def test_two_sweeps_of_one_directory_share_the_work(tmp_path: Path) -> None:
    """A third process has one of the runs until both have found that it does."""
    command = [sys.executable, "-c", SHARED, str(tmp_path)]
    first, second = tmp_path / "digits/lenet-n0/seed0", tmp_path / "digits/lenet-n1/seed0"
    with files.locked(first / "lock", "training"):
        sweeps = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for process in sweeps:
            assert process.stdout is not None
            told = process.stdout.readline()
            assert told.endswith("digits/lenet-n0/seed0 is trained elsewhere\n")
    for process in sweeps:
        process.communicate(timeout=200)
    assert [process.returncode for process in sweeps] == [0, 0]
    for directory in (first, second):  # each was trained once
        assert [event["event"] for event in runs.events(directory)] == ["start", "finish"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_precision_experiment_keeps_its_precisions(precision: str) -> None:
    """Whatever precision the sweep is given, and a tenth of the schedule for both networks."""
    chosen = replace(SIZES["mini"], precision=precision)
    assert [chosen.fit(cell.run, 1).id for cell in EXPERIMENTS["precision"].cells] == [
        "cifar10/lenet-branched-x0.1/seed1",
        "cifar10/resnet20-x0.1/seed1",
        "cifar10/lenet-branched-x0.1-bfloat16/seed1",
        "cifar10/resnet20-x0.1-bfloat16/seed1",
    ]


def test_stored_curves_are_means() -> None:
    rows = [{"split": "train", "step": i, "loss": i / 7, "error": 100 / i} for i in range(1, 1001)]
    rows += [{"split": "test", "step": 1000, "loss": 0, "error": 1}]
    curves = columns(rows)
    assert list(curves) == ["train"]
    curve = average(curves["train"], points=100)
    assert curve["step"] == list(range(10, 1001, 10))
    assert curve["error"][1] == pytest.approx(sum(100 / i for i in range(11, 21)) / 10, rel=1e-4)


def test_the_demands_of_imagenet_are_those_of_the_published_networks() -> None:
    """ResNet-18: 11.7 million parameters and 1.8 billion multiply-adds, as its papers say."""
    found = demand("resnet18")
    assert (found.parameters, found.batch, found.steps) == (11_689_512, 256, 600_000)
    assert found.work == pytest.approx(1.81e9, rel=0.01)
    plain = create_model("resnet18")
    images = (torch.zeros(n, 3, 224, 224) for n in (8, 16))
    few, many = (measure.saved_bytes(plain, batch) for batch in images)
    last = 4 * 512 * 7 * 7  # bytes of the last response, which SORT need not keep
    assert found.kept == (many - few) // 8 - last
    assert found.exchanged(1) == 0
    assert found.memory(8) == 12 * found.parameters + 32 * found.kept
