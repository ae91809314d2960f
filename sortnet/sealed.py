"""JSON files that give weights their meaning, each with a checksum of its own.

`write` adds two entries to an object: ``format`` and ``checksum``, the SHA-256 of all the others.
Files from before there were checksums have neither, and are read as they are.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sortnet import files
from sortnet.errors import UsageError

FORMAT = 2
OWN = ("format", "checksum")


def write(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON that a person can read, with its checksum."""
    content = {"format": FORMAT, **value}
    files.write_json(path, {**content, "checksum": _checksum(content)})


def read(path: Path) -> dict[str, Any]:
    """Read what `write` has written, without the two entries that it added.

    Raises:
        OSError: The file was changed since.
        UsageError: It is not a JSON object, or of another format.
    """
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a JSON object")
    there = [name for name in OWN if name in content]
    if not there:
        return content
    claimed = content.pop("checksum", None)
    if claimed != _checksum(content):  # either entry without the other is damage as well
        raise OSError(f"{path} was changed: it does not have the checksum that was written in it")
    if content.pop("format", None) != FORMAT:
        raise UsageError(f"{path} is of a format that this version does not know")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    return files.digest(json.dumps(content, sort_keys=True).encode())
