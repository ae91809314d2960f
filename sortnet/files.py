"""Files that are whole or not there: atomic writing, checksums, locks."""

import fcntl
import glob
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sortnet.errors import Damaged, UsageError


def write(path: Path, content: bytes | str) -> None:
    """Write a file under a temporary name, put it on the disk, then give it its name.

    A reader sees the old file or the new one, whenever the power fails or the disk is full. What
    killed writers of the same file left behind is removed.
    """
    temporary = path.with_name(f".{path.name}.{_host()}.{os.getpid()}")
    remove_leftovers(path.parent, path.name)
    try:
        write_through(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def remove_leftovers(directory: Path, name: str = "*") -> None:
    """Remove the temporary files of writers that were killed on this machine.

    Arguments:
        directory: Where they wrote.
        name: The file that they wrote; by default any.
    """
    pattern = "*" if name == "*" else glob.escape(name)
    for path in directory.glob(f".{pattern}.{glob.escape(_host())}.*"):
        process = path.name.rpartition(".")[2]
        if process.isdecimal() and process.isascii() and not _alive(int(process)):
            path.unlink(missing_ok=True)


def _host() -> str:
    """The machine's name, as part of a file's: another machine's processes cannot be asked for."""
    return re.sub(r"[^\w-]", "_", platform.node()) or "_"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def set_aside(path: Path, label: str = "damaged") -> Path:
    """Rename a file or directory to ``label-name``, with a number if there is one already."""
    target, count = path.with_name(f"{label}-{path.name}"), 1
    while target.exists():
        count += 1
        target = path.with_name(f"{label}-{path.name}-{count}")
    path.rename(target)
    sync(path.parent)
    return target


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


def write_sealed(path: Path, value: Mapping[str, Any], seal: str = "sha256") -> None:
    """Write an object as JSON with its own SHA-256, which `read_sealed` verifies.

    Arguments:
        path: The file.
        value: The object.
        seal: The entry for the SHA-256, which is none of the object's own.
    """
    plain = json.loads(json.dumps(value))  # with the keys that a reader will find
    write_json(path, {**plain, seal: digest(canonical(plain))})


def read_sealed(path: Path, seal: str = "sha256") -> dict[str, Any]:
    """Read what `write_sealed` wrote; a file of an earlier version has no SHA-256 to verify.

    Raises:
        Damaged: The file was changed.
        UsageError: It is not a JSON object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise UsageError(f"{path} does not hold a JSON object")
    if seal in value and value.pop(seal) != digest(canonical(value)):
        raise Damaged(f"{path} was changed: it does not have the SHA-256 that is written in it")
    return value


def canonical(value: object) -> bytes:
    """A value as the JSON that its SHA-256 is taken of."""
    return json.dumps(value, sort_keys=True).encode()


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
