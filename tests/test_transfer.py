"""Transfer: the protocol of section 4.3 against the same done by hand, and the cached features."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file
from sklearn.metrics import balanced_accuracy_score
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC
from torch import Tensor, nn

from sortnet import create_model, pretrained
from sortnet.cli import main
from sortnet.lab import data, transfer
from sortnet.lab.transfer import extract as responses
from sortnet.lab.transfer import linear
from sortnet.networks import NETWORKS, Network

CATEGORIES = 8
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Categories of 61 to 63 tiny images, each of one color with noise."""
    root = tmp_path_factory.mktemp("images") / "colors"
    draw = np.random.default_rng(0)
    for category in range(CATEGORIES):
        (root / f"kind{category:02}").mkdir(parents=True)
        color = draw.integers(60, 200, 3)
        for i in range(61 + category % 3):
            pixels = (color + draw.normal(0, 12, (6, 7, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"kind{category:02}" / f"{i}.png")
    return root


def saved(directory: Path, fusion: str = "sort", seed: int = 0) -> Path:
    torch.manual_seed(seed)
    config = pretrained.Config(
        "lenet", ("a", "b"), fusion, {"branched": True, "size": 32}, 32, MEAN, STD
    )
    return pretrained.save(config.create_model(), config, directory)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("nets") / "net")


def test_the_protocol_is_what_it_is_by_hand(net: Path, folder: Path) -> None:
    heard = []
    found = transfer.transfer(
        net, str(folder), splits=2, seed=3, show=lambda *what: heard.append(what)
    )
    assert list(found) == ["pool3", "fc4"]
    network, _ = pretrained.load(net)
    dataset = data.load(str(folder), size=32)
    images, labels = [], []
    for split in (dataset.train, dataset.test):
        for batch in data.eval_batches(dataset, split, batch=100, workers=0):
            pixels = batch.images * torch.tensor(dataset.std).view(3, 1, 1)
            pixels = pixels + torch.tensor(dataset.mean).view(3, 1, 1)
            mean, std = (torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD))
            images.append((pixels - mean) / std)  # as the network's own images were
            labels.append(batch.labels)
    every = torch.cat(labels)
    with torch.no_grad():
        maps = cast(Network, network).extract_features(torch.cat(images), "pool3", "fc4")
    by_hand = {"pool3": maps["pool3"].clamp(min=0).mean((2, 3)), "fc4": maps["fc4"]}
    kept = responses.FeatureSource.of(net, str(folder), "data", ()).features(None, None)
    for layer, expected in by_hand.items():
        torch.testing.assert_close(kept[layer], expected, rtol=1e-4, atol=1e-5)
        rows = normalize(np.sqrt(kept[layer].numpy()))
        train, test = (x.numpy() for x in linear.divided(every, 60, 3, 1))
        assert len(train) == 60 * CATEGORIES
        svm = LinearSVC(C=10, fit_intercept=False, dual=False).fit(rows[train], every[train])
        right = balanced_accuracy_score(every[test], svm.predict(rows[test]))
        assert found[layer].accuracies[1] == pytest.approx(100 * right)
        assert right > 3 / CATEGORIES
    assert ("features", len(every), len(every)) in heard
    assert heard[-1] == ("splits", 2, 2)


def test_accuracy_is_the_mean_over_categories() -> None:
    """With 20 test images of one category and 1 of the other, all of the one wrong."""
    labels = torch.tensor([0] * 21 + [1] * 2)
    features = torch.zeros(23, 2)
    features[:21, 0], features[21:, 1] = 1, 1
    _, test = linear.divided(labels, 1, 0, 0)
    features[test[labels[test] == 0]] = torch.tensor([0.0, 1.0])
    assert transfer.evaluate(features, labels, 1, splits=1).accuracies == (50.0,)


def test_mean_and_deviation() -> None:
    result = transfer.Transfer((1.0, 2.0, 6.0))
    assert result.mean == pytest.approx(3.0)
    assert result.std == pytest.approx(np.std([1, 2, 6], ddof=1))
    assert transfer.Transfer((5.0,)).std is None


def test_splits_are_drawn_for_each_category_by_itself() -> None:
    labels = torch.arange(4).repeat_interleave(torch.tensor([5, 6, 7, 30]))
    drawn = [linear.divided(labels, 4, seed, i) for seed in range(2) for i in range(3)]
    for train, test in drawn:
        assert torch.bincount(labels[train]).tolist() == [4, 4, 4, 4]
        assert sorted(torch.cat([train, test]).tolist()) == list(range(len(labels)))
    assert len({tuple(train.tolist()) for train, _ in drawn}) == 6
    fewer, _ = linear.divided(labels[:18], 4, 0, 0)
    assert torch.equal(fewer, drawn[0][0][:12])


@pytest.mark.parametrize(("name", "options"), [("lenet", {"branched": True}), ("resnet20", {})])
def test_an_images_features_depend_on_no_other_image(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = data.load("digits")
    digits = replace(digits, train=digits.train.subset(torch.arange(90)), test=first(digits, 3))
    network = create_model(name, 10, "sort", **options).eval()
    layers = responses.last_layers(network)
    whole = transfer.features(network, digits, layers)
    part = replace(digits, train=digits.train.subset(torch.arange(65)))
    for layer, rows in transfer.features(network, part, layers).items():
        assert torch.equal(rows[:65], whole[layer][:65])
        assert torch.equal(rows[65:], whole[layer][90:])
    for group in (1, 7):
        monkeypatch.setattr(responses, "GROUP", group)
        for layer, rows in transfer.features(network, part, layers).items():
            assert float((rows[:65] - whole[layer][:65]).abs().max() / rows.max()) < 1e-5


def first(digits: data.Dataset, count: int) -> data.Split:
    return digits.test.subset(torch.arange(count))


def test_layers_without_a_choice_are_the_papers() -> None:
    with torch.device("meta"):
        network = create_model("alexnet", fusion="sort", branched=True)
        maps = network.extract_features(
            torch.empty(2, 3, 227, 227), *responses.last_layers(network)
        )
    assert {layer: tuple(x.shape) for layer, x in maps.items()} == {
        "pool5": (2, 256, 6, 6),
        "fc6": (2, 4096),
        "fc7": (2, 4096),
    }
    assert responses._pooled(maps["pool5"]).shape == (2, 256)
    for name in NETWORKS:
        with torch.device("meta"):
            assert responses.last_layers(create_model(name))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The layers of each time that features are really made."""
    calls: list[tuple[str, ...]] = []
    real: Callable[..., dict[str, Tensor]] = responses.features

    def features(network: object, dataset: object, layers: list[str], **rest: object) -> object:
        calls.append(tuple(layers))
        return real(network, dataset, layers, **rest)

    monkeypatch.setattr(responses, "features", features)
    return calls


def test_features_are_kept_and_made_again(
    tmp_path: Path, counted: list[tuple[str, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    def source(fusion: str = "sort", seed: int = 0) -> dict[str, Tensor]:
        net = saved(tmp_path / "net", fusion, seed)
        loaded = responses.FeatureSource.of(net, "digits", "data", ("pool3", "fc4")[: len(layers)])
        digits = data.load("digits")
        few = replace(digits, train=digits.train.subset(torch.arange(5)), test=first(digits, 4))
        return replace(loaded, dataset=replace(few, mean=MEAN, std=STD)).features(None, None)

    layers = ["pool3"]
    before = source()
    assert torch.equal(source()["pool3"], before["pool3"])
    assert counted == [("pool3",)]
    layers = ["pool3", "fc4"]  # only the new one is made
    source()
    assert counted[1:] == [("fc4",)]
    assert not torch.equal(source(seed=1)["pool3"], before["pool3"])  # other weights
    assert not torch.equal(source("sum")["pool3"], before["pool3"])  # the same, otherwise fused
    assert counted[2:] == [("pool3", "fc4")] * 2
    kept = sorted((tmp_path / "net" / "features").glob("*"))
    assert len(kept) == 12
    for path in kept:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(source()["pool3"], before["pool3"])
    assert counted[4:] == [("pool3", "fc4")]
    assert len(caplog.records) == 2


def test_another_image_makes_other_features(net: Path, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(5):
            Image.new("RGB", (8, 8), (40 * i, 90, 0)).save(folder / name / f"{i}.png")
    cache = tmp_path / "cache"
    transfer.transfer(net, str(folder), per_class=2, splits=1, layers=["fc4"], cache=cache)
    Image.new("RGB", (8, 8), (1, 2, 3)).save(folder / "a" / "new.png")
    transfer.transfer(net, str(folder), per_class=2, splits=1, layers=["fc4"], cache=cache)
    about = [json.loads(path.read_text()) for path in cache.glob("*.json")]
    assert sorted(x["images"] for x in about) == [10, 11]


def test_a_probe_takes_the_data_sets_own_split(net: Path, tmp_path: Path) -> None:
    (found,) = transfer.probe(net, "digits", layers=["pool3"], cache=tmp_path).values()
    digits = data.load("digits")
    rows = responses.FeatureSource.of(net, "digits", "data", ["pool3"]).features(tmp_path, None)[
        "pool3"
    ]
    count = len(digits.train)
    arguments = rows[:count], digits.train.labels, rows[count:]
    assert found == transfer.fit_probe(*arguments, digits.test.labels)
    assert found.accuracy > 60
    wrong = transfer.fit_probe(*arguments, (digits.test.labels + 1) % 10)
    assert wrong.strength == found.strength, "the test images have had a say in the choice"
    assert wrong.accuracy < 15


def test_any_model_has_features(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=7)
    torch.save(model.state_dict(), tmp_path / "tuned.pt")
    command = ["transfer", "torchvision:resnet18", "--data", str(folder), "--size", "32"]
    command += ["--root", str(tmp_path), "--splits", "1", "--device", "cpu"]
    assert main([*command, "--weights", str(tmp_path / "tuned.pt")]) == 0
    (written,) = (tmp_path / "features").glob("features-*.safetensors")
    found = load_file(written)["features"]
    dataset = replace(
        data.load(str(folder), size=32), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    )
    assert dataset.test is not None
    images = next(iter(data.eval_batches(dataset, dataset.test, batch=64)))[0]
    body = nn.Sequential(*list(model.children())[:-1]).eval()
    with torch.inference_mode():
        torch.testing.assert_close(
            found[-len(dataset.test) :][:64], body(images).flatten(1), rtol=1e-4, atol=1e-5
        )
    for wrong, says in (
        ([], "torchvision:resnet18 has no trained weights; give --weights FILE or --pretrained"),
        (["--weights", str(tmp_path / "tuned.pt"), "--layer", "layer5"], "did you mean layer4"),
    ):
        capsys.readouterr()
        assert main([*command, *wrong]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert "\n" not in error.strip()


def test_wrong_input_is_one_line(net: Path, folder: Path, tmp_path: Path) -> None:
    def fails(says: str, error: type[Exception] = ValueError, **asked: object) -> None:
        arguments: dict[str, object] = {"model": net, "data": str(folder), **asked}
        with pytest.raises(error, match=says) as caught:
            transfer.transfer(**arguments)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)

    fails("category 'kind00' has 61 images, but 61 for training", per_class=61)
    fails("splits is 0", splits=0)
    fails("LeNet\\*-SORT has no layer 'fc9'; there are conv1", layers=["fc9"])
    fails("unknown dataset 'caltech'", data="caltech")
    fails("caltech256 is not in", FileNotFoundError, data="caltech256", root=tmp_path)
    fails("holds no network", model=tmp_path)
    labels = torch.tensor([0, 0, 1, 1])
    for bad in (torch.full((4, 2), float("nan")), torch.full((4, 2), -1.0)):
        with pytest.raises(ValueError, match="finite and not negative"):
            transfer.evaluate(bad, labels, 1)
    with pytest.raises(ValueError, match="3 rows of features for 4"):
        transfer.evaluate(torch.ones(3, 2), labels, 1)
    with pytest.raises(ValueError, match="two categories"):
        transfer.evaluate(torch.ones(4, 2), torch.ones(4, dtype=torch.int64), 1)
    with pytest.raises(ValueError, match="two classes"):
        transfer.fit_probe(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64), *(labels,) * 2)
