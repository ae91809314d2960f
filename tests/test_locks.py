"""Locks that end with the process that took them, also where the system has none."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sortnet import files
from sortnet.lab import runs

FORK = """
import os, sys, time
from pathlib import Path
from sortnet.files import locked
with locked(Path(sys.argv[1]), "nothing"):
    if os.fork() == 0:  # as processes are that read images
        time.sleep(60)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""
ASK = """
import sys, time
from pathlib import Path
from sortnet.files import holder
print("asking", flush=True)
while True:
    holder(Path(sys.argv[1]))
    time.sleep(0.0005)
"""
NO_LOCKS = """
import errno, fcntl
def flock(descriptor, operation):
    raise OSError(errno.{error}, "no locks here")
fcntl.flock = flock
"""
TRAIN = """
import sys
from sortnet.lab.recipes import Recipe, Section
from sortnet.lab.runs import Run, train
train(Run("lenet", Recipe("tiny", (Section(0.01, 2),), batch=2)), sys.argv[1])
"""
WINDOWS = """
import importlib, pkgutil, sys
sys.modules["fcntl"] = None  # the import fails, as it does there
import sortnet
names = [m.name for m in pkgutil.walk_packages(sortnet.__path__, "sortnet.")]
for name in names:
    if name not in ("sortnet.__main__", "sortnet.timm"):
        importlib.import_module(name)
"""


def started(program: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_a_forked_process_does_not_keep_a_killed_ones_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = started(FORK, path)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        told = rf"process {process.pid} is at it already, since 20\d\d-.* on .+; wait for it"
        with pytest.raises(files.LockHeld, match=told), files.locked(path, "at it"):
            pass
        assert (files.holder(path) or "").startswith(f"{process.pid}, since 20")
        process.send_signal(signal.SIGKILL)
        os.waitpid(process.pid, 0)
        with files.locked(path, "at it"):
            assert json.loads(path.read_bytes())["process"] == os.getpid()
        assert files.holder(path) is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("error", ["ENOSYS", "EOPNOTSUPP", "ENOLCK"])
def test_training_goes_on_without_locks(tmp_path: Path, error: str) -> None:
    process = started(NO_LOCKS.format(error=error) + TRAIN, tmp_path)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert said.count("has no locks") == 1
    assert said.count("\n") == 1
    assert runs.result(tmp_path / "digits/lenet-tiny/seed0") is not None
    assert not list(tmp_path.rglob("*.held"))


def test_without_locks_a_killed_processes_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    process = started(NO_LOCKS.format(error="ENOSYS") + FORK, path)
    assert process.stdout is not None

    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "no locks here")

    monkeypatch.setattr("fcntl.flock", flock)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(files.LockHeld, match=f"{process.pid} is"), files.locked(path, "at it"):
            pass
        assert files.holder(path) is not None
        process.send_signal(signal.SIGKILL)
        os.waitpid(process.pid, 0)
        assert files.holder(path) is None
        with files.locked(path, "at it"):
            pass
        assert files.holder(path) is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_asking_who_holds_a_lock_does_not_get_in_the_way(tmp_path: Path) -> None:
    """The question takes the lock for a moment."""
    path = tmp_path / "lock"
    path.touch()
    process = started(ASK, path)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        for _ in range(300):
            with files.locked(path, "at it"):
                pass
    finally:
        process.kill()
        process.communicate()


def test_everything_can_be_imported_without_fcntl() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
