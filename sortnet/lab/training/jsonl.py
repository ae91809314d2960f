"""Append-only files of JSON lines, and the repair of damaged ones."""

import json
import os
from pathlib import Path
from typing import Any

from sortnet import files
from sortnet.errors import UsageError


def append(path: Path, value: object) -> None:
    """Append a line."""
    with path.open("a") as file:
        file.write(json.dumps(value) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Read all lines, except for an unfinished last one that a killed process left.

    Raises:
        UsageError: Another line is not a JSON object.
    """
    if not path.is_file():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0].splitlines()
    try:  # as one array, which is twice as fast as line by line
        lines: list[dict[str, Any]] = json.loads(b"[" + b",".join(whole) + b"]")
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path} is not a file of JSON lines: {error}") from None
    if not all(isinstance(line, dict) for line in lines):
        raise UsageError(f"{path} is not a file of JSON lines: one is not an object")
    return lines


def intact(content: bytes) -> bytes:
    r"""Return the lines that are whole JSON objects.

    Example:
        >>> intact(b'{"a": 1}\n\0\0\n{"b": 2}\n{"c"')
        b'{"a": 1}\n{"b": 2}\n'
    """
    lines = content.split(b"\n")[:-1]
    return b"".join(line + b"\n" for line in lines if _is_object(line))


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError, MemoryError):
        return False


def repair(path: Path) -> str | None:
    """Drop incomplete lines; return what was done, or None if nothing was.

    Otherwise the next line would be appended to one that a killed process left unfinished.
    """
    there = path.read_bytes() if path.is_file() else b""
    kept = intact(there)
    return None if kept == there else _replace(path, kept)


def restore(path: Path, length: int, kept: bytes | None) -> str | None:
    """Restore a file to its content at a checkpoint; return what was done if it was damaged.

    Arguments:
        path: The file. Lines appended after the checkpoint are cut off; that is no damage.
        length: Size of the file at the checkpoint, in bytes.
        kept: Its content at the checkpoint. None if the checkpoint has no copy: then all whole
            lines are kept.
    """
    there = path.read_bytes() if path.is_file() else b""
    expected = intact(there[:length]) if kept is None else kept
    if there[: len(expected)] != expected or len(expected) < length:
        return _replace(path, expected)
    if len(there) > length:
        os.truncate(path, length)
    return None


def _replace(path: Path, content: bytes) -> str:
    if not path.is_file():
        files.write(path, content)
        return f"{path} was missing; {_lines(content)} restored"
    aside = files.set_aside(path)
    files.write(path, content)
    return f"{path} was damaged; {_lines(content)} kept, the damaged file is now {aside.name}"


def _lines(content: bytes) -> str:
    count = content.count(b"\n")
    return "1 line was" if count == 1 else f"{count:,} lines were"
