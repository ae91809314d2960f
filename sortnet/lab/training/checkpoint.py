"""Checkpoints: directories that are complete or absent, with the SHA-256 of every file.

::

    checkpoints/step-0003200/
        model.safetensors       the network's state dict
        optimizer.safetensors   momentum, by the names of the parameters
        metrics.jsonl           the run's metrics up to this step
        manifest.json           step, state (`sortnet.lab.training.state.State`), environment, the
                                run's configuration, size and SHA-256 of the other files

Nothing is unpickled, and a damaged file is found before it is used: safetensors alone reads a file
with a flipped bit without an error.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from sortnet import errors, files, pretrained

FORMAT = 1
PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk, and the content of its manifest.

    Attributes:
        path: Its directory.
        step: Steps taken.
        state: The rest of the training loop's `State`.
        environment: What bit-identical resuming depends on.
        run: Configuration of its run; empty in older versions.
        files: Names of its files.
    """

    path: Path
    step: int
    state: Mapping[str, Any]
    environment: Mapping[str, Any]
    run: Mapping[str, Any]
    files: tuple[str, ...]

    def tensors(self, part: str) -> dict[str, Tensor]:
        """Read the tensors of one file, ``model`` or ``optimizer``."""
        file = self.path / f"{part}.safetensors"
        return pretrained.weights(file.read_bytes(), file)

    def text(self, name: str) -> bytes | None:
        """Read another file; None if an older version did not write it."""
        return (self.path / name).read_bytes() if name in self.files else None


class CheckpointDamaged(errors.Damaged):
    """A checkpoint whose content differs from its manifest.

    Attributes:
        path: Its directory.
    """

    path: Path


def save(
    folder: Path,
    step: int,
    parts: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    environment: Mapping[str, Any],
    run: Mapping[str, Any] | None = None,
    texts: Mapping[str, bytes] | None = None,
) -> Checkpoint:
    """Write a checkpoint and read it back; one of the same step is replaced.

    Arguments:
        folder: Directory of all checkpoints.
        step: Steps taken.
        parts: Tensors by name, for each safetensors file.
        state: The rest of the training state, as JSON.
        environment: What bit-identical resuming depends on.
        run: Configuration of the run.
        texts: Other files by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".writing-{step}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    manifest = {
        "format": FORMAT,
        "step": step,
        "state": dict(state),
        "environment": dict(environment),
        "run": dict(run or {}),
    }
    try:
        _write(temporary, manifest, parts, texts or {})
        target = folder / _name(step)
        if target.exists():
            files.remove(target)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    files.sync(folder)
    return read(target)


def _name(step: int) -> str:
    return f"{PREFIX}{step:07d}"


def _write(
    directory: Path,
    manifest: dict[str, Any],
    parts: Mapping[str, Mapping[str, Tensor]],
    texts: Mapping[str, bytes],
) -> None:
    contents = dict(texts)
    for part, tensors in parts.items():
        plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        # Serialized in memory first: then a full disk is reported as ENOSPC.
        contents[f"{part}.safetensors"] = safetensors.torch.save(plain)
    for name, content in contents.items():
        files.write_through(directory / name, content)
    manifest["files"] = {
        name: {"bytes": len(content), "sha256": files.digest(content)}
        for name, content in contents.items()
    }
    manifest["sha256"] = files.digest(files.canonical(manifest))
    files.write_through(directory / "manifest.json", json.dumps(manifest, indent=1))
    files.sync(directory)


def read(path: Path) -> Checkpoint:
    """Verify a checkpoint, every byte of it.

    Raises:
        CheckpointDamaged: With the file and the reason.
    """
    try:
        manifest = _manifest(path)
        for name, expected in manifest["files"].items():
            _verify(path / name, expected)
        return Checkpoint(
            path,
            manifest["step"],
            manifest["state"],
            manifest["environment"],
            manifest.get("run", {}),
            tuple(manifest["files"]),
        )
    except CheckpointDamaged as error:
        error.path = path
        raise
    except OSError as problem:
        damaged = CheckpointDamaged(f"{path.name} cannot be read: {problem}")
        damaged.path = path
        raise damaged from None


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())
        claimed = manifest.pop("sha256")
    except FileNotFoundError:
        raise CheckpointDamaged(f"{path.name} has no manifest.json") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError, MemoryError):
        raise CheckpointDamaged(f"{path.name}/manifest.json cannot be read") from None
    if files.digest(files.canonical(manifest)) != claimed:
        raise CheckpointDamaged(f"{path.name}/manifest.json was changed")
    if not _well_formed(manifest):
        raise CheckpointDamaged(f"{path.name}/manifest.json is not a manifest")
    if manifest["format"] != FORMAT:
        raise CheckpointDamaged(f"{path.name} has format {manifest['format']}, not {FORMAT}")
    if path.name != _name(manifest["step"]):
        raise CheckpointDamaged(f"{path.name} is the checkpoint of step {manifest['step']}")
    return manifest


def _well_formed(manifest: Mapping[str, Any]) -> bool:
    """Return True if a manifest has all entries, each of its type."""
    kinds = {"format": int, "step": int, "files": dict, "state": dict, "environment": dict}
    if not all(isinstance(manifest.get(name), kind) for name, kind in kinds.items()):
        return False
    if not isinstance(manifest.get("run", {}), dict):  # older versions did not write it
        return False
    return all(
        Path(name).name == name
        and isinstance(about, dict)
        and isinstance(about.get("bytes"), int)
        and isinstance(about.get("sha256"), str)
        for name, about in manifest["files"].items()
    )


def _verify(file: Path, expected: Mapping[str, Any]) -> None:
    label = f"{file.parent.name}/{file.name}"
    if not file.is_file():
        raise CheckpointDamaged(f"{label} is missing")
    content = file.read_bytes()
    if len(content) != expected["bytes"]:
        raise CheckpointDamaged(f"{label} has {len(content):,} bytes, not {expected['bytes']:,}")
    if files.digest(content) != expected["sha256"]:
        raise CheckpointDamaged(f"{label} does not have the SHA-256 of its manifest")


def paths(folder: Path) -> list[Path]:
    """Return the directories of all checkpoints, newest first."""
    found = [p for p in folder.glob(f"{PREFIX}*") if re.fullmatch(PREFIX + "[0-9]+", p.name)]
    return sorted(found, key=lambda p: int(p.name.removeprefix(PREFIX)), reverse=True)


def survey(folder: Path) -> tuple[list[Checkpoint], list[CheckpointDamaged]]:
    """Return all intact checkpoints, newest first, and the errors of the others."""
    intact: list[Checkpoint] = []
    damaged: list[CheckpointDamaged] = []
    for path in paths(folder):
        try:
            intact.append(read(path))
        except CheckpointDamaged as error:
            damaged.append(error)
    return intact, damaged


def latest(folder: Path) -> tuple[Checkpoint | None, list[CheckpointDamaged]]:
    """Return the newest intact checkpoint, and the errors of newer ones."""
    damaged: list[CheckpointDamaged] = []
    for path in paths(folder):
        try:
            return read(path), damaged
        except CheckpointDamaged as error:
            damaged.append(error)
    return None, damaged


def at(folder: Path, step: int) -> Checkpoint:
    """Return the checkpoint of a step.

    Raises:
        UsageError: It is missing or damaged; the message lists the intact ones.
    """
    intact, _ = survey(folder)
    for found in intact:
        if found.step == step:
            return found
    steps = ", ".join(str(found.step) for found in reversed(intact)) or "none"
    raise errors.UsageError(f"{folder} has no intact checkpoint of step {step}; there are {steps}")


def supersede(folder: Path, step: int) -> None:
    """Set aside all checkpoints after a step from which a run is repeated."""
    for path in paths(folder):
        if int(path.name.removeprefix(PREFIX)) > step:
            files.set_aside(path, "superseded")


def prune(folder: Path, keep: int, best: int | None) -> None:
    """Remove all but the newest intact checkpoints and the best one.

    Damaged ones do not count and are set aside. What processes left that were killed is removed.

    Arguments:
        folder: Directory of all checkpoints.
        keep: Number of checkpoints to keep, at least one.
        best: Step of the best one, which is kept as well.
    """
    kept = 0
    for path in paths(folder):
        if kept == max(1, keep):
            if best is None or path.name != _name(best):
                files.remove(path)
            continue
        try:
            read(path)
            kept += 1
        except CheckpointDamaged:
            files.set_aside(path)
    for leftover in (*folder.glob(".writing-*"), *folder.glob(".removed-*")):
        shutil.rmtree(leftover, ignore_errors=True)


def first_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a NaN or Inf, if there is one."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None
