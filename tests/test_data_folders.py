"""Folders of images: their layouts, the safe reader, streams of any number of workers, checks."""

import os
import re
import struct
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sortnet.lab import data
from sortnet.lab.data import folder_digest as content
from sortnet.lab.data.dataset import FileSplit
from sortnet.lab.data.workers import _random_box, center_crop

VIEWS = data.Augmentation(flip=True, jitter=True, area=(0.08, 1.0))


def picture(path: Path, width: int = 40, height: int = 30, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def album(root: Path, classes: str = "cat dog eel", each: int = 5) -> Path:
    for number, name in enumerate(classes.split()):
        for i in range(each):
            suffix = (".png", ".JPEG", ".bmp")[i % 3]
            picture(root / name / f"{i:02}{suffix}", 30 + i % 7, 40 - i % 9, seed=100 * number + i)
    return root


def files(split: data.Split | None) -> FileSplit:
    assert isinstance(split, FileSplit)
    return split


def names(split: data.Split | None) -> set[str]:
    return {str(files(split).path(i)) for i in range(len(files(split)))}


def test_undivided_folder_keeps_a_fifth_for_the_test(tmp_path: Path) -> None:
    root = album(tmp_path / "pets", each=10)
    (root / "cat" / "notes.txt").write_text("not an image")
    (root / "cat" / ".hidden.png").write_bytes(b"")
    (root / "dog" / "more").symlink_to(picture(tmp_path / "elsewhere" / "deep.png").parent)
    (root / "dog" / "round").symlink_to(root)
    dataset = data.load(str(root), size=32, validation=6)
    assert dataset.classes == ("cat", "dog", "eel")
    assert [len(names(s)) for s in (dataset.train, dataset.validation, dataset.test)] == [19, 6, 6]
    everything = names(dataset.train) | names(dataset.validation) | names(dataset.test)
    assert len(everything) == 31
    for split in (dataset.test, dataset.validation):
        assert torch.bincount(files(split).labels).tolist() == [2, 2, 2]
    for i, label in enumerate(dataset.train.labels.tolist()):
        assert dataset.classes[label] in files(dataset.train).path(i).parts
    assert names(data.load(str(root)).test) == names(dataset.test)


def test_a_folder_may_bring_its_splits(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        data.load(str(tmp_path / "nowhere"))
    album(tmp_path / "train", each=4)
    album(tmp_path / "val", each=2)
    dataset = data.load(str(tmp_path))
    assert (len(dataset.train), dataset.validation, len(dataset.test)) == (12, None, 6)
    assert dataset.size == 224
    album(tmp_path / "test", each=1)
    dataset = data.load(str(tmp_path))
    assert (len(files(dataset.validation)), len(dataset.test)) == (6, 3)
    with pytest.raises(ValueError, match="has its own validation split"):
        data.load(str(tmp_path), validation=2)


def test_imagenet_and_caltech_are_found_in_the_root(tmp_path: Path) -> None:
    for part in ("train", "val"):
        album(tmp_path / "imagenet" / part, "n01440764 n01443537", each=3)
    imagenet = data.load("imagenet", tmp_path)
    assert (imagenet.classes, len(imagenet.test)) == (("n01440764", "n01443537"), 6)
    caltech = tmp_path / "256_ObjectCategories"
    album(caltech, "001.ak47 056.dog 257.clutter", each=10)
    picture(caltech / "056.dog" / "greg" / "stray.jpg")
    dataset = data.load("caltech256", tmp_path)
    assert dataset.classes == ("001.ak47", "056.dog")
    assert (len(dataset.train), len(dataset.test)) == (16, 4)


def test_fingerprint_follows_names_sizes_and_split(tmp_path: Path) -> None:
    root = album(tmp_path)
    marks = [data.load(str(root)).fingerprint, data.load(str(root)).fingerprint]
    marks.append(data.load(str(root), size=32).fingerprint)
    marks.append(data.load(str(root), validation=3).fingerprint)
    (root / "cat" / "00.png").rename(root / "cat" / "zz.png")
    marks.append(data.load(str(root)).fingerprint)
    picture(root / "cat" / "zz.png", 9, 9)
    marks.append(data.load(str(root)).fingerprint)
    assert [a == b for a, b in pairwise(marks)] == [True, False, False, False, False]


def test_images_are_read_once_for_their_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again where one was replaced by another of the same size and time."""
    root = album(tmp_path)
    monkeypatch.setattr(content, "SETTLED", 0)
    read: list[str] = []
    original = content._sha256

    def counted(path: Path) -> bytes:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(content, "_sha256", counted)
    first = data.load(str(root))
    assert read == []  # not before it is asked for
    marks = [first.fingerprint]
    count = len(read)
    assert count == len(first.train) + len(first.test)
    marks.append(data.load(str(root)).fingerprint)
    assert len(read) == count
    file = sorted((root / "cat").glob("*.png"))[0]
    before = file.stat()
    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    file.write_bytes(changed)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    marks.append(data.load(str(root)).fingerprint)
    assert marks[0] == marks[1] != marks[2]
    assert 0 < len(read) - count < count  # its class alone


def batches(dataset: data.Dataset, workers: int, **more: Any) -> list[data.Batch]:  # noqa: ANN401
    arguments = {"batch": 4, "seed": 1, "stop": 7, "workers": workers, **more}
    return list(data.train_batches(dataset, VIEWS, **arguments))


def assert_same(one: list[data.Batch], other: list[data.Batch]) -> None:
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)


def test_workers_processes_and_starts_give_one_stream(tmp_path: Path) -> None:
    dataset = data.load(str(album(tmp_path)), size=24)
    state = torch.get_rng_state()
    whole = batches(dataset, 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert whole[0].images.shape == (4, 3, 24, 24)
    assert_same(whole, batches(dataset, 2))
    assert_same(whole[3:], batches(dataset, 2, start=3))
    shares = [batches(dataset, 0, rank=rank, world_size=2) for rank in range(2)]
    both = [
        data.Batch(torch.cat([a.images, b.images]), torch.cat([a.labels, b.labels]))
        for a, b in zip(*shares, strict=True)
    ]
    assert_same(whole, both)
    line = torch.cat([batch.labels for batch in whole])[:24]  # two epochs of twelve
    assert torch.equal(line[:12].bincount(), dataset.train.labels.bincount())
    assert torch.equal(line[12:].bincount(), dataset.train.labels.bincount())
    assert not torch.equal(line[:12], line[12:])


def test_evaluation_is_torchvisions_resize_and_centre_crop(tmp_path: Path) -> None:
    from torchvision.transforms import v2

    dataset = data.load(str(album(tmp_path)), size=56)
    usual = v2.Compose([v2.Resize(64, antialias=True), v2.CenterCrop(56)])
    stream = list(data.eval_batches(dataset, dataset.train, batch=5, workers=0))
    images = torch.cat([batch.images for batch in stream])
    assert torch.equal(torch.cat([batch.labels for batch in stream]), dataset.train.labels)
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (dataset.mean, dataset.std))
    for i, image in enumerate(images):
        expected = (usual(dataset.train.picture(i)) / 255 - mean) / std
        torch.testing.assert_close(image, expected)


@pytest.mark.parametrize("shape", [(3, 100, 100), (3, 20, 400), (3, 400, 20), (3, 1, 1)])
def test_random_parts_lie_inside_and_have_their_area(shape: tuple[int, int, int]) -> None:
    image = torch.zeros(shape, dtype=torch.uint8)
    source = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(200):
        top, left, height, width = _random_box(image, (0.08, 1.0), source)
        assert 0 <= top <= top + height <= shape[1]
        assert 0 <= left <= left + width <= shape[2]
        assert height > 0
        assert width > 0
        shares.append(height * width / (shape[1] * shape[2]))
    if shape == (3, 100, 100):
        assert 0.07 < min(shares) < 0.15
        assert 0.85 < max(shares) <= 1
    assert center_crop(image, 24).shape == (3, 24, 24)


def test_plain_views_are_squares_of_the_resized_image(tmp_path: Path) -> None:
    dataset = data.load(str(album(tmp_path)), size=21)
    plain = data.Augmentation()
    stream = data.train_batches(dataset, plain, batch=12, seed=0, stop=1, workers=0)
    again = data.train_batches(
        dataset, data.Augmentation(flip=True), batch=12, seed=0, stop=1, workers=0
    )
    for one, other in zip(next(stream).images, next(again).images, strict=True):
        assert torch.equal(one, other) or torch.equal(one, other.flip(2))


def huge_png(path: Path, side: int = 12_000, height: int | None = None) -> Path:
    """A file of some kilobytes that claims 432 MB of pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, height or side, 8, 2, 0, 0, 0))
    rows = zlib.compress(b"\0" * 100_000)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return path


def bad_files(root: Path) -> dict[Path, str]:
    """One file of every bad kind, and what is said of it."""
    cut = picture(root / "cut.jpg", 64, 64)
    cut.write_bytes(cut.read_bytes()[:-900])
    empty = root / "empty.png"
    empty.touch()
    text = root / "page.jpg"
    text.write_text("<html>404</html>")
    icon = root / "icon.png"
    Image.new("RGB", (16, 16)).save(icon, format="ICO")
    noise = root / "noise.png"
    noise.write_bytes(picture(root / "noise.png").read_bytes()[:60] + b"\xff" * 500)
    broad = huge_png(root / "broad.png", 8_000)
    return {
        cut: "truncated",
        empty: "empty",
        text: "not a JPEG",
        icon: "not a JPEG",
        noise: "(broken|checksum|truncated|unrecognized)",
        broad: "more than 50 million pixels",
        huge_png(root / "huge.png"): "more than 50 million pixels",
        huge_png(root / "vast.png", 50_000): "more than 50 million pixels",
        huge_png(root / "line.png", 40_000, 1): "40000 x 1 pixels: .* once its short side is",
        huge_png(root / "column.png", 1, 40_000): "1 x 40000 pixels: .* once its short side is",
        huge_png(root / "strip.png", 70_000, 500): "a side of more than 65,535",
    }


def test_bad_images_are_one_line_that_names_the_file(tmp_path: Path) -> None:
    for path, reason in bad_files(tmp_path).items():
        with pytest.raises(ValueError, match=reason) as caught:
            data.read_image(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="no such image"):
        data.read_image(tmp_path / "nowhere.png")


def saved(path: Path, image: Image.Image) -> Tensor:
    image.save(path)
    return data.read_image(path)


def test_images_of_every_kind_become_three_channels(tmp_path: Path) -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    expected = torch.from_numpy(grey).expand(3, -1, -1)
    assert torch.equal(saved(tmp_path / "grey.png", Image.fromarray(grey)), expected)
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    assert torch.equal(saved(tmp_path / "deep.png", deep), expected)
    palette = Image.fromarray(grey).convert("P")
    palette.info["transparency"] = bytes(range(256))
    assert saved(tmp_path / "palette.png", palette).shape == (3, 16, 16)
    for mode, suffix in (("1", ".png"), ("RGBA", ".webp"), ("CMYK", ".jpg"), ("LA", ".png")):
        image = Image.fromarray(grey).convert("RGB").convert(mode) if mode != "LA" else None
        image = image or Image.fromarray(grey).convert("LA")
        read = saved(tmp_path / f"{mode}{suffix}", image)
        assert (read.shape, read.dtype) == ((3, 16, 16), torch.uint8)
    with pytest.raises(ValueError, match="32 bits"):
        saved(tmp_path / "float.tif", Image.fromarray(grey.astype(np.float32)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_stops_training_in_one_line(tmp_path: Path, workers: int) -> None:
    root = album(tmp_path, each=4)
    for path in (root / "dog").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    dataset = data.load(str(root), size=24)
    with pytest.raises(ValueError, match="sortnet data check") as caught:
        batches(dataset, workers, batch=8)
    assert f"{root / 'dog'}/" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_check_finds_every_bad_file(tmp_path: Path) -> None:
    root = album(tmp_path / "pets", each=40)
    assert data.check(str(root), tmp_path) == []
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "dog").symlink_to(root / "dog")
    bad = bad_files(root / "dog") | {root / "cat" / "Thumbs.db": "does not end like an image's"}
    (root / "cat" / "Thumbs.db").write_bytes(b"x")
    gone = root / "eel" / "gone.png"
    gone.symlink_to(tmp_path / "nowhere.png")
    seen: list[tuple[str, int, int]] = []
    problems = dict(data.check(str(root), tmp_path, on_progress=lambda *step: seen.append(step)))
    assert set(problems) == {*bad, gone}
    assert all(re.search(reason, problems[path]) for path, reason in bad.items())
    assert all(reason and "\n" not in reason for reason in problems.values())
    assert seen[-1][1:] == (133, 133)
    found = dict(data.check(str(tmp_path / "links")))
    assert len(found) == len(bad)
    assert "1 folder of images; it needs two or more" in found[tmp_path / "links"]
    with pytest.raises(ValueError, match=r"(gone|empty)\.png and 1 more files are empty"):
        data.load(str(root))
    with pytest.raises(ValueError, match="neither a dataset nor a folder"):
        data.check("nothing", tmp_path)
