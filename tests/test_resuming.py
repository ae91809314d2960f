"""Runs whose files are damaged between two starts: each is repaired, or refused with a reason."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from two_processes import together

from sortnet import files
from sortnet.cli import main
from sortnet.fusion import kernels
from sortnet.lab import runs
from sortnet.lab.recipes import Recipe, Section
from sortnet.lab.runs import Run, record, train
from sortnet.lab.training import (
    Callback,
    Diverged,
    Interrupted,
    Trainer,
    TrainerOptions,
    checkpoint,
)
from sortnet.lab.training import hardware as machine

RECIPE = Recipe("short", (Section(0.02, 8),), batch=16)
RUN = Run("lenet", RECIPE)
OPTIONS = TrainerOptions(save_every=2)


class StopAt(Callback):
    """Sends this process the signal to stop, after so many steps, and remembers the notes."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.notes: list[str] = []

    def start(self, title: str, step: int, steps: int) -> None:
        """Training starts."""
        self.step(step, 0)

    def step(self, step: int, images: int) -> None:
        """A step was taken: the signal is noticed in the next one."""
        if step == self.last - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def note(self, text: str) -> None:
        """Something is said."""
        self.notes.append(text)


def stopped(out: Path, last: int, run: Run = RUN, options: TrainerOptions = OPTIONS) -> Path:
    """The directory of a run that was stopped after so many steps."""
    with pytest.raises(Interrupted, match=f"stopped at step {last} and saved"):
        train(run, out, options=options, callbacks=[StopAt(last)])
    return out / run.id


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the run without any interruption."""
    return train(RUN, tmp_path_factory.mktemp("whole"), options=OPTIONS).directory


def same_end(directory: Path, whole: Path) -> bool:
    """Whether two runs ended with the same bits."""
    names = ("model.safetensors", "metrics.jsonl")
    return all((directory / n).read_bytes() == (whole / n).read_bytes() for n in names)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_checkpoint_outlives_newer_ones_that_are_damaged(
    tmp_path: Path, whole: Path
) -> None:
    folder = stopped(tmp_path, 5) / "checkpoints"
    assert names(folder) == ["step-0000004", "step-0000005"]
    for path in checkpoint.paths(folder):
        damage(path / "model.safetensors")
    directory = stopped(tmp_path, 1)
    assert names(folder) == ["damaged-step-0000004", "damaged-step-0000005", "step-0000001"]
    assert any("set aside" in line for line in runs.examine(directory))
    train(RUN, tmp_path, options=OPTIONS)
    assert same_end(directory, whole)


def test_prune_keeps_as_many_intact_ones_as_asked(tmp_path: Path) -> None:
    for step in range(1, 6):
        checkpoint.save(tmp_path, step, {"model": {"a": torch.ones(3)}}, {}, {})
    damage(tmp_path / "step-0000004" / "manifest.json")
    checkpoint.prune(tmp_path, keep=2, best=None)
    assert names(tmp_path) == ["damaged-step-0000004", "step-0000003", "step-0000005"]


# Several processes


def _train_below(rank: int, out: Path, run: Run, options: TrainerOptions) -> None:
    """Train with a disk of one's own, and write down what came of it."""
    weights = {}
    original = Trainer.evaluate

    def evaluate(self: Trainer, split: Any) -> Any:  # noqa: ANN401
        weights.update({name: x.clone() for name, x in self.network.state_dict().items()})
        return original(self, split)

    Trainer.evaluate = evaluate  # type: ignore[method-assign]
    try:
        train(run, out / str(rank), options=options)
        text = files.digest(b"".join(x.numpy().tobytes() for x in weights.values()))
    except (ValueError, OSError, Diverged) as error:
        text = f"{type(error).__name__}: {error}"
    (out / f"said{rank}").write_text(text)


def said(out: Path) -> list[str]:
    return [(out / f"said{rank}").read_text() for rank in range(2)]


def test_processes_that_see_other_checkpoints_train_one_network(tmp_path: Path) -> None:
    """The second one's disk lacks the newest checkpoint; it takes the first one's."""
    assert together(_train_below, tmp_path, RUN, OPTIONS) == [0, 0]
    one, other = said(tmp_path)
    assert one == other
    first = tmp_path / "0" / RUN.id
    (first / "result.json").unlink()
    shutil.rmtree(tmp_path / "1", ignore_errors=True)
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    shutil.rmtree(first / "checkpoints" / "step-0000008")
    shutil.rmtree(tmp_path / "1" / RUN.id / "checkpoints" / "step-0000006")
    assert together(_train_below, tmp_path, RUN, OPTIONS) == [0, 0]
    assert said(tmp_path) == [one, one]


def _poison_and_train(rank: int, out: Path) -> None:
    """Let a number of the second process alone be NaN when a checkpoint is due."""
    save = Trainer.save

    def poisoned(self: Trainer) -> None:
        if self.distributed.rank == 1 and self.state.step == 4:
            next(iter(self.network.parameters())).data[0] = math.nan
        save(self)

    Trainer.save = poisoned  # type: ignore[method-assign]
    _train_below(rank, out, RUN, OPTIONS)


def test_processes_decide_together_that_a_checkpoint_is_not_finite(tmp_path: Path) -> None:
    assert together(_poison_and_train, tmp_path) == [0, 0]
    for text in said(tmp_path):
        assert text.startswith("Diverged: step 4 is not finite")
    assert [p.name for p in checkpoint.paths(tmp_path / "0" / RUN.id / "checkpoints")] == [
        "step-0000002"
    ]


WIDE = Run("lenet", Recipe("wide", (Section(0.02, 4),), batch=480))
"""Its third step ends the first epoch of 1,437 images."""


def test_another_number_of_processes_resumes_between_epochs(tmp_path: Path) -> None:
    every = TrainerOptions(save_every=1, keep=9)
    stopped(tmp_path / "0", 3, WIDE, every)
    assert together(_train_below, tmp_path, WIDE, replace(every, resume_from=2)) == [0, 0]
    for text in said(tmp_path):
        assert "trained by 1 process, but here there are 2" in text
        assert "step 2 is in the middle of an epoch" in text
        assert "--resume-from 3" in text
    assert together(_train_below, tmp_path, WIDE, every) == [0, 0]
    one, other = said(tmp_path)
    assert one == other
    assert (tmp_path / "0" / WIDE.id / "result.json").is_file()


# Checkpoints of other runs, and choosing one


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    directory = stopped(tmp_path, 3)
    other = stopped(tmp_path, 5, replace(RUN, seed=1))
    shutil.copytree(other / "checkpoints" / "step-0000005", directory / "checkpoints/step-0000005")
    for allow_mismatch in (False, True):
        with pytest.raises(ValueError, match=r"step-0000005 .*another run: its seed is 1, not 0"):
            train(RUN, tmp_path, options=replace(OPTIONS, allow_mismatch=allow_mismatch))
    shutil.rmtree(directory / "checkpoints" / "step-0000005")
    (directory / "run.json").unlink()
    with pytest.raises(ValueError, match="another run: its recipe is sections"):
        train(replace(RUN, recipe=RECIPE.with_learning_rate(0.3)), tmp_path, options=OPTIONS)


def test_a_run_resumes_from_a_chosen_step(tmp_path: Path, whole: Path) -> None:
    directory = stopped(tmp_path, 5, options=TrainerOptions(save_every=2, keep=9))
    with pytest.raises(ValueError, match="no intact checkpoint of step 3; there are 2, 4, 5"):
        train(RUN, tmp_path, options=replace(OPTIONS, resume_from=3))
    train(RUN, tmp_path, options=replace(OPTIONS, resume_from=2))
    assert [e["step"] for e in runs.events(directory) if e["event"] == "resume"] == [2]
    assert {"superseded-step-0000004", "superseded-step-0000005"} <= set(
        names(directory / "checkpoints")
    )
    assert same_end(directory, whole)
    with pytest.raises(ValueError, match="has finished"):
        train(RUN, tmp_path, options=replace(OPTIONS, resume_from=2))


# Records


@pytest.mark.parametrize("kind", ["missing", "short", "changed", "torn"])
def test_lost_metrics_are_taken_from_the_checkpoint(
    tmp_path: Path, whole: Path, kind: str
) -> None:
    directory = stopped(tmp_path, 5)
    metrics = directory / "metrics.jsonl"
    content = metrics.read_bytes()
    if kind == "missing":
        metrics.unlink()
    elif kind == "changed":
        damage(metrics)
    else:
        metrics.write_bytes(content[:-200] if kind == "short" else content + b'{"step": 6, "lo')
    log = StopAt(0)
    train(RUN, tmp_path, options=OPTIONS, callbacks=[log])
    assert same_end(directory, whole)
    assert any("metrics.jsonl" in note for note in log.notes) == (kind != "torn")
    assert not any(line.startswith("damaged") for line in runs.examine(directory))


def test_a_torn_event_is_set_aside_and_said(tmp_path: Path) -> None:
    directory = stopped(tmp_path, 3)
    before = runs.events(directory)
    with (directory / "events.jsonl").open("ab") as file:
        file.write(b'\0\0\0\n{"time": 1790000000.1, "ev')
    assert any(line.startswith("damaged: ") for line in runs.examine(directory))
    log = StopAt(5)
    with pytest.raises(Interrupted):
        train(RUN, tmp_path, options=OPTIONS, callbacks=[log])
    events = runs.events(directory)
    assert events[: len(before)] == before
    assert [e["event"] for e in events[len(before) :]] == ["damaged", "resume", "stop"]
    assert any("events.jsonl" in note for note in log.notes)
    assert b"\0\0\0" in (directory / "damaged-events.jsonl").read_bytes()


def test_a_changed_result_is_found_and_made_again(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / RUN.id)
    path = tmp_path / RUN.id / "result.json"
    good = json.loads(path.read_bytes())
    error = good["test"]["error"]
    path.write_text(path.read_text().replace(f'"error": {error}', '"error": 1.5'))
    with pytest.raises(ValueError, match=r"result\.json was changed"):
        runs.result(tmp_path / RUN.id)
    assert any("result.json was changed" in line for line in runs.examine(tmp_path / RUN.id))
    again = train(RUN, tmp_path, options=OPTIONS)
    assert again.error == error
    assert same_end(tmp_path / RUN.id, whole)
    good.pop("sha256")
    path.write_text(json.dumps(good))  # of an earlier version, without a checksum
    assert train(RUN, tmp_path, options=OPTIONS).error == error


def test_a_changed_kept_result_is_found(tmp_path: Path, whole: Path) -> None:
    found = record.find(RUN, whole.parents[2])
    assert found is not None
    record.write(found, tmp_path)
    again = record.find(RUN, tmp_path)
    assert again is not None
    assert again.as_json() == found.as_json()
    path = tmp_path / f"{RUN.id}.json"
    path.write_text(path.read_text().replace('"seconds": ', '"seconds": 1'))
    with pytest.raises(ValueError, match="was changed"):
        record.find(RUN, tmp_path)
    path.write_text(json.dumps(found.as_json()))  # of an earlier version, without a checksum
    assert record.find(RUN, tmp_path) == again


# What decides bits


def test_what_decides_bits_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = stopped(tmp_path, 3)
    with (
        kernels.using("eager" if kernels.get_mode() == "plain" else "plain"),
        pytest.raises(ValueError, match=r"was trained with kernels .*--allow-mismatch"),
    ):
        train(RUN, tmp_path, options=OPTIONS)
    with pytest.raises(ValueError, match="was trained with compile off, but here it is on"):
        train(RUN, tmp_path, options=replace(OPTIONS, compile="on"))
    with monkeypatch.context() as patch:
        patch.setattr(machine, "processor", lambda: "another one")
        with pytest.raises(ValueError, match=r"was trained with processor .* it is another one"):
            train(RUN, tmp_path, options=OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_has_compiler", lambda device: False)
        if kernels.get_mode() == "auto":
            with pytest.raises(ValueError, match="without a compiler"):
                train(RUN, tmp_path, options=OPTIONS)
    manifest = directory / "checkpoints" / "step-0000003" / "manifest.json"
    content = json.loads(manifest.read_bytes())
    for name in ("kernels", "compile", "processor"):
        content["environment"].pop(name)
    content.pop("run")
    content.pop("sha256")
    content["sha256"] = files.digest(json.dumps(content, sort_keys=True).encode())
    manifest.write_text(json.dumps(content))  # of an earlier version, which did not know them
    train(RUN, tmp_path, options=OPTIONS)


def make_images(root: Path, count: int = 24) -> None:
    for i in range(count):
        folder = root / f"class{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), 5 * i, np.uint8)).save(folder / f"{i}.bmp")


def test_other_images_of_equal_size_are_noticed(tmp_path: Path) -> None:
    make_images(tmp_path / "images")
    run = Run("lenet", replace(RECIPE, batch=4), data=str(tmp_path / "images"))
    run = replace(run, options={"size": 32})
    stopped(tmp_path / "runs", 3, run)
    one, other = tmp_path / "images/class0/0.bmp", tmp_path / "images/class0/2.bmp"
    times, content = one.stat(), one.read_bytes()
    one.write_bytes(other.read_bytes())
    os.utime(one, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ValueError, match="was trained with data"):
        train(run, tmp_path / "runs", options=OPTIONS)
    one.write_bytes(content)
    assert train(run, tmp_path / "runs", options=OPTIONS).ended == "finished"


# Runs that diverged, and commands that fail


def test_a_run_that_diverged_goes_on_with_other_options(
    tmp_path: Path, poisoned: list[int]
) -> None:
    with pytest.raises(Diverged):
        train(RUN, tmp_path, options=OPTIONS)
    diverged = record.find(RUN, tmp_path)
    assert diverged is not None
    assert diverged.ended == "diverged"
    assert train(RUN, tmp_path, options=OPTIONS).ended == "diverged"  # as before: it is not tried
    poisoned[:] = [2]
    result = train(RUN, tmp_path, options=replace(OPTIONS, rollback=True))
    assert result.ended == "finished"
    events = [(e["event"], e["step"]) for e in runs.events(result.directory)]
    assert ("resume", 4) in events
    assert ("rollback", 4) in events


def test_a_fault_before_the_first_checkpoint_is_rolled_back(
    tmp_path: Path, poisoned: list[int]
) -> None:
    poisoned[:] = [1]
    result = train(RUN, tmp_path, options=TrainerOptions(save_every=8, rollback=True))
    assert result.ended == "finished"
    steps = [row["step"] for row in runs.rows(result.directory) if row["split"] == "train"]
    assert steps == list(range(1, 9))


def test_a_command_that_fails_claims_nothing(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    given = ["train", "lenet", "--scale", "0.001", "--threads", "1", "--out", str(out)]
    assert main([*given, "--batch", "0"]) == 2
    assert not list(out.rglob("*.json*"))
    assert main([*given, "--batch", "4"]) == 0
    make_images(tmp_path / "images")
    bad = tmp_path / "images" / "class0"
    for path in bad.iterdir():
        path.write_bytes(b"not an image")
    given += ["--data", str(tmp_path / "images"), "--size", "32"]
    assert main([*given, "--batch", "8"]) in (1, 2)
    assert not list((out / "images").rglob("*.json*"))


# Signals, and what killed writers leave


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_hang_up_stops_a_run_unless_it_is_ignored(before: signal.Handlers) -> None:
    """Under nohup it is ignored."""
    from sortnet.lab.training.failures import signals

    asked: list[int] = []
    usual = signal.signal(signal.SIGHUP, before)
    try:
        with signals(asked.append):
            if before == signal.SIG_IGN or signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:
                os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, usual)
    assert asked == ([] if before == signal.SIG_IGN else [signal.SIGHUP])


KILLED = """
import os, signal, sys
from pathlib import Path
from sortnet import files
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
files.write(Path(sys.argv[1]), "half")
"""


def test_the_file_of_a_killed_writer_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (living,) = names(tmp_path)
    alive = living.rpartition(".")[0] + f".{os.getppid()}"
    (tmp_path / alive).write_text("still being written")
    files.write(path, "whole")
    assert names(tmp_path) == [alive, "table.json"]
