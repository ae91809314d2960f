"""Atomic writes, checksums, locks."""

import errno
import glob
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sortnet.errors import Damaged, UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import filelock

log = logging.getLogger(__name__)

TRIES, PAUSE = 20, 0.02
"""How often a lock is tried, and the seconds in between: `holder` takes it for a moment."""
UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
"""The error numbers of file systems without locks."""


def write(path: Path, content: bytes | str) -> None:
    """Write a file atomically: write a temporary file, flush it to disk, rename it.

    A reader sees the old file or the new one, even if the power fails or the disk is full.
    Temporary files of killed writers of the same file are removed.
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
        name: The file they wrote; any file by default.
    """
    pattern = "*" if name == "*" else glob.escape(name)
    for path in directory.glob(f".{pattern}.{glob.escape(_host())}.*"):
        process = path.name.rpartition(".")[2]
        if process.isdecimal() and process.isascii() and not _alive(int(process)):
            path.unlink(missing_ok=True)


def _host() -> str:
    """Return the machine's name, for use in file names: processes exist on one machine only."""
    return re.sub(r"[^\w-]", "_", platform.node()) or "_"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def set_aside(path: Path, label: str = "damaged") -> Path:
    """Rename a file or directory to ``label-name``, with a number if that exists already."""
    target, count = path.with_name(f"{label}-{path.name}"), 1
    while target.exists():
        count += 1
        target = path.with_name(f"{label}-{path.name}-{count}")
    path.rename(target)
    sync(path.parent)
    return target


def write_through(path: Path, content: bytes | str) -> None:
    """Write a file and flush it to disk."""
    try:
        with path.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # the error of a full disk does not name the file
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON."""
    write(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Read a JSON file; raise a `UsageError` with its name if it is not one."""
    try:
        return json.loads(path.read_bytes())
    except (
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:  # also for numbers that are too long
        raise UsageError(f"{path} is not a JSON file: {error}") from None


def write_sealed(path: Path, value: Mapping[str, Any], seal: str = "sha256") -> None:
    """Write an object as JSON with its own SHA-256, which `read_sealed` verifies.

    Arguments:
        path: The file.
        value: The object.
        seal: The entry for the SHA-256; not a key of the object.
    """
    plain = json.loads(json.dumps(value))  # keys become strings, as a reader will find them
    write_json(path, {**plain, seal: digest(canonical(plain))})


def read_sealed(path: Path, seal: str = "sha256") -> dict[str, Any]:
    """Read a file written by `write_sealed`; files of earlier versions have no SHA-256 to verify.

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
    """Return a value as the JSON that is hashed."""
    return json.dumps(value, sort_keys=True).encode()


def sync(directory: Path) -> None:
    """Flush the entries of a directory to disk."""
    if os.name == "nt":  # directories cannot be opened
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(directory: Path) -> None:
    """Remove a directory; rename it first, so that no one sees it half removed."""
    hidden = directory.with_name(f".removed-{directory.name}-{os.getpid()}")
    directory.rename(hidden)
    shutil.rmtree(hidden)


def digest(content: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


class LockHeld(BlockingIOError):
    """Another process holds a lock."""


_descriptors: set[int] = set()
"""The open lock files of this process."""


def _forget_locks() -> None:
    """Close the lock files in a forked process.

    A lock is released only when no process has the file open, and data loading workers outlive a
    killed parent by some seconds.
    """
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


@contextmanager
def locked(path: Path, doing: str, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock file; the system releases it when the process ends, however that happens.

    On file systems without locks, the existence of a second file is the lock. If a killed process
    left it, the next process on the same machine removes it.

    Arguments:
        path: The lock file, which names its holder. It is never removed: otherwise two processes
            could hold the lock.
        doing: What the holder is doing, for the error message.
        wait: Whether to wait for the lock instead of raising.

    Raises:
        LockHeld: Another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        descriptor = stack.enter_context(_opened(path))
        try:
            if not _flock(descriptor, wait):
                stack.enter_context(_substitute(path, wait))
        except (BlockingIOError, TimeoutError):
            process, since = _named(path)
            raise LockHeld(f"process {process} is {doing} already{since}; wait for it") from None
        name = {"process": os.getpid(), "since": time.time(), "host": platform.node()}
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(name).encode())
        yield


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a lock file in this process, but not in processes forked from it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    _descriptors.add(descriptor)
    try:
        yield descriptor
    finally:
        if descriptor in _descriptors:  # otherwise this is a forked process, which has closed it
            _descriptors.remove(descriptor)
            os.close(descriptor)


def _flock(descriptor: int, wait: bool) -> bool:
    """Lock an open file; return False if the file system has no locks."""
    if fcntl is None:
        return False
    for tries_left in reversed(range(TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            break
        except BlockingIOError:
            if not tries_left:
                raise
            time.sleep(PAUSE)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            return False
    return True


@contextmanager
def _substitute(path: Path, wait: bool) -> Iterator[None]:
    """Hold a lock where there is no flock, on Windows and on some file systems."""
    marker = _marker(path)
    if fcntl is not None:
        log.warning(
            "the file system of %s has no locks; %s is used instead. If a process on another"
            " machine is killed while it holds the lock, remove that file",
            path.parent,
            marker.lock_file,
        )
    with marker.acquire(timeout=-1 if wait else 0):
        yield


def _marker(path: Path) -> "filelock.BaseFileLock":
    import filelock

    kind = filelock.FileLock if fcntl is None else filelock.SoftFileLock
    return kind(f"{path}.held")


def holder(path: Path) -> str | None:
    """Return the process that holds a lock file, or None."""
    if not path.is_file() or not _is_held(path):
        return None
    return "".join(_named(path))


def _is_held(path: Path) -> bool:
    if fcntl is not None:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno not in UNSUPPORTED:
                    raise
    marker = _marker(path)
    if not Path(marker.lock_file).exists():
        return False
    try:
        with marker.acquire(timeout=0):  # removes that of a killed process
            return False
    except TimeoutError:
        return True
    except OSError:  # a read-only directory: no one can take the lock
        return False


def _named(path: Path) -> tuple[str, str]:
    """Return the process named in a lock file, and since when and where it holds the lock."""
    try:
        found = json.loads(path.read_bytes())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["since"]))
        return str(found["process"]), f", since {since} on {found['host']}"
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return "?", ""
