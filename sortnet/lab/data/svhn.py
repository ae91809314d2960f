"""SVHN: cropped digits of house numbers, 32 x 32, in MATLAB files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sortnet.errors import UsageError
from sortnet.lab.data import lcn
from sortnet.lab.data.cache import cached, sha256
from sortnet.lab.data.dataset import (
    Dataset,
    InMemorySplit,
    LoadOptions,
    channel_stats,
    fingerprint,
)
from sortnet.lab.data.download import file_md5
from sortnet.lab.data.matlab import variable
from sortnet.lab.data.seeds import generator
from sortnet.lab.data.sources import SOURCES

SIDE = 32
FILES = {part: f"{part}_32x32.mat" for part in ("train", "extra", "test")}
HELD_OUT = {"train": 400, "extra": 200}
"""Images of each digit in the validation split: 6,000 in all, as in pylearn2.

The paper does not say which; ours are sampled with a fixed seed.
"""
CHUNK = 2000
PREPROCESS = (*lcn.KINDS, "none")


def read(root: Path, options: LoadOptions) -> Dataset:
    """Read SVHN. The training split is train and extra, without the validation split.

    Arguments:
        root: Folder of the three files, or of a folder ``svhn`` with them.
        options: ``preprocess`` defaults to ``lcn``; the result is cached beside the files.
    """
    kind = options.preprocess or "lcn"
    if kind not in PREPROCESS:
        raise UsageError(f"unknown preprocessing {kind!r}; svhn has {', '.join(PREPROCESS)}")
    options.check_size(SIDE)
    folder = find(root)
    missing = [name for name in FILES.values() if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} has no {', '.join(missing)}; {_advice(root)}")
    trusted = {part: _published(folder / name) for part, name in FILES.items()}
    labels = {part: _labels(folder / name, trusted[part]) for part, name in FILES.items()}
    rest, held = _split(labels)
    if options.validation not in (0, len(held)):
        raise UsageError(
            f"svhn has its own validation split of {len(held):,} images; --validation must be 0,"
            f" not {options.validation}"
        )
    source = [sha256(folder / name) for name in FILES.values()]

    def pictures(*parts: str) -> Tensor:
        count = sum(len(labels[part]) for part in parts)
        chunks = _chunks(folder, {part: (labels[part], trusted[part]) for part in parts})
        path = folder / f"svhn-{kind}-{'-'.join(parts)}.npy"
        return _pictures(path, count, kind, chunks, source)

    pool = pictures("train", "extra")
    whole = InMemorySplit.of(pool, torch.cat([labels["train"], labels["extra"]]))
    test = InMemorySplit.of(pictures("test"), labels["test"])
    # Includes the 1 % held out for validation; leaving them out is not worth a copy.
    mean, std = channel_stats(pool) if kind == "none" else ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    content = fingerprint("svhn", source, kind, rest, held)
    names = tuple("0123456789")
    train, validation = whole.subset(rest), whole.subset(held)
    return Dataset("svhn", names, SIDE, train, validation, test, mean, std, False, content)


def find(root: Path) -> Path:
    """Return the folder with any of the three files."""
    for folder in (root, root / "svhn"):
        if any((folder / name).is_file() for name in FILES.values()):
            return folder
    raise FileNotFoundError(
        f"svhn is not in {root}: {', '.join(FILES.values())} are missing; {_advice(root)}"
    )


def _advice(root: Path) -> str:
    return f"download it with `sortnet data get svhn --root {root}`"


def _published(path: Path) -> bool:
    """Return True if a file has its published checksum."""
    return file_md5(path) == next(s.md5 for s in SOURCES["svhn"] if s.name == path.name)


def _labels(path: Path, trusted: bool) -> Tensor:
    found = variable(path, "y", trusted=trusted)
    if found.dtype.kind not in "uif":
        raise UsageError(f"{path} has labels of {found.dtype}, not numbers")
    labels = torch.from_numpy(found.astype(np.int64).reshape(-1))
    if len(labels) == 0 or labels.min() < 1 or labels.max() > 10:
        raise UsageError(f"{path} has labels that are not 1 to 10")
    return labels % 10  # the files use 10 for the digit 0


def _split(labels: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the rows (of train followed by extra) to train on, and those held out."""
    masks = []
    for part, count in HELD_OUT.items():
        held = torch.zeros(len(labels[part]), dtype=torch.bool)
        for digit in range(10):
            rows = (labels[part] == digit).nonzero().squeeze(1)
            if len(rows) <= count:
                raise UsageError(
                    f"{FILES[part]} has {len(rows)} images of {digit}, too few to hold out {count}"
                )
            order = torch.randperm(len(rows), generator=generator("split", "svhn", part, digit))
            held[rows[order[:count]]] = True
        masks.append(held)
    held = torch.cat(masks)
    return (~held).nonzero().squeeze(1), held.nonzero().squeeze(1)


def _pictures(
    path: Path, count: int, kind: str, chunks: Iterator[Tensor], source: list[str]
) -> Tensor:
    if kind == "none":
        raw = torch.empty(count, 3, SIDE, SIDE, dtype=torch.uint8)
        begin = 0
        for chunk in chunks:
            raw[begin : begin + len(chunk)] = chunk
            begin += len(chunk)
        return raw
    made = (lcn.KINDS[kind](chunk) for chunk in chunks)
    return cached(path, fingerprint(source, kind), (count, 3, SIDE, SIDE), made)


def _chunks(folder: Path, parts: dict[str, tuple[Tensor, bool]]) -> Iterator[Tensor]:
    """Yield images, (n, 3, 32, 32); MATLAB stores the axes in reverse."""
    for part, (labels, trusted) in parts.items():
        path = folder / FILES[part]
        pixels = variable(path, "X", trusted=trusted)
        if pixels.dtype != np.uint8 or pixels.shape != (SIDE, SIDE, 3, len(labels)):
            raise UsageError(f"{path} has {pixels.shape} of {pixels.dtype}, not bytes of 32 x 32")
        for begin in range(0, len(labels), CHUNK):
            chunk = pixels[..., begin : begin + CHUNK].transpose(3, 2, 0, 1)
            yield torch.from_numpy(np.ascontiguousarray(chunk))
