"""Checkpoints: directories that are whole or not there, each with the hashes of what is in it.

::

    checkpoints/step-0003200/
        model.safetensors
        optimizer.safetensors
        manifest.json       step, state, environment, and size and SHA-256 of the other two

Nothing is ever unpickled, and a file that was damaged is found before it is used: safetensors
alone reads a file with a flipped bit without a word.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from sortnet import files

FORMAT = 1
PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk whose manifest has been verified, and what the manifest says."""

    path: Path
    step: int
    state: Mapping[str, Any]
    environment: Mapping[str, Any]

    def tensors(self, part: str) -> dict[str, Tensor]:
        """The tensors of one of its files, ``model`` or ``optimizer``."""
        return safetensors.torch.load((self.path / f"{part}.safetensors").read_bytes())


class Damaged(ValueError):
    """A checkpoint that does not hold what its manifest says."""


def save(
    folder: Path,
    step: int,
    parts: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> Checkpoint:
    """Write a checkpoint and read it back; one of the same step is replaced.

    Arguments:
        folder: The directory of all checkpoints.
        step: How many steps have been taken.
        parts: Tensors by name, for each file.
        state: Whatever else training needs to go on, as JSON.
        environment: What must be the same for a bit-identical continuation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".writing-{step}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        _write(temporary, step, parts, state, environment)
        target = folder / f"{PREFIX}{step:07d}"
        if target.exists():
            files.remove(target)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    files.sync(folder)
    return read(target)


def _write(
    directory: Path,
    step: int,
    parts: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> None:
    contents: dict[str, dict[str, int | str]] = {}
    for part, tensors in parts.items():
        plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        # Serialised in memory, so that a full disk is seen as what it is.
        content = safetensors.torch.save(plain)
        name = f"{part}.safetensors"
        files.write_through(directory / name, content)
        contents[name] = {"bytes": len(content), "sha256": files.digest(content)}
    manifest = {
        "format": FORMAT,
        "step": step,
        "files": contents,
        "state": dict(state),
        "environment": dict(environment),
    }
    manifest["sha256"] = files.digest(_canonical(manifest))
    files.write_through(directory / "manifest.json", json.dumps(manifest, indent=1))
    files.sync(directory)


def _canonical(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True).encode()


def read(path: Path) -> Checkpoint:
    """Verify a checkpoint, every byte of it.

    Raises:
        Damaged: With the file and the reason.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        claimed = manifest.pop("sha256")
    except FileNotFoundError:
        raise Damaged(f"{path.name} has no manifest.json") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError, MemoryError):
        raise Damaged(f"{path.name}/manifest.json cannot be read") from None
    if files.digest(_canonical(manifest)) != claimed:
        raise Damaged(f"{path.name}/manifest.json was changed")
    if not _well_formed(manifest):
        raise Damaged(f"{path.name}/manifest.json is not a manifest")
    if manifest["format"] != FORMAT:
        raise Damaged(f"{path.name} has format {manifest['format']}, not {FORMAT}")
    for name, expected in manifest["files"].items():
        _verify(path / name, expected)
    return Checkpoint(path, manifest["step"], manifest["state"], manifest["environment"])


def _well_formed(manifest: Mapping[str, Any]) -> bool:
    """Return True if a manifest has the entries that are read, each of its kind."""
    kinds = {"format": int, "step": int, "files": dict, "state": dict, "environment": dict}
    if not all(isinstance(manifest.get(name), kind) for name, kind in kinds.items()):
        return False
    return all(
        Path(name).name == name and isinstance(about, dict) and {"bytes", "sha256"} <= about.keys()
        for name, about in manifest["files"].items()
    )


def _verify(file: Path, expected: Mapping[str, Any]) -> None:
    label = f"{file.parent.name}/{file.name}"
    if not file.is_file():
        raise Damaged(f"{label} is missing")
    content = file.read_bytes()
    if len(content) != expected["bytes"]:
        raise Damaged(f"{label} has {len(content):,} bytes, not {expected['bytes']:,}")
    if files.digest(content) != expected["sha256"]:
        raise Damaged(f"{label} does not have the SHA-256 of its manifest")


def paths(folder: Path) -> list[Path]:
    """All checkpoints' directories, the newest first."""
    found = [p for p in folder.glob(f"{PREFIX}*") if p.name.removeprefix(PREFIX).isdecimal()]
    return sorted(found, key=lambda p: int(p.name.removeprefix(PREFIX)), reverse=True)


def survey(folder: Path) -> tuple[list[Checkpoint], list[Damaged]]:
    """All checkpoints that verify, the newest first, and what is wrong with the others."""
    intact: list[Checkpoint] = []
    damaged: list[Damaged] = []
    for path in paths(folder):
        try:
            intact.append(read(path))
        except Damaged as error:
            damaged.append(error)
    return intact, damaged


def latest(folder: Path) -> tuple[Checkpoint | None, list[Damaged]]:
    """The newest checkpoint that verifies, and what is wrong with newer ones."""
    damaged: list[Damaged] = []
    for path in paths(folder):
        try:
            return read(path), damaged
        except Damaged as error:
            damaged.append(error)
    return None, damaged


def prune(folder: Path, keep: int, best: int | None) -> None:
    """Remove all but the newest checkpoints and the best one, and what a killed process left.

    Arguments:
        folder: The directory of all checkpoints.
        keep: How many of the newest ones to keep.
        best: The step of the best one, kept as well.
    """
    for path in paths(folder)[keep:]:
        if best is None or path.name != f"{PREFIX}{best:07d}":
            files.remove(path)
    for leftover in (*folder.glob(".writing-*"), *folder.glob(".removed-*")):
        shutil.rmtree(leftover, ignore_errors=True)


def finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that is not finite throughout, if there is one."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None
