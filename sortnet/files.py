"""Files that are whole or not there: atomic writing, checksums, locks."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sortnet.errors import UsageError


def write(path: Path, content: bytes | str) -> None:
    """Write a file under a temporary name, put it on the disk, then give it its name.

    A reader sees the old file or the new one, whenever the power fails or the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_through(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_through(path: Path, content: bytes | str) -> None:
    """Write a file and wait until it is on the disk."""
    try:
        with path.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # a full disk does not say which file it was
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON that a person can read."""
    write(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Read a JSON file; one that is none is an error that names it."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError, MemoryError) as error:  # also numbers that are too long
        raise UsageError(f"{path} is not a JSON file: {error}") from None


def sync(directory: Path) -> None:
    """Wait until a directory's entries are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(directory: Path) -> None:
    """Remove a directory, first from sight and then from the disk."""
    hidden = directory.with_name(f".removed-{directory.name}-{os.getpid()}")
    directory.rename(hidden)
    shutil.rmtree(hidden)


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


@contextmanager
def locked(path: Path, doing: str, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock file; the system lets go of it when the process ends, however that happens.

    Arguments:
        path: The lock file, which holds the process's number. It stays: removing it would let two
            processes in.
        doing: What the holder is doing, for the error's text.
        wait: Whether to wait for it, and not to fail.

    Raises:
        BlockingIOError: Another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.seek(0)
            other = file.read().strip() or "?"
            raise BlockingIOError(f"process {other} is {doing} already; wait for it") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def holder(path: Path) -> str | None:
    """The process that holds a lock file, if one does."""
    if not path.is_file():
        return None
    with path.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read().strip() or "?"
    return None
