"""MATLAB files. scipy's reader can crash the process on a damaged one."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from sortnet.errors import UsageError

Array = np.ndarray[Any, np.dtype[Any]]

PROGRAM = """
import sys
import numpy as np
from scipy.io import loadmat

try:
    path, name = sys.argv[1:]
    array = np.asarray(loadmat(path, appendmat=False, variable_names=[name])[name])
    np.save(sys.stdout.buffer, array, allow_pickle=False)
except BaseException as error:
    text = str(error).strip()
    sys.exit(text.splitlines()[0] if text else type(error).__name__)
"""
"""Reads a variable and writes it in a format that is safe to read."""


def variable(path: Path, name: str, *, trusted: bool) -> Array:
    """Read a variable of a MATLAB file.

    Arguments:
        path: The file.
        name: Name of the variable.
        trusted: Whether the file has the published checksum. Other files are read in a separate
            process, because one changed byte can crash scipy.
    """
    try:
        return _load(path, name) if trusted else _load_in_subprocess(path, name)
    except Exception as error:  # a damaged file can make the reader raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"{path} cannot be read ({reason}); `sortnet data check svhn` says more"
        ) from None


def _load(path: Path, name: str) -> Array:
    from scipy.io import loadmat

    found: Array = loadmat(path, appendmat=False, variable_names=[name])[name]
    return found


def _load_in_subprocess(path: Path, name: str) -> Array:
    command = [sys.executable, "-P", "-c", PROGRAM, str(path), name]
    with TemporaryFile() as output:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, check=False
        )
        if done.returncode < 0:
            raise UsageError(f"its reader crashed with signal {-done.returncode}")
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise UsageError(lines[-1] if lines else f"exit code {done.returncode}")
        output.seek(0)
        found: Array = np.load(output, allow_pickle=False)
        return found
