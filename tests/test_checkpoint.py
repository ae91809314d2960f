"""Checkpoints on disk: whole or not there, and nothing damaged is ever used."""

import errno
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sortnet.lab.training import checkpoint

PARTS = {"model": {"a": torch.arange(6.0).view(2, 3)}, "optimizer": {"a": torch.ones(2, 3)}}


def save(folder: Path, step: int) -> checkpoint.Checkpoint:
    return checkpoint.save(folder, step, PARTS, {"step": step, "sums": [0.1]}, {"threads": 1})


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    save(tmp_path, 7)
    found, damaged = checkpoint.latest(tmp_path)
    assert found is not None
    assert not damaged
    assert (found.step, found.state, found.environment["threads"]) == (
        7,
        {"step": 7, "sums": [0.1]},
        1,
    )
    for part, tensors in PARTS.items():
        assert torch.equal(found.tensors(part)["a"], tensors["a"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.data())
def test_any_flipped_bit_is_found(tmp_path: Path, data: st.DataObject) -> None:
    """The one before is used instead, and the damaged one is named."""
    for step in (1, 2):
        save(tmp_path, step)
    files = sorted((tmp_path / "step-0000002").iterdir())
    file = data.draw(st.sampled_from(files))
    content = bytearray(file.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    found, damaged = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.step == 1
    assert [str(error).split("/")[0].split()[0] for error in damaged] == ["step-0000002"]


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_a_missing_or_cut_file_is_found(tmp_path: Path, name: str) -> None:
    save(tmp_path, 1)
    file = tmp_path / "step-0000001" / name
    file.write_bytes(file.read_bytes()[:-1])
    assert checkpoint.latest(tmp_path)[0] is None
    file.unlink()
    assert len(checkpoint.latest(tmp_path)[1]) == 1


def test_the_newest_by_number_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in (2, 9, 10, 100):
        save(tmp_path, step)
    (tmp_path / ".writing-50-1").mkdir()
    checkpoint.prune(tmp_path, keep=2, best=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "step-0000002",
        "step-0000010",
        "step-0000100",
    ]


def test_a_full_disk_is_named_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*model\.safetensors"):
        save(tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["step-0000001"]
    found, damaged = checkpoint.latest(tmp_path)
    assert found is not None
    assert not damaged
