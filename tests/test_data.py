"""Batches are pure functions of (seed, step), and augmentation does what it says."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from sortnet.lab import data
from sortnet.lab.data.augment import (
    GRAY,
    AugmentParams,
    _crop_and_flip_on_device,
    color_jitter,
    crop_and_flip,
    sample_params,
)
from sortnet.lab.data.dataset import Dataset, InMemorySplit, channel_stats, stratified_split

EVERYTHING = data.Augmentation(pad=2, flip=True, jitter=True)
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def toy(count: int = 30, side: int = 8, *, flip: bool = True) -> Dataset:
    """Random images with distinct labels, so that the order can be seen."""
    images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)
    split = InMemorySplit.of(images, torch.arange(count))
    names = tuple(map(str, range(count)))
    return Dataset("toy", names, side, split, None, split, MEAN, STD, flip, "")


def concatenated(batches: Iterator[data.Batch]) -> data.Batch:
    images, labels = zip(*batches, strict=True)
    return data.Batch(torch.cat(images), torch.cat(labels))


def same(one: data.Batch, other: data.Batch) -> bool:
    return torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**40))
def test_every_epoch_has_every_image_once(count: int, batch: int, seed: int) -> None:
    steps = -(-3 * count // batch)
    stream = data.train_batches(
        toy(count, 2), data.Augmentation(), batch=batch, seed=seed, stop=steps
    )
    line = concatenated(stream).labels
    assert len(line) == steps * batch
    for epoch in line[: 3 * count].split(count):  # type: ignore[no-untyped-call]
        assert epoch.sort().values.tolist() == list(range(count))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    lines = [
        concatenated(
            data.train_batches(toy(40, 2), data.Augmentation(), batch=40, seed=seed, stop=3)
        ).labels
        for seed in (0, 1)
    ]
    orders = {tuple(epoch.tolist()) for line in lines for epoch in line.view(3, 40)}
    assert len(orders) == 6


@pytest.mark.parametrize("world_size", [2, 4])
def test_processes_share_the_stream_of_one(world_size: int) -> None:
    dataset = toy()
    whole = data.train_batches(dataset, EVERYTHING, batch=8, seed=3, stop=9)
    parts = [
        data.train_batches(
            dataset, EVERYTHING, batch=8, seed=3, stop=9, rank=rank, world_size=world_size
        )
        for rank in range(world_size)
    ]
    for batch, *shares in zip(whole, *parts, strict=True):
        assert same(batch, concatenated(iter(shares)))


def test_a_stream_begins_anywhere() -> None:
    dataset = toy()
    whole = list(data.train_batches(dataset, EVERYTHING, batch=7, seed=3, stop=12))
    for start in (1, 5, 11):
        rest = data.train_batches(dataset, EVERYTHING, batch=7, seed=3, start=start, stop=12)
        assert all(same(a, b) for a, b in zip(whole[start:], rest, strict=True))


def test_the_global_random_state_plays_no_part() -> None:
    dataset = toy()
    before = torch.get_rng_state()
    one = concatenated(data.train_batches(dataset, EVERYTHING, batch=8, seed=0, stop=4))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert same(
        one, concatenated(data.train_batches(dataset, EVERYTHING, batch=8, seed=0, stop=4))
    )


def test_the_images_in_memory_are_never_changed() -> None:
    dataset = toy()
    assert isinstance(dataset.train, InMemorySplit)
    before = dataset.train.images.clone()
    concatenated(data.train_batches(dataset, EVERYTHING, batch=8, seed=0, stop=8))
    assert torch.equal(dataset.train.images, before)


def slow_crop_and_flip(
    image: Tensor, augmentation: data.Augmentation, params: AugmentParams, i: int
) -> Tensor:
    """Mirror, pad with the mean color or by reflection, and crop one image."""
    image = image.float()
    pad, side = augmentation.pad, image.shape[-1]
    if augmentation.flip and params.flip[i]:
        image = torch.stack([image[:, :, side - 1 - x] for x in range(side)], dim=2)
    if augmentation.reflect:
        padded = F.pad(image, (pad, pad, pad, pad), mode="reflect")
    else:
        fill = [round(255 * mean) for mean in MEAN]
        padded = torch.stack(
            [
                F.pad(plane, (pad,) * 4, value=value)
                for plane, value in zip(image, fill, strict=True)
            ]
        )
    top, left = (min(2 * pad, int(corner * (2 * pad + 1))) for corner in params.corner[i].tolist())
    return padded[:, top : top + side, left : left + side]


@pytest.mark.parametrize("reflect", [False, True])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("pad", [0, 1, 4])
def test_crops_and_mirrors_one_by_one(pad: int, flip: bool, reflect: bool) -> None:
    augmentation = data.Augmentation(pad=pad, flip=flip, reflect=reflect)
    images = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8)
    params = sample_params(50, 0, 0)
    slow = [slow_crop_and_flip(image, augmentation, params, i) for i, image in enumerate(images)]
    fill = torch.tensor(MEAN).mul(255).round()
    fast = crop_and_flip(images.clone(), params, augmentation, fill)
    assert fast.dtype == torch.uint8
    assert torch.equal(fast.float(), torch.stack(slow))


def test_crops_begin_everywhere_and_half_are_mirrored() -> None:
    params = sample_params(4000, 0, 0)
    spots = (params.corner * 9).to(torch.int64)
    assert (torch.bincount(spots[:, 0] * 9 + spots[:, 1], minlength=81) > 0).all()
    assert 0.46 < params.flip.float().mean() < 0.54


def test_padding_is_zero_to_half_a_grey_level() -> None:
    dataset = replace(toy(), mean=(0.41, 0.52, 0.63))
    assert isinstance(dataset.train, InMemorySplit)
    images = torch.full_like(dataset.train.images, 255)
    dataset = replace(dataset, train=InMemorySplit.of(images, dataset.train.labels))
    padded = data.Augmentation(pad=4)
    batch = next(data.train_batches(dataset, padded, batch=30, seed=0, stop=1)).images
    padding = batch[batch < batch.amax((0, 2, 3), keepdim=True) - 1e-3].abs()
    assert len(padding) > 100
    assert padding.max() <= 0.5 / 255 / min(STD) + 1e-6


def blended(image: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return factor * image + (1 - factor) * other


def slow_jitter(image: Tensor, factors: Tensor, order: tuple[int, ...]) -> Tensor:
    for kind in order:
        grey = (image * torch.tensor(GRAY).view(3, 1, 1)).sum(0, keepdim=True).expand_as(image)
        others = (torch.zeros_like(image), grey.mean().expand_as(image), grey)
        image = blended(image, others[kind], factors[kind])
    return image


def test_jitter_in_one_pass_is_jitter_in_three() -> None:
    images = torch.rand(6, 3, 5, 5) * 255
    orders = set()
    for step in range(40):
        params = sample_params(6, 1, step)
        orders.add(params.order)
        slow = [slow_jitter(x, params.factors[:, i], params.order) for i, x in enumerate(images)]
        fast = color_jitter(images.clone(), params)
        torch.testing.assert_close(fast, torch.stack(slow), atol=1e-3, rtol=1e-5)
    assert len(orders) == 6
    assert params.factors.min() >= 0.6
    assert params.factors.max() <= 1.4


def test_one_part_of_the_augmentation_leaves_the_others() -> None:
    dataset = toy()
    streams = [
        concatenated(data.train_batches(dataset, augmentation, batch=8, seed=0, stop=4)).images
        for augmentation in (data.Augmentation(flip=True), data.Augmentation())
    ]
    mirrored = torch.cat([sample_params(8, 0, step).flip for step in range(4)])
    expected = torch.where(mirrored.view(-1, 1, 1, 1), streams[1].flip(3), streams[1])
    assert torch.equal(streams[0], expected)


def test_digits_are_never_mirrored() -> None:
    dataset = toy(flip=False)
    streams = [
        concatenated(
            data.train_batches(dataset, data.Augmentation(flip=flip), batch=8, seed=0, stop=4)
        )
        for flip in (True, False)
    ]
    assert same(*streams)


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_evaluation_is_the_split_in_order(world_size: int) -> None:
    dataset = toy(31)
    assert isinstance(dataset.test, InMemorySplit)
    parts = [
        data.eval_batches(dataset, dataset.test, batch=4, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    batch = concatenated(item for part in parts for item in part)
    assert batch.labels.tolist() == list(range(31))
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (MEAN, STD))
    torch.testing.assert_close(batch.images, (dataset.test.images / 255 - mean) / std)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch": 10, "world_size": 4}, "batch of 10 .* 4 processes"),
        ({"batch": 0}, "batch 0"),
        ({"batch": 4, "rank": 2, "world_size": 2}, "process 2 of 2"),
        ({"batch": 4, "start": 9}, "steps 9 to 5"),
    ],
)
def test_impossible_streams_are_refused_at_once(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        data.train_batches(toy(), EVERYTHING, **{"seed": 0, "stop": 5, **arguments})


def test_impossible_augmentations_are_refused() -> None:
    with pytest.raises(ValueError, match="padded by -1"):
        data.Augmentation(pad=-1)
    with pytest.raises(ValueError, match="area must be two fractions"):
        data.Augmentation(area=(0.5, 2.0))
    with pytest.raises(ValueError, match="8 pixels cannot be reflected by a padding of 8"):
        next(
            data.train_batches(
                toy(), data.Augmentation(pad=8, reflect=True), batch=2, seed=0, stop=1
            )
        )


@given(st.lists(st.integers(0, 5), min_size=2, max_size=80), st.data())
def test_stratified_takes_its_share_of_each_class(labels: list[int], more: st.DataObject) -> None:
    count = more.draw(st.integers(0, len(labels) - 1))
    whole = torch.tensor(labels)
    rest, held = stratified_split(whole, count, "test")
    assert len(held) == count
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(len(labels)))
    sizes = torch.bincount(whole, minlength=6)
    taken = torch.bincount(whole[held], minlength=6)
    assert ((taken - sizes * count / len(labels)).abs() < 1).all()


def test_colors_are_mean_and_deviation() -> None:
    images = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8)
    planes = images.double().transpose(0, 1).flatten(1) / 255
    mean, std = channel_stats(images)
    torch.testing.assert_close(torch.tensor(mean).double(), planes.mean(1))
    torch.testing.assert_close(torch.tensor(std).double(), planes.std(1, correction=0))


def test_digits() -> None:
    plain, held = data.load("digits"), data.load("digits", validation=100)
    assert (len(plain.train), len(plain.test), plain.validation) == (1437, 360, None)
    assert held.validation is not None
    assert (len(held.train), len(held.validation)) == (1337, 100)
    splits = [held.train, held.validation, held.test]
    rows = torch.cat([split.rows for split in splits if isinstance(split, InMemorySplit)])
    assert rows.sort().values.tolist() == list(range(1797))
    assert torch.bincount(held.validation.labels).min() >= 9
    assert plain.train.picture(0).shape == (3, 32, 32)
    assert not plain.flip
    again = data.load("digits")
    assert plain.fingerprint == again.fingerprint != held.fingerprint
    images = concatenated(data.eval_batches(plain, plain.train)).images
    assert images.mean().abs() < 1e-3
    assert (images.std() - 1).abs() < 1e-3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "cifar11"}, "unknown dataset 'cifar11'; there are digits, cifar10"),
        ({"name": "digits", "size": 64}, "only image folders are resized to --size 64"),
        ({"name": "digits", "validation": 1437}, "0 to 1436"),
        ({"name": "digits", "preprocess": "lcn"}, "no preprocessing 'lcn'"),
    ],
)
def test_impossible_wishes_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        data.load(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(("pad", "reflect"), [(0, False), (2, False), (3, True)])
def test_a_device_moves_images_bit_for_bit_as_the_cpu_does(
    pad: int, reflect: bool, flip: bool
) -> None:
    images = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8)
    augmentation, fill = data.Augmentation(pad, reflect, flip), torch.tensor([1.0, 2.0, 3.0])
    params = sample_params(40, seed=1, step=2)
    span = 2 * pad + 1
    corners = (params.corner * span).to(torch.int64).clamp_(max=span - 1)
    gathered = _crop_and_flip_on_device(images.clone(), corners, params.flip, augmentation, fill)
    assert torch.equal(gathered, crop_and_flip(images.clone(), params, augmentation, fill))


def test_images_stay_on_their_device_from_the_data_set_to_the_batch() -> None:
    """On the device without content: any operation that mixes it with the CPU would fail."""
    device = torch.device("meta")
    there = toy().to(device)
    assert isinstance(there.train, InMemorySplit)
    assert (there.train.images.device, there.train.images.dtype) == (device, torch.uint8)
    for batch in data.train_batches(there, EVERYTHING, batch=4, seed=0, stop=2, device=device):
        assert batch.images.device == batch.labels.device == device
    for batch in data.eval_batches(there, there.test, device=device):
        assert batch.images.device == batch.labels.device == device
    assert toy().to(torch.device("cpu")).train.images.device.type == "cpu"  # type: ignore[attr-defined]
