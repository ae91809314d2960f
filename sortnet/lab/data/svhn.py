"""SVHN: the cropped digits of street numbers, 32 x 32, in MATLAB files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sortnet.errors import UsageError
from sortnet.lab.data import lcn
from sortnet.lab.data.cache import cached, sha256
from sortnet.lab.data.dataset import Dataset, InMemorySplit, LoadOptions, colours, fingerprint
from sortnet.lab.data.download import file_md5
from sortnet.lab.data.matlab import variable
from sortnet.lab.data.seeds import generator
from sortnet.lab.data.sources import SOURCES

SIDE = 32
FILES = {part: f"{part}_32x32.mat" for part in ("train", "extra", "test")}
HELD_OUT = {"train": 400, "extra": 200}
"""How many images of each digit are the validation split: 6,000 in all, as in pylearn2.

Which ones the paper does not say; ours are drawn once and for all by a fixed seed.
"""
CHUNK = 2000
PREPROCESS = (*lcn.KINDS, "none")


def read(root: Path, wanted: LoadOptions) -> Dataset:
    """Read SVHN: train and extra together, without the validation split, are trained with.

    Arguments:
        root: Where the three files are, or the folder ``svhn`` that has them.
        wanted: ``preprocess`` is ``lcn`` if it is not given; the result is kept beside the files.
    """
    kind = wanted.preprocess or "lcn"
    if kind not in PREPROCESS:
        raise UsageError(f"unknown preprocessing {kind!r} of svhn; there are {_listed()}")
    wanted.sized(SIDE)
    folder = find(root)
    missing = [name for name in FILES.values() if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} has no {', '.join(missing)}; {_advice(root)}")
    trusted = {part: _published(folder / name) for part, name in FILES.items()}
    labels = {part: _labels(folder / name, trusted[part]) for part, name in FILES.items()}
    rest, held = _divided(labels)
    if wanted.validation not in (0, len(held)):
        raise UsageError(
            f"svhn has a validation split of its own, of {len(held):,} images; "
            f"validation is 0, not {wanted.validation}"
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
    # Of all that is not for the test: the 1 % that are held out make no difference worth a copy.
    mean, std = colours(pool) if kind == "none" else ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    mark = fingerprint("svhn", source, kind, rest, held)
    names = tuple("0123456789")
    train, validation = whole.chosen(rest), whole.chosen(held)
    return Dataset("svhn", names, SIDE, train, validation, test, mean, std, False, mark)


def _listed() -> str:
    return ", ".join(PREPROCESS)


def find(root: Path) -> Path:
    """The folder that has any of the three files."""
    for folder in (root, root / "svhn"):
        if any((folder / name).is_file() for name in FILES.values()):
            return folder
    raise FileNotFoundError(
        f"svhn is not in {root}: {', '.join(FILES.values())} are not there; {_advice(root)}"
    )


def _advice(root: Path) -> str:
    return f"get it with `sortnet data get svhn --root {root}`"


def _published(path: Path) -> bool:
    """Return True if a file has the checksum that it was published with."""
    return file_md5(path) == next(s.md5 for s in SOURCES["svhn"] if s.name == path.name)


def _labels(path: Path, trusted: bool) -> Tensor:
    found = variable(path, "y", trusted=trusted)
    if found.dtype.kind not in "uif":
        raise UsageError(f"{path} has labels of {found.dtype}, not numbers")
    labels = torch.from_numpy(found.astype(np.int64).reshape(-1))
    if len(labels) == 0 or labels.min() < 1 or labels.max() > 10:
        raise UsageError(f"{path} has labels that are not 1 to 10")
    return labels % 10  # there, 10 stands for the digit 0


def _divided(labels: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of train followed by extra: those that are trained with, and those held out."""
    marks = []
    for part, count in HELD_OUT.items():
        held = torch.zeros(len(labels[part]), dtype=torch.bool)
        for digit in range(10):
            rows = (labels[part] == digit).nonzero().squeeze(1)
            if len(rows) <= count:
                raise UsageError(
                    f"{FILES[part]} has {len(rows)} images of {digit}, too few for {count} to be "
                    f"held out"
                )
            order = torch.randperm(len(rows), generator=generator("split", "svhn", part, digit))
            held[rows[order[:count]]] = True
        marks.append(held)
    held = torch.cat(marks)
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
    """Images, (n, 3, 32, 32); MATLAB has them the other way round."""
    for part, (labels, trusted) in parts.items():
        path = folder / FILES[part]
        pixels = variable(path, "X", trusted=trusted)
        if pixels.dtype != np.uint8 or pixels.shape != (SIDE, SIDE, 3, len(labels)):
            raise UsageError(f"{path} has {pixels.shape} of {pixels.dtype}, not bytes of 32 x 32")
        for begin in range(0, len(labels), CHUNK):
            chunk = pixels[..., begin : begin + CHUNK].transpose(3, 2, 0, 1)
            yield torch.from_numpy(np.ascontiguousarray(chunk))
