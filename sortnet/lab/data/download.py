"""Downloads that go on where they stopped, and count only once their checksum is right."""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

Show = Callable[[str, int, int], None]
"""Told what is going on, how far it is, and how far it goes (0: not known)."""


def quietly(what: str, done: int, total: int) -> None:
    """Show nothing."""


TRIES = 4
PAUSE = 2.0
"""Seconds before another try."""
TIMEOUT = 30.0
MOST = 2 << 30
"""The most bytes of a download; the largest published file has 1.3 GB."""
BLOCK = 1 << 20

BROKEN = (http.client.HTTPException, ConnectionError, TimeoutError, urllib.error.URLError)


class UnreachableError(OSError):
    """The page did not answer, or not with the file."""


def download(url: str, target: Path, md5: str, show: Show, most: int = MOST) -> None:
    """Download a file, going on with what an earlier call left in ``<target>.part``.

    Arguments:
        url: Where from.
        target: The file, which is there only when all of it has come and its MD5 is right.
        md5: As published.
        show: Told about the progress.
        most: How many bytes may come.
    """
    part = target.with_name(target.name + ".part")
    for left in reversed(range(TRIES)):
        before = _size(part)
        try:
            if _came(url, part, show, most):
                break
            reason = "the connection ended early"
        except BROKEN as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        _give_up(url, part, reason, moved=_size(part) > before, left=left)
    _accept(url, part, target, md5, show)


def _give_up(url: str, part: Path, reason: str, *, moved: bool, left: int) -> None:
    if left and moved:  # something came: it is worth another try
        time.sleep(PAUSE)
        return
    kept = _size(part)
    more = f"; {kept:,} bytes are kept, the same command goes on from there" if kept else ""
    raise UnreachableError(f"{url} cannot be downloaded: {reason}{more}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _came(url: str, part: Path, show: Show, most: int) -> bool:
    """Fetch what is missing; whether that was all of it."""
    done = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "sortnet"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if done and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True  # nothing is missing, or the checksum will tell
        raise
    with answer, part.open("ab") as file:
        if not answer.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            file.truncate(0)  # the server sends all of it
            done = 0
        length = answer.headers.get("Content-Length", "0")
        total = done + (int(length) if length.isdecimal() else 0)
        while max(done, total) <= most and (block := answer.read(BLOCK)):
            file.write(block)
            done += len(block)
            show(f"downloading {part.stem}", done, total if total >= done else 0)
    if max(done, total) > most:
        part.unlink()
        raise OSError(f"{url} sends more than the {most:,} bytes allowed; nothing was kept")
    return done >= total


def _accept(url: str, part: Path, target: Path, md5: str, show: Show) -> None:
    if file_md5(part, show) != md5:
        part.unlink()
        raise OSError(
            f"{url} is not the published file (its MD5 differs); it was deleted, try again"
        )
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)


def file_md5(path: Path, show: Show | None = None) -> str:
    """The MD5 of a file: the checksum that these data sets were published with."""
    digest = hashlib.md5(usedforsecurity=False)
    done, total = 0, path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            done += len(block)
            if show is not None:
                show(f"checking {path.name}", done, total)
    return digest.hexdigest()
