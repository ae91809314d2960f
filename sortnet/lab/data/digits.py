"""Digits: the 1,797 handwritten digits that come with scikit-learn."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from sortnet.lab.data.dataset import (
    Dataset,
    InMemorySplit,
    LoadOptions,
    channel_stats,
    fingerprint,
    stratified_split,
)

SIDE = 32
TEST = 360


def read(root: Path, options: LoadOptions) -> Dataset:
    """Read the digits, enlarged from 8 x 8 to 32 x 32 and repeated in three channels.

    The split is ours: 360 images, the same fraction of each digit, are the test split.

    Arguments:
        root: Not used.
        options: How many of the 1,437 training images are held out, the same fraction of each
            digit.
    """
    options.check_plain(SIDE)
    images, labels = _enlarged()
    whole = InMemorySplit.of(images, labels)
    rest, test = stratified_split(labels, TEST, "digits", "test")
    options.check_validation(len(rest))
    train, validation = whole.subset(rest), None
    if options.validation:
        rows, held = stratified_split(train.labels, options.validation, "digits", "validation")
        train, validation = train.subset(rows), train.subset(held)
    mean, std = channel_stats(images[rest])
    names = tuple("0123456789")
    splits = (train.rows, validation.rows if validation else None, test)
    content = fingerprint("digits", images, labels, *splits, mean, std)
    return Dataset(
        "digits", names, SIDE, train, validation, whole.subset(test), mean, std, False, content
    )


def _enlarged() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = torch.from_numpy(digits.images).float()[:, None] * (255 / 16)
    large = F.interpolate(small, size=(SIDE, SIDE), mode="bilinear")
    images = large.round().to(torch.uint8).expand(-1, 3, -1, -1).contiguous()
    return images, torch.from_numpy(digits.target).to(torch.int64)
