"""A finished run where nothing can be written: it is printed, evaluated, examined, reported."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

RUN = "digits/lenet-x0.0001/seed0"


def sortnet(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sortnet", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def train(out: Path) -> "subprocess.CompletedProcess[str]":
    given = ("--scale", "0.0001", "--precision", "float32", "--threads", "1", "--out", out)
    return sortnet("train", "lenet", *given)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A finished run seen through a read-only mount, which root may make."""
    done = train(tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    place = tmp_path / "mounted"
    place.mkdir()
    if shutil.which("mount") is None or not mount("bind", tmp_path / "runs", place):
        pytest.skip("file systems cannot be mounted here")
    try:
        assert mount("remount,bind,ro", tmp_path / "runs", place)
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def mount(options: str, source: Path, place: Path) -> bool:
    command = ["mount", "-o", options, str(source), str(place)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_finished_run_on_a_read_only_mount(mounted: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        (mounted / RUN / "lock").touch()
    again = train(mounted)
    assert again.returncode == 0, again.stderr
    assert "as trained before" in again.stdout
    for command in ("eval", "doctor"):
        done = sortnet(command, mounted / RUN)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    page = tmp_path / "report.html"
    done = sortnet("report", mounted, "--output", page)
    assert done.returncode == 0, done.stderr
    assert page.is_file()
