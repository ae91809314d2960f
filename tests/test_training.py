"""The training loop: its steps, non-finite values, and several processes."""

import io
import json
import math
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from two_processes import together

from sortnet.fusion import kernels
from sortnet.lab import data, runs
from sortnet.lab.data import Batch
from sortnet.lab.recipes import Recipe, Section
from sortnet.lab.runs import Run, execute, fresh, train
from sortnet.lab.training import (
    Callback,
    Diverged,
    Terminal,
    Trainer,
    TrainerOptions,
    checkpoint,
    environment,
    first_step,
    init_distributed,
)
from sortnet.lab.training.failures import first_bad_module
from sortnet.lab.training.resume import restore, resume

RECIPE = Recipe("short", (Section(0.05, 6), Section(0.005, 4)), batch=16, nesterov=True)
RUN = Run("lenet", RECIPE)


class Log(Callback):
    """Stores the rows and notes it is called with."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def row(self, row: dict[str, Any]) -> None:
        """A row."""
        self.rows.append(row)

    def note(self, text: str) -> None:
        """A note."""
        self.notes.append(text)


def trainer(tmp_path: Path, recipe: Recipe = RECIPE, **more: Any) -> Trainer:  # noqa: ANN401
    dataset = data.load("digits")
    network = fresh(replace(RUN, recipe=recipe), dataset)
    return Trainer(network, dataset, recipe, seed=0, directory=tmp_path, **more)


def test_a_step_is_sgd_as_written_down(tmp_path: Path) -> None:
    """Nesterov's momentum, weight decay and clipping, against the formulas, in float64."""
    recipe = replace(RECIPE, clip=0.5, decay=0.01, warm_up=4)
    ours = trainer(tmp_path, recipe)
    ours.network.double()
    theirs = fresh(Run("lenet", recipe), ours.dataset).double()
    velocity = [torch.zeros_like(p) for p in theirs.parameters()]
    for step in range(3):
        images, labels = torch.randn(16, 3, 32, 32).double(), torch.randint(10, (16,))
        ours.step(Batch(images, labels))
        loss = nn.functional.cross_entropy(theirs(images), labels)
        gradients = torch.autograd.grad(loss, list(theirs.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        rate = 0.05 * min(1, (step + 1) / 4)
        for p, g, v in zip(theirs.parameters(), gradients, velocity, strict=True):
            g = g * min(1, 0.5 / (norm + 1e-6)) + 0.01 * p.detach()
            v.mul_(0.9).add_(g)
            p.data -= rate * (g + 0.9 * v)
    for p, q in zip(ours.network.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


def test_batch_normalization_can_have_its_own_decay(tmp_path: Path) -> None:
    dataset = data.load("digits")
    recipe = replace(RECIPE, decay=1e-3, norm_decay=5e-4)
    network = fresh(Run("resnet20", recipe), dataset)
    groups = Trainer(network, dataset, recipe, seed=0, directory=tmp_path).optimizer.param_groups
    counts = {group["weight_decay"]: len(group["params"]) for group in groups}
    assert counts == {1e-3: 21, 5e-4: 38}  # 19 convolutions, a classifier; 19 normalizations


def _take_a_step(rank: int, directory: Path) -> None:
    recipe = replace(RECIPE, batch=100)
    dataset = data.load("digits")
    with init_distributed() as distributed:
        network = fresh(replace(RUN, recipe=recipe), dataset).double()
        ours = Trainer(
            network, dataset, recipe, seed=0, directory=directory, distributed=distributed
        )
        batch = next(ours.batches())
        assert len(batch.labels) == 50
        ours.step(Batch(batch.images.double(), batch.labels))
        if rank == 0:
            directory.mkdir()
        ours.save()


def test_two_processes_take_the_step_of_one(tmp_path: Path) -> None:
    """50 images each, or 100 in one process: the same step, to 1e-10."""
    assert together(_take_a_step, tmp_path / "two") == [0, 0]
    alone = trainer(tmp_path, replace(RECIPE, batch=100))
    alone.network.double()
    batch = next(alone.batches())
    alone.step(Batch(batch.images.double(), batch.labels))
    found, _ = checkpoint.latest(tmp_path / "two" / "checkpoints")
    assert found is not None
    for name, ours in found.tensors("model").items():
        torch.testing.assert_close(ours, alone.network.state_dict()[name], rtol=0, atol=1e-10)


def test_runs_with_and_without_sort_start_alike() -> None:
    dataset = data.load("digits")
    plain, fused = (fresh(Run("resnet20", RECIPE, fusion), dataset) for fusion in ("sum", "sort"))
    other = fresh(Run("resnet20", RECIPE, seed=1), dataset)
    for (name, p), q, r in zip(
        plain.named_parameters(), fused.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(p, q)
        assert "conv" not in name or not torch.equal(p, r)


def test_a_run_learns_and_is_tested_once(tmp_path: Path) -> None:
    log = Log()
    recipe = replace(RECIPE, sections=(Section(0.02, 60),), batch=32)
    run = Run("lenet", recipe, validation=100, evaluations=3)
    result = train(run, tmp_path, callbacks=[log])
    assert result.ended == "finished"
    assert result.error < 60  # chance is 90
    rows = runs.rows(tmp_path / run.id)
    assert rows == log.rows
    assert [row["step"] for row in rows if row["split"] == "validation"] == [20, 40, 60]
    assert [row["split"] for row in rows].count("test") == 1
    assert rows[-1]["error"] == result.error
    _, scores = runs.evaluate(tmp_path / run.id)
    assert (scores.error, scores.error5, scores.images) == (
        result.test["error"],
        result.test["error5"],
        360,
    )
    again = train(run, tmp_path, callbacks=[log])
    assert (again.test, again.seconds) == (result.test, result.seconds)
    assert len(log.rows) == len(rows)


@pytest.mark.usefixtures("poisoned")
def test_a_fault_is_named_and_never_saved(tmp_path: Path) -> None:
    options = TrainerOptions(save_every=2)
    with pytest.raises(Diverged, match="step 5 is not finite, first in the output of conv2"):
        train(RUN, tmp_path, options=options)
    directory = tmp_path / RUN.id
    lines = runs.examine(directory)
    assert "intact: checkpoint of step 4" in lines
    assert not any("step 6" in line for line in lines)
    ended = runs.result(directory)
    assert ended is not None
    assert (ended.ended, ended.steps) == ("diverged", 5)
    assert math.isnan(ended.error)


@pytest.mark.usefixtures("poisoned")
def test_a_fault_can_be_rolled_back(tmp_path: Path) -> None:
    log = Log()
    result = train(
        RUN, tmp_path, options=TrainerOptions(save_every=2, rollback=True), callbacks=[log]
    )
    assert result.ended == "finished"
    assert any("going back to step 4 at half the learning rate" in note for note in log.notes)
    rates = {row["step"]: row["rate"] for row in log.rows if row["split"] == "train"}
    assert rates[10] == pytest.approx(0.0025)
    rows = runs.rows(result.directory)
    assert [row["step"] for row in rows if row["split"] == "train"] == list(range(1, 11))


def test_bad_gradients_are_found_where_the_backward_pass_meets_them() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    images, labels = torch.ones(2, 4), torch.tensor([0, 1])
    for p in network.parameters():
        p.grad = torch.zeros_like(p)
    network.get_parameter("1.weight").grad = torch.full((4, 4), float("nan"))

    def loss() -> torch.Tensor:
        return nn.functional.cross_entropy(network(images), labels)

    assert first_bad_module(network, images, loss) == "the gradient of 1.weight"
    assert first_bad_module(network, images * float("nan"), loss) == "the images"


def first_fault(directory: Path, logit: float, **more: Any) -> str | None:  # noqa: ANN401
    """Return the module that is named if one image's first logit has this value before dropout."""
    dataset = data.load("digits")
    network = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3072, 10), nn.Dropout())
    network.get_parameter("2.weight").data.zero_()
    network.get_parameter("2.bias").data.zero_()[0] = logit
    recipe = replace(RECIPE, batch=1)
    ours = Trainer(network, dataset, recipe, directory=directory, **more)
    ours.wrapped.train()
    try:
        ours.step(next(ours.batches()))
    except Diverged as error:
        return error.where
    finally:
        assert network.get_buffer("0.num_batches_tracked") == 1
    return None


def test_a_fault_of_one_dropout_mask_is_found_where_it_was(tmp_path: Path) -> None:
    """What dropout keeps is doubled, and 2e38 doubled is Inf: in about half of all steps."""
    found = [first_fault(tmp_path, 2e38, seed=seed) for seed in range(12)]
    assert set(found) == {None, "the output of 3"}


def test_a_fault_of_autocast_is_found_where_it_was(tmp_path: Path) -> None:
    """3.4e38 is a number in float32, and Inf in bfloat16."""
    assert first_fault(tmp_path, 3.4e38, seed=0, precision="bfloat16") == "the output of 2"


@pytest.mark.parametrize("field", ["threads", "torch", "processes", "data"])
def test_a_changed_environment_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    first = trainer(tmp_path, options=TrainerOptions(save_every=1))
    first.step(next(first.batches()))
    first.save()
    describe = environment.describe
    monkeypatch.setattr(environment, "describe", lambda *args: describe(*args) | {field: "other"})
    with pytest.raises(ValueError, match=f"was trained with {field} .*--allow-mismatch"):
        resume(trainer(tmp_path))
    second = trainer(tmp_path, options=TrainerOptions(allow_mismatch=True))
    resume(second)
    assert second.state.step == 1


def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path: Path) -> None:
    first = trainer(tmp_path)
    for batch, _ in zip(first.batches(), range(2), strict=False):
        first.step(batch)
        first.save()
    file = tmp_path / "checkpoints" / "step-0000002" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    log = Log()
    second = trainer(tmp_path, callbacks=[log])
    resume(second)
    assert second.state.step == 1
    assert "step-0000002/model.safetensors" in log.notes[0]
    assert "damaged" in [event["event"] for event in runs.events(tmp_path)]


def test_an_older_checkpoint_has_sums_of_each_process(tmp_path: Path) -> None:
    ours = trainer(tmp_path)
    ours.step(next(ours.batches()))
    ours.save()
    found, _ = checkpoint.latest(ours.checkpoints)
    assert found is not None
    restore(ours, found)
    assert ours.state.sums == found.state["sums"]
    sums = [[1.0, 2.0, 3.0, 16.0], [4.0, 5.0, 6.0, 16.0]]
    restore(ours, replace(found, state={**found.state, "sums": sums}))
    assert ours.state.sums == [5.0, 7.0, 9.0, 32.0]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains_resumes_exactly_and_is_no_other_precision(
    tmp_path: Path, precision: str
) -> None:
    run = Run("resnet20", RECIPE, "sort", precision=precision)
    whole = train(run, tmp_path / "whole", options=TrainerOptions(save_every=4))
    assert json.loads((whole.directory / "run.json").read_text())["run"]["precision"] == precision
    part = tmp_path / "part" / run.id
    shutil.copytree(whole.directory, part)
    (part / "result.json").unlink()
    shutil.rmtree(part / "checkpoints" / "step-0000010")
    again = train(run, tmp_path / "part")
    assert again.test == whole.test
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (part / name).read_bytes() == (whole.directory / name).read_bytes()
    (part / "result.json").unlink()
    with pytest.raises(ValueError, match=f"its precision is {precision}, not float32"):
        execute._same(replace(run, precision="float32"), part)


def test_an_overflowing_loss_scale_skips_the_step_and_is_halved(tmp_path: Path) -> None:
    dataset = data.load("digits")
    network = fresh(Run("resnet20", RECIPE, "sort"), dataset)
    ours = Trainer(network, dataset, RECIPE, seed=0, directory=tmp_path, precision="float16")
    before = {k: v.clone() for k, v in ours.network.named_parameters()}
    batches = ours.batches()
    ours.scaler.load_state_dict({**ours.scaler.state_dict(), "scale": 2.0**40})
    ours.step(next(batches))
    assert ours.state.step == 1
    assert ours.scaler.get_scale() == 2.0**39
    torch.testing.assert_close(before, dict(ours.network.named_parameters()), rtol=0, atol=0)
    ours.scaler.load_state_dict({**ours.scaler.state_dict(), "scale": 2.0**10})
    ours.step(next(batches))
    assert ours.scaler.get_scale() == 2.0**10
    assert not torch.equal(before["conv1.weight"], ours.network.get_parameter("conv1.weight"))
    assert all(map(math.isfinite, ours.state.sums))
    ours.log.metrics.touch()
    ours.save()
    found, _ = checkpoint.latest(ours.checkpoints)
    assert found is not None
    assert found.state["scaler"]["scale"] == 2.0**10
    with torch.no_grad():
        ours.network.get_parameter("fc.weight").mul_(1e30)  # not the scale's fault
    with pytest.raises(Diverged):
        ours.step(next(batches))


def test_a_line_says_that_the_first_step_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if kernels are used, and are not in the cache from an earlier run."""
    monkeypatch.setattr(first_step, "_cache", lambda: tmp_path / "cache")

    def is_said(fusion: str, mode: str = "auto", batch: int = 8) -> bool:
        run = Run("resnet20", Recipe("one", (Section(0.01, 1),), batch=batch), fusion)
        log = Log()
        with kernels.using(mode):
            train(run, tmp_path / str(len(list(tmp_path.iterdir()))), callbacks=[log])
        return first_step.COMPILING in log.notes

    assert not is_said("sort", "plain")
    assert not is_said("sum")
    assert is_said("sort")
    assert not is_said("sort")
    assert is_said("sort", batch=9)


def test_a_compiled_network_trains_as_one_that_is_not(tmp_path: Path) -> None:
    """The trainer's own path: channels last, Inductor, SORT in residual blocks."""
    recipe = Recipe("two", (Section(0.01, 2),), batch=8)
    states = []
    for compile in ("off", "on"):
        torch._dynamo.reset()
        dataset = data.load("digits")
        network = fresh(Run("resnet20", recipe, "sort"), dataset)
        options = TrainerOptions(compile=compile)
        one = Trainer(network, dataset, recipe, seed=0, directory=tmp_path, options=options)
        one.network.double()  # in float32 two orders of rounding differ much after two steps
        for batch in one.batches():
            one.step(Batch(batch.images.double(), batch.labels))
        states.append({k: v.clone() for k, v in one.network.state_dict().items()})
    torch.testing.assert_close(states[0], states[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("seconds", "first"),
    [
        (0.5, "net: step 3 of 1002, 500 ms per step, 0:08:20 left"),  # after ten seconds
        (0.01, "net: step 12 of 1002, 10 ms per step, 0:00:10 left"),  # after ten steps
    ],
)
def test_first_steps_are_left_out_of_rates(
    seconds: float, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They compile kernels; the demo's table and every estimate are medians of the others."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    out = io.StringIO()
    terminal = Terminal(Console(file=out, width=200))
    terminal.start("net", 0, 1002)
    slow = [60 * seconds, 10 * seconds]
    for step, last in enumerate([*slow, *[seconds] * 50, 14 * seconds, *[seconds] * 10], start=1):
        now[0] += last
        terminal.step(step, images=100)
    assert terminal.timer.median == pytest.approx(seconds)
    lines = out.getvalue().splitlines()
    assert lines[0] == first
    assert all(f" {1000 * seconds:.0f} ms per step, " in line for line in lines)
