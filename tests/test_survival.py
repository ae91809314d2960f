"""Runs in processes that are really killed end with the same result as uninterrupted ones."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import survivors
from PIL import Image

from sortnet import files
from sortnet.lab import runs
from sortnet.lab.training import checkpoint

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["sortnet.lab.runs", "sklearn.datasets"])  # imported once


def outcome(directory: Path) -> dict[str, bytes]:
    """Return everything that must not depend on how often a run was killed."""
    newest, damaged = checkpoint.latest(directory / "checkpoints")
    assert newest is not None
    assert not damaged
    kept = [path.name for path in checkpoint.paths(directory / "checkpoints")]
    result = json.loads((directory / "result.json").read_bytes())
    for name in ("seconds", "sha256"):  # the checksum covers the time
        result.pop(name)
    return {
        "model": (newest.path / "model.safetensors").read_bytes(),
        "optimizer": (newest.path / "optimizer.safetensors").read_bytes(),
        "final": (directory / "model.safetensors").read_bytes(),
        "metrics": (directory / "metrics.jsonl").read_bytes(),
        "kept": "\n".join(kept).encode(),
        "result": json.dumps(result).encode(),
    }


def train_in_process(out: Path, moment: int = -1) -> int | None:
    process = CONTEXT.Process(target=survivors.train_until_killed, args=(out, moment))
    process.start()
    process.join()
    return process.exitcode


def test_twenty_kills_leave_no_trace(tmp_path: Path) -> None:
    process = CONTEXT.Process(
        target=survivors.write_moments, args=(tmp_path / "whole", tmp_path / "moments")
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    moments = (tmp_path / "moments").read_text().splitlines()
    expected = outcome(tmp_path / "whole" / survivors.RUN.id)
    assert b'"split": "test"' in expected["metrics"]
    writing = [i for i, name in enumerate(moments) if "step" not in name]
    stepping = [i for i, name in enumerate(moments) if "step" in name]
    chosen = [writing[i * len(writing) // 12] for i in range(12)]
    chosen += [stepping[i * len(stepping) // 8] for i in range(8)]
    assert len({moments[i] for i in chosen}) >= 6
    # Killed twice each: late, and then early after the restart, so that no moment is missed.
    chosen.sort()
    for i in range(10):
        out = tmp_path / f"killed{i}"
        for moment in (chosen[10 + i], chosen[9 - i]):
            assert train_in_process(out, moment) == -signal.SIGKILL
        assert train_in_process(out) == 0
        assert outcome(out / survivors.RUN.id) == expected
        assert not list((out / survivors.RUN.id).rglob(".*"))


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
    command += ["--nproc-per-node=2", "--max-restarts=1", "--standalone"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SORTNET_KERNELS": "eager"}
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, env=environment
    )


def test_a_killed_worker_of_two_leaves_no_trace(tmp_path: Path) -> None:
    script = str(Path(survivors.__file__))
    marker = tmp_path / "marker"
    killed = torchrun(script, str(tmp_path / "killed"), str(marker))
    assert killed.returncode == 0, killed.stderr
    assert marker.exists()
    whole = torchrun(script, str(tmp_path / "whole"), str(marker))
    assert whole.returncode == 0, whole.stderr
    directory = tmp_path / "killed" / survivors.RUN.id
    starts = [e["event"] for e in runs.events(directory)]
    assert starts.count("resume") == 1
    assert outcome(directory) == outcome(tmp_path / "whole" / survivors.RUN.id)


def command(out: Path, *more: str) -> list[str]:
    base = [sys.executable, "-m", "sortnet", "train", "lenet", "--scale", "0.1", "--batch", "4"]
    base += ["--threads", "1", "--precision", "float32"]  # as the name of the directory has it
    return [*base, "--out", str(out), *more]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_exits(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(command(tmp_path), stderr=subprocess.PIPE, text=True)
    directory = tmp_path / "digits" / "lenet-x0.1" / "seed0"
    while len(runs.rows(directory)) < 3 and process.poll() is None:
        time.sleep(0.05)
    second = subprocess.run(command(tmp_path), capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"process {process.pid} is training {directory} already" in second.stderr
    assert second.stderr.count("\n") == 1
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == 128 + number
    assert "stopped at step" in stderr.splitlines()[-1]
    newest, _ = checkpoint.latest(directory / "checkpoints")
    assert newest is not None
    lines = runs.examine(directory)
    assert f"would resume at step {newest.step:,} of 7,000" in lines
    assert "not in use" in lines
    assert runs.events(directory)[-1]["event"] == "stop"


def training_on_images(tmp_path: Path) -> "tuple[subprocess.Popen[str], Path]":
    """Return a training process with image workers, and the run's directory."""
    for i in range(40):
        (tmp_path / "images" / f"class{i % 2}").mkdir(parents=True, exist_ok=True)
        pixels = np.full((32, 32, 3), i, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"class{i % 2}" / f"{i}.png")
    given = command(tmp_path / "runs", "--data", str(tmp_path / "images"), "--size", "32")
    process = subprocess.Popen(given, stderr=subprocess.PIPE, text=True, start_new_session=True)
    directory = tmp_path / "runs" / "images" / "lenet-size32-x0.1" / "seed0"
    while len(runs.rows(directory)) < 3 and process.poll() is None:
        time.sleep(0.05)
    return process, directory


def test_a_killed_run_can_go_on_at_once(tmp_path: Path) -> None:
    """The image workers live for some seconds longer, and must not keep its lock."""
    process, directory = training_on_images(tmp_path)
    assert f"{process.pid}" in str(files.holder(directory / "lock"))
    process.kill()
    process.wait()
    try:
        assert files.holder(directory / "lock") is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_signal_to_the_workers_as_well_saves_and_exits(tmp_path: Path) -> None:
    """Schedulers send one to every process of a job, also to those that read images."""
    process, directory = training_on_images(tmp_path)
    os.killpg(process.pid, signal.SIGTERM)
    _, stderr = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, stderr
    newest, _ = checkpoint.latest(directory / "checkpoints")
    assert newest is not None
    assert f"stopped at step {newest.step} and saved" in stderr.splitlines()[-1]
