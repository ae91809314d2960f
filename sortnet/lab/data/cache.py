"""Cache of preprocessed images on disk: written atomically, verified before every use."""

import errno
import hashlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sortnet import files

log = logging.getLogger(__name__)


def cached(path: Path, source: str, shape: tuple[int, ...], make: Iterable[Tensor]) -> Tensor:
    """Return a float16 tensor mapped from disk, computing it first if missing or damaged.

    float16 keeps 11 bits of values whose source has 8, in half of the 7.7 GB that SVHN takes in
    float32.

    Arguments:
        path: The ``.npy`` file; its manifest is beside it.
        source: Identifies the source and the computation; another one invalidates the file.
        shape: Shape of the tensor.
        make: Computes it, chunk by chunk along the first dimension. Only iterated when needed.
    """
    manifest = path.with_suffix(".json")
    with files.locked(path.with_suffix(".lock"), f"writing {path}", wait=True):
        if path.exists() or manifest.exists():
            reason = _problem(path, manifest, source)
            if reason is None:
                return _mapped(path)
            log.warning("%s %s: computing it again", path, reason)
        _write(path, shape, make)
        entry = {"source": source, "sha256": sha256(path)}
        files.write_json(manifest, entry)
    return _mapped(path)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _problem(path: Path, manifest: Path, source: str) -> str | None:
    try:
        entry = json.loads(manifest.read_bytes())
        if entry["source"] != source:
            return "was made from other files"
        return None if entry["sha256"] == sha256(path) else "has changed since it was written"
    except (OSError, ValueError, KeyError, TypeError):
        return "is not complete"


def _mapped(path: Path) -> Tensor:
    # Copy on write: torch wants writable memory, and the file must not change.
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))


def _write(path: Path, shape: tuple[int, ...], make: Iterable[Tensor]) -> None:
    part = path.with_suffix(".part")
    try:
        _fill(part, shape, make)
        part.replace(path)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(part)) from None
    finally:
        part.unlink(missing_ok=True)


def _fill(part: Path, shape: tuple[int, ...], make: Iterable[Tensor]) -> None:
    whole: Any = np.lib.format.open_memmap(part, "w+", np.float16, shape)
    _reserve(part)
    begin = 0
    for chunk in make:
        whole[begin : begin + len(chunk)] = chunk.to(torch.float16).numpy()
        begin += len(chunk)
    assert begin == shape[0]
    whole.flush()
    del whole
    with part.open("rb") as file:
        os.fsync(file.fileno())


def _reserve(path: Path) -> None:
    """Allocate the file's space on the disk, if the system supports it.

    Otherwise writing to a mapped file on a full disk kills the process (SIGBUS).
    """
    if not hasattr(os, "posix_fallocate"):
        return
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
