"""Downloads that resume, and are accepted only with the right checksum.

torchvision's `download_url` starts over after an interruption and has no limit on the size.
"""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

OnProgress = Callable[[str, int, int], None]
"""Called with a description, the amount done and the total (0 if unknown)."""


def no_progress(what: str, done: int, total: int) -> None:
    """Report nothing."""


TRIES = 4
PAUSE = 2.0
"""Seconds before another attempt."""
TIMEOUT = 30.0
MOST = 2 << 30
"""Largest download in bytes; the largest published file has 1.3 GB."""
BLOCK = 1 << 20

BROKEN = (http.client.HTTPException, ConnectionError, TimeoutError, urllib.error.URLError)


def download(url: str, target: Path, md5: str, on_progress: OnProgress, most: int = MOST) -> None:
    """Download a file, resuming from what an earlier call left in ``<target>.part``.

    Arguments:
        url: The source.
        target: The file. It exists only once it is complete and its MD5 is right.
        md5: The published checksum.
        on_progress: Called with the progress.
        most: Largest size in bytes.
    """
    part = target.with_name(target.name + ".part")
    for left in reversed(range(TRIES)):
        before = _size(part)
        try:
            if _fetch_rest(url, part, on_progress, most):
                break
            reason = "the connection ended early"
        except BROKEN as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        _give_up(url, part, reason, progressed=_size(part) > before, left=left)
    _accept(url, part, target, md5, on_progress)


def _give_up(url: str, part: Path, reason: str, *, progressed: bool, left: int) -> None:
    if left and progressed:
        time.sleep(PAUSE)
        return
    kept = _size(part)
    more = f"; {kept:,} bytes are kept, run the same command again to resume" if kept else ""
    raise OSError(f"{url} cannot be downloaded: {reason}{more}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch_rest(url: str, part: Path, on_progress: OnProgress, most: int) -> bool:
    """Fetch the missing bytes; return True if the file is complete."""
    done = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "sortnet"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if done and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True  # complete, or the checksum will differ
        raise
    with answer, part.open("ab") as file:
        if not answer.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            file.truncate(0)  # the server sends the whole file
            done = 0
        length = answer.headers.get("Content-Length", "0")
        total = done + (int(length) if length.isdecimal() else 0)
        while max(done, total) <= most and (block := answer.read(BLOCK)):
            file.write(block)
            done += len(block)
            on_progress(f"downloading {part.stem}", done, total if total >= done else 0)
    if max(done, total) > most:
        part.unlink()
        raise OSError(f"{url} sends more than the {most:,} bytes allowed; it was deleted")
    return done >= total


def _accept(url: str, part: Path, target: Path, md5: str, on_progress: OnProgress) -> None:
    if file_md5(part, on_progress) != md5:
        part.unlink()
        raise OSError(
            f"{url} is not the published file (its MD5 differs); it was deleted, try again"
        )
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)


def file_md5(path: Path, on_progress: OnProgress | None = None) -> str:
    """Return the MD5 of a file, the checksum these datasets were published with."""
    digest = hashlib.md5(usedforsecurity=False)
    done, total = 0, path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            done += len(block)
            if on_progress is not None:
                on_progress(f"checking {path.name}", done, total)
    return digest.hexdigest()
