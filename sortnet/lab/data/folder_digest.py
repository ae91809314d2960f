"""SHA-256 of a folder's images, cached per class.

Reading all of ImageNet takes minutes. The digest of each class folder is therefore cached in
``~/.cache/sortnet/images`` (or $SORTNET_HASHES), with a stamp of the files' sizes, times and
inodes. A class is read again if its stamp has changed.
"""

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sortnet import files
from sortnet.lab.data.dataset import FileSplit
from sortnet.lab.data.workers import default_workers

PATIENCE = 2.0
"""Seconds before progress is printed."""
SETTLED = 2_000_000_000
"""Age in nanoseconds from which a file's time is trusted to show the next change."""


class DigestProgress:
    """Prints progress after two seconds, then less and less often."""

    def __init__(self, root: Path, total: int) -> None:
        self.root, self.total, self.done = root, total, 0
        self.started, self.pause = time.monotonic(), PATIENCE

    def add(self, count: int) -> None:
        """Count files that have been read."""
        self.done += count
        if time.monotonic() - self.started > self.pause:
            self.pause *= 2
            print(
                f"reading {self.root} for its fingerprint: {self.done:,} of {self.total:,} images",
                file=sys.stderr,
                flush=True,
            )


def digest(images: FileSplit) -> str:
    """Return the SHA-256 of all files of a split, names and bytes.

    Raises:
        OSError: A file cannot be read.
    """
    path = _cache_file(images.root)
    with ExitStack() as stack:
        try:  # of several processes the first reads, the others wait for its result
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(files.locked(path.with_suffix(".lock"), "hashing", wait=True))
        except OSError:
            return _digest(images, {})
        known = _read(path)
        before = dict(known)
        try:
            return _digest(images, known)
        finally:  # also after an interruption
            if known != before:
                _keep(path, known)


def _digest(images: FileSplit, known: dict[str, Any]) -> str:
    """Hash class by class, and update `known`."""
    whole = hashlib.sha256()
    progress = DigestProgress(images.root, len(images))
    with ThreadPoolExecutor(default_workers()) as pool:
        for name, paths in _classes(images):
            stamp, newest = _stamp(images.root, paths)
            found = known.get(name)
            if found is None or found[0] != stamp:
                hashes = pool.map(lambda path: _sha256(images.root / path), paths)
                inner = hashlib.sha256()
                for path, one in zip(paths, hashes, strict=True):
                    inner.update(f"{len(os.fsencode(path))} ".encode() + os.fsencode(path) + one)
                    progress.add(1)
                found = [stamp, inner.hexdigest()]
                known.pop(name, None)
                # Within the clock's resolution a second change would not change the time.
                if time.time_ns() - newest > SETTLED and _stamp(images.root, paths)[0] == stamp:
                    known[name] = found
            else:
                progress.add(len(paths))
            whole.update(found[1].encode())
    return whole.hexdigest()


def _classes(images: FileSplit) -> Iterator[tuple[str, list[str]]]:
    """Yield the class folders with their files, in the order of the listing."""
    begin = 0
    for count in images.labels.bincount().tolist():  # they are listed class by class
        paths = [os.fsdecode(path) for path in images.paths[begin : begin + count]]
        yield paths[0].partition("/")[0], paths
        begin += count


def _stamp(root: Path, paths: list[str]) -> tuple[str, int]:
    """Return a hash of the files' metadata, and the time of the latest change.

    Unlike the modification time, an inode's change time cannot be set back.
    """
    digest, newest = hashlib.sha256(), 0
    for path in paths:
        about = (root / path).stat()
        line = (path, about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
        digest.update(repr(line).encode(errors="surrogateescape"))
        newest = max(newest, about.st_ctime_ns, about.st_mtime_ns)
    return digest.hexdigest(), newest


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _cache_file(root: Path) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = os.environ.get("SORTNET_HASHES") or Path(home) / "sortnet" / "images"
    return Path(cache) / f"{files.digest(os.fsencode(root.resolve()))[:32]}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        known = files.read_sealed(path)["classes"]
    except (OSError, ValueError, KeyError):
        return {}
    return known if isinstance(known, dict) else {}


def _keep(path: Path, known: dict[str, Any]) -> None:
    try:
        files.write_sealed(path, {"classes": known})
    except OSError:  # full disk: the next start reads the images again
        path.unlink(missing_ok=True)
