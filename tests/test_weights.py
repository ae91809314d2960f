"""The networks that come with the package are what their cards say."""

import os
from pathlib import Path

import pytest
import torch
from PIL import Image

import sortnet
from sortnet import pretrained
from sortnet.cli import main
from sortnet.lab import runs
from tools import cards

NAMES = ["resnet20-cifar10", "resnet20-sort-cifar10"]


def test_these_come_along() -> None:
    assert pretrained.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_what_its_card_says(name: str) -> None:
    directory = pretrained.place(name)
    text = (directory / "README.md").read_text()
    assert text == cards.markdown(name), "run `make docs`"
    network, config = sortnet.load(name)
    assert f"{config.trained['test']['error']:.2f} %" in text
    assert sum(path.stat().st_size for path in directory.iterdir()) < 1.5e6
    with torch.inference_mode():
        assert network(torch.zeros(2, 3, 32, 32)).isfinite().all()


@pytest.mark.skipif("SORTNET_DATA" not in os.environ, reason="needs CIFAR-10, in SORTNET_DATA")
@pytest.mark.parametrize("name", NAMES)
def test_the_test_images_give_the_cards_error(name: str) -> None:
    _, config = sortnet.load(name)
    _, scores = runs.evaluate(name, os.environ["SORTNET_DATA"])
    assert scores.error == config.trained["test"]["error"]


def test_pictures_are_named_without_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (50, 40), (30, 60, 200)).save("photo.jpg")
    assert main(["predict", "photo.jpg"]) == 0
    first = capsys.readouterr().out
    assert main(["predict", NAMES[1], "photo.jpg"]) == 0
    assert capsys.readouterr().out == first
    assert main(["predict", NAMES[0], "photo.jpg"]) == 0
    assert capsys.readouterr().out != first
    Path(NAMES[0]).mkdir()  # a directory of that name comes first once it holds a network
    assert main(["predict", NAMES[0], "photo.jpg"]) == 0
    (Path(NAMES[0]) / "config.json").write_text("{}")
    assert main(["predict", NAMES[0], "photo.jpg"]) == 2
    assert "has no entry" in capsys.readouterr().err
