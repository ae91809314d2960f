"""CIFAR and SVHN from files in their real formats, whole and damaged, and SVHN's preprocessing."""

import hashlib
import logging
import os
import pickle
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sortnet.lab import data
from sortnet.lab.data import cifar, svhn
from sortnet.lab.data.dataset import InMemorySplit

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
COUNT = 12


def held(split: data.Split | None) -> InMemorySplit:
    assert isinstance(split, InMemorySplit)
    return split


@pytest.fixture(params=["cifar10", "cifar100"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The layouts of the datasets with fewer records."""
    name = str(request.param)
    layout = cifar.LAYOUTS[name]
    train, test = (dict.fromkeys(files, COUNT) for files in (layout.train, layout.test))
    monkeypatch.setitem(cifar.LAYOUTS, name, replace(layout, train=train, test=test))
    return name


def written(root: Path, name: str) -> dict[str, Pixels]:
    """Random records of every binary file, as they were written."""
    layout = cifar.LAYOUTS[name]
    folder = root / layout.folder
    folder.mkdir(parents=True)
    source = np.random.default_rng(0)
    records = {}
    for file in [*layout.train, *layout.test]:
        rows = source.integers(0, 256, (COUNT, layout.label_bytes + 3072), dtype=np.uint8)
        rows[:, layout.label_bytes - 1] = source.integers(0, len(layout.classes), COUNT)
        rows.tofile(folder / file)
        records[file] = rows
    return records


def test_cifar_records_become_planes_and_fine_labels(tmp_path: Path, small: str) -> None:
    records = written(tmp_path, small)
    dataset = data.load(small, tmp_path, validation=5)
    layout = cifar.LAYOUTS[small]
    train = np.concatenate([records[file] for file in layout.train])
    assert (len(dataset.train), len(held(dataset.validation))) == (len(train) - 5, 5)
    assert held(dataset.validation).rows.tolist() == list(range(len(train) - 5, len(train)))
    for row in (0, 5, len(train) - 6):
        planes = train[row, layout.label_bytes :].reshape(3, 32, 32)
        assert np.array_equal(dataset.train.picture(row).numpy(), planes)
        assert dataset.train.labels[row] == train[row, layout.label_bytes - 1]
    assert dataset.classes == layout.classes
    direct = data.load(small, tmp_path / layout.folder, validation=5)
    assert direct.fingerprint == dataset.fingerprint != data.load(small, tmp_path).fingerprint


def test_cifar_names_come_from_the_file_beside_the_data(tmp_path: Path, small: str) -> None:
    written(tmp_path, small)
    layout = cifar.LAYOUTS[small]
    names = [f"class{i}" for i in range(len(layout.classes))]
    path = tmp_path / layout.folder / layout.names
    path.write_text("\n".join(names) + "\n\n")
    assert data.load(small, tmp_path).classes == tuple(names)
    path.write_text("one\ntwo\n")
    with pytest.raises(ValueError, match="2 names"):
        data.load(small, tmp_path)


def damaged(path: Path, kind: str, label_byte: int) -> None:
    content = bytearray(path.read_bytes())
    if kind == "truncated":
        del content[-1000:]
    elif kind == "another file":
        content += b"0" * 3073
    else:
        content[label_byte] = 200
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["truncated", "another file", "label 200"])
def test_damaged_cifar_is_one_line_that_names_the_file(
    tmp_path: Path, small: str, kind: str
) -> None:
    written(tmp_path, small)
    layout = cifar.LAYOUTS[small]
    path = tmp_path / layout.folder / next(iter(layout.test))
    damaged(path, kind, layout.label_bytes - 1)
    with pytest.raises(ValueError, match=kind) as caught:
        data.load(small, tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_data_says_how_to_get_it(tmp_path: Path, small: str) -> None:
    for name in (small, "svhn", "caltech256", "imagenet"):
        with pytest.raises(FileNotFoundError, match=f"sortnet data get {name}") as caught:
            data.load(name, tmp_path)
        assert str(tmp_path) in str(caught.value)
    written(tmp_path, small)
    layout = cifar.LAYOUTS[small]
    (tmp_path / layout.folder / next(iter(layout.test))).unlink()
    with pytest.raises(FileNotFoundError, match=r"test.*\.bin is missing"):
        data.load(small, tmp_path)


def text(value: str | bytes) -> bytes:
    """A Python 2 string in a pickle."""
    content = value.encode() if isinstance(value, str) else value
    return b"T" + struct.pack("<i", len(content)) + content


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def python2_pickle(pixels: Pixels, key: str, labels: list[int]) -> bytes:
    """The bytes of the published files' kind: a dictionary that Python 2 and numpy 1 wrote."""
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
    array += number(0) + b"\x85" + text("b") + b"\x87R"
    kind = b"cnumpy\ndtype\n" + text("u1") + number(0) + number(1) + b"\x87R"
    kind += b"(" + number(3) + text("|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    shape = number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86"
    array += b"(" + number(1) + shape + kind + b"\x89" + text(pixels.tobytes()) + b"tb"
    line = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text("data") + array + text(key) + line + b"u."


def pickled(root: Path, name: str, records: dict[str, Pixels]) -> dict[str, str]:
    """Write torchvision's folder with the same images; the files' MD5 is returned."""
    layout = cifar.LAYOUTS[name]
    folder = root / layout.pickles
    folder.mkdir()
    sums = {}
    for file, rows in records.items():
        labels = rows[:, layout.label_bytes - 1].tolist()
        content = python2_pickle(rows[:, layout.label_bytes :], layout.label_key, labels)
        (folder / Path(file).stem).write_bytes(content)
        sums[Path(file).stem] = hashlib.md5(content).hexdigest()
    return sums


def test_torchvision_folder_is_the_same_data(
    tmp_path: Path, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = written(tmp_path / "binary", small)
    sums = pickled(tmp_path, small, records)
    with pytest.raises(ValueError, match="not the published file"):
        data.load(small, tmp_path)
    assert len(data.check(small, tmp_path)) == len(sums)
    monkeypatch.setitem(cifar.LAYOUTS, small, replace(cifar.LAYOUTS[small], published=sums))
    assert data.check(small, tmp_path) == []
    pickles, binary = (data.load(small, root) for root in (tmp_path, tmp_path / "binary"))
    assert pickles.fingerprint == binary.fingerprint


class Evil:
    """Would run a command when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_a_pickle_cannot_run_anything(
    tmp_path: Path, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, mark = cifar.LAYOUTS[small], tmp_path / "mark"
    (tmp_path / layout.pickles).mkdir()
    content = pickle.dumps({"data": Evil(mark)}, protocol=2)
    name = next(iter(layout.published))
    (tmp_path / layout.pickles / name).write_bytes(content)
    published = {**layout.published, name: hashlib.md5(content).hexdigest()}
    monkeypatch.setitem(cifar.LAYOUTS, small, replace(layout, published=published))
    with pytest.raises(pickle.UnpicklingError, match="does not belong"):
        data.load(small, tmp_path)
    assert not mark.exists()


@pytest.fixture
def numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Pixels, Pixels]]:
    """Small files of SVHN's kind, four images of each digit in each."""
    from scipy.io import savemat

    monkeypatch.setattr(svhn, "HELD_OUT", {"train": 2, "extra": 1})
    monkeypatch.setattr(svhn, "CHUNK", 7)
    source = np.random.default_rng(0)
    content = {}
    for part, name in svhn.FILES.items():
        pixels = source.integers(0, 256, (32, 32, 3, 40), dtype=np.uint8)
        labels = source.permutation(np.arange(40) % 10 + 1).astype(np.uint8)
        savemat(tmp_path / name, {"X": pixels, "y": labels[:, None]}, do_compression=True)
        content[part] = pixels, labels
    return content


def test_svhn_splits_by_digit(tmp_path: Path, numbers: dict[str, tuple[Pixels, Pixels]]) -> None:
    dataset = data.load("svhn", tmp_path, preprocess="none")
    validation = held(dataset.validation)
    assert (len(dataset.train), len(validation), len(dataset.test)) == (50, 30, 40)
    both = torch.cat([held(dataset.train).rows, validation.rows])
    assert both.sort().values.tolist() == list(range(80))
    assert torch.bincount(validation.labels).tolist() == [3] * 10
    assert torch.bincount(validation.labels[validation.rows < 40]).tolist() == [2] * 10
    for part, split in (("train", held(dataset.train)), ("test", held(dataset.test))):
        pixels, labels = numbers[part]
        row = int(split.rows[3])
        assert np.array_equal(split.picture(3).numpy(), pixels[..., row].transpose(2, 0, 1))
        assert split.labels[3] == labels[row] % 10
    assert not dataset.flip
    again = data.load("svhn", tmp_path, preprocess="none", validation=30)
    assert again.fingerprint == dataset.fingerprint
    assert torch.equal(held(again.validation).rows, validation.rows)
    with pytest.raises(ValueError, match="its own validation split of 30 images"):
        data.load("svhn", tmp_path, validation=7)
    with pytest.raises(ValueError, match="svhn has lcn, lcn-pylearn2, none"):
        data.load("svhn", tmp_path, preprocess="zca")


@pytest.mark.usefixtures("numbers")
def test_damaged_svhn_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / svhn.FILES["extra"]
    content = path.read_bytes()
    for bad in (content[: len(content) // 2], b"", b"<html>not found</html>" * 40):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"extra_32x32\.mat") as caught:
            data.load("svhn", tmp_path, preprocess="none")
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"has no extra_32x32\.mat"):
        data.load("svhn", tmp_path)


@pytest.mark.usefixtures("numbers")
def test_a_byte_that_crashes_scipy_is_one_line(tmp_path: Path) -> None:
    """The type of a variable's numbers, changed to one that there is not: SIGSEGV."""
    from scipy.io import savemat

    path = tmp_path / svhn.FILES["test"]
    labels = np.arange(1, 5, dtype=np.uint8)[:, None]
    pixels = np.zeros((2, 2, 3, 4), np.uint8)
    savemat(path, {"X": pixels, "y": labels}, do_compression=False)
    content = bytearray(path.read_bytes())
    content[288] = 234
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"32\.mat cannot be read \(.*signal 11\)") as caught:
        data.load("svhn", tmp_path, preprocess="none")
    assert "\n" not in str(caught.value)


FULL = """
import sys, torch
from pathlib import Path
from sortnet.lab.data.cache import cached
try:
    cached(Path(sys.argv[1]) / "a.npy", "s", (64, 3, 64, 64), iter([torch.ones(64, 3, 64, 64)]))
except OSError as error:
    print(error)
"""


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """On a real file system of one megabyte, which the kernel lets us make for ourselves."""
    mount = f"mount -t tmpfs -o size=1m none {tmp_path}"
    script = f"{mount} && {sys.executable} -c '{FULL}' {tmp_path}; echo $?; ls -A {tmp_path}"
    command = ["unshare", "-rm", "sh", "-c", script]
    probe = ["unshare", "-rm", "true"]
    if not shutil.which("unshare") or subprocess.run(probe, check=False).returncode:
        pytest.skip("no file system of our own here")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        f"[Errno 28] No space left on device: '{tmp_path}/a.part'",
        "0",
        "a.lock",
    ], done.stderr


def naive(image: Pixels, kind: str) -> Any:  # noqa: ANN401
    """The definition, one image and one channel at a time, in double precision."""
    from scipy.ndimage import convolve

    spots = np.arange(7) - 3
    kernel = np.exp(-(spots[:, None] ** 2 + spots[None] ** 2) / (2 * 2.0**2))
    kernel /= kernel.sum()

    def blurred(plane: Any) -> Any:  # noqa: ANN401
        return convolve(plane, kernel, mode="constant", cval=0.0)

    x = image.astype(np.float64) - image.mean()
    norm = np.sqrt((x**2).sum())
    x = x / (norm if norm > 0 else 1)
    out = x.copy()
    for channel, plane in enumerate(x):
        centered = plane - blurred(plane)
        spread = np.sqrt(blurred((centered if kind == "lcn" else plane) ** 2))
        if kind == "lcn" or channel == 0:
            out[channel] = centered / np.maximum(np.maximum(spread, spread.mean()), 1e-4)
    return out


def odd_images() -> Tensor:
    """Noise, one color, a slope, and a single bright pixel."""
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    images[1] = 77
    images[2] = torch.arange(32, dtype=torch.uint8) * 8
    images[3] = 0
    images[3, 1, 5, 30] = 255
    return images


@pytest.mark.parametrize("kind", ["lcn", "lcn-pylearn2"])
def test_lcn_is_its_definition(kind: str) -> None:
    images = odd_images()
    result = data.lcn.KINDS[kind](images)
    expected = np.stack([naive(image, kind) for image in images.numpy()])
    assert torch.isfinite(result).all()
    torch.testing.assert_close(result.double(), torch.from_numpy(expected), atol=2e-4, rtol=2e-4)


def test_lcn_is_computed_once_and_verified(
    tmp_path: Path,
    numbers: dict[str, tuple[Pixels, Pixels]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = data.load("svhn", tmp_path)
    images = held(first.train).images
    raw = torch.from_numpy(numbers["train"][0].transpose(3, 2, 0, 1).copy())
    torch.testing.assert_close(images[:40].float(), data.lcn.lcn(raw), atol=2e-3, rtol=1e-3)
    assert first.mean == (0.0, 0.0, 0.0)
    assert first.train.picture(0).dtype == torch.uint8
    batch = next(data.train_batches(first, data.Augmentation(pad=4), batch=10, seed=0, stop=1))
    assert batch.images.dtype == torch.float32
    assert (batch.images == 0).float().mean() > 0.05  # the padding of such images is exactly zero

    calls: list[int] = []

    def counted(chunk: Tensor) -> Tensor:
        calls.append(len(chunk))
        return data.lcn.lcn(chunk)

    monkeypatch.setitem(data.lcn.KINDS, "lcn", counted)
    assert torch.equal(held(data.load("svhn", tmp_path).train).images, images)
    assert calls == []
    path = tmp_path / "svhn-lcn-train-extra.npy"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        again = held(data.load("svhn", tmp_path).train).images
    assert sum(calls) == 80
    assert "changed since it was written: computing it again" in caplog.text
    assert torch.equal(again, data.lcn.lcn(_raw(numbers)).to(torch.float16))
    path.with_suffix(".json").write_text("{")
    data.load("svhn", tmp_path)
    assert sum(calls) == 160
    with (tmp_path / svhn.FILES["test"]).open("ab") as file:
        file.write(b"\0" * 8)
    with caplog.at_level(logging.WARNING):
        changed = data.load("svhn", tmp_path)
    assert "was made from other files" in caplog.text
    assert sum(calls) == 160 + 80 + 40
    assert changed.fingerprint != first.fingerprint


def _raw(numbers: dict[str, tuple[Pixels, Pixels]]) -> Tensor:
    both = np.concatenate([numbers[part][0] for part in ("train", "extra")], axis=3)
    return torch.from_numpy(both.transpose(3, 2, 0, 1).copy())
