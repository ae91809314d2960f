"""The embedded data set: 1,797 handwritten digits that come with scikit-learn."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from sortnet.lab.data.dataset import (
    Dataset,
    InMemorySplit,
    LoadOptions,
    colours,
    fingerprint,
    stratified,
)

SIDE = 32
TEST = 360


def read(root: Path, wanted: LoadOptions) -> Dataset:
    """Read the digits, brought from 8 x 8 to the 32 x 32 colour images that the networks take.

    The split is ours: 360 of them, the same share of each digit, are the test images.

    Arguments:
        root: Not needed.
        wanted: How many of the 1,437 training images are held out, the same share of each digit.
    """
    wanted.plain(SIDE)
    images, labels = _enlarged()
    whole = InMemorySplit.of(images, labels)
    rest, test = stratified(labels, TEST, "digits", "test")
    wanted.room(len(rest))
    train, validation = whole.chosen(rest), None
    if wanted.validation:
        rows, held = stratified(train.labels, wanted.validation, "digits", "validation")
        train, validation = train.chosen(rows), train.chosen(held)
    mean, std = colours(images[rest])
    names = tuple("0123456789")
    splits = (train.rows, validation.rows if validation else None, test)
    mark = fingerprint("digits", images, labels, *splits, mean, std)
    return Dataset(
        "digits", names, SIDE, train, validation, whole.chosen(test), mean, std, False, mark
    )


def _enlarged() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = torch.from_numpy(digits.images).float()[:, None] * (255 / 16)
    large = F.interpolate(small, size=(SIDE, SIDE), mode="bilinear")
    images = large.round().to(torch.uint8).expand(-1, 3, -1, -1).contiguous()
    return images, torch.from_numpy(digits.target).to(torch.int64)
