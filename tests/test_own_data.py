"""A user's image folder, from `data check` over `train` to `eval` and `predict`."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sortnet.cli import main
from sortnet.lab import runs

CLASSES = ("ant", "bee", "cat")
RUN = "pets/lenet-size32-2steps/seed0"


def pictures(folder: Path, count: int = 10) -> None:
    """Write some tiny images into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{i}.png")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a folder of three classes in it."""
    for name in CLASSES:
        pictures(tmp_path / "pets" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(data: str, *more: str) -> int:
    given = ["train", "lenet", "--data", data, "--size", "32", "--batch", "4", "--threads", "1"]
    return main([*given, "--precision", "float32", *more])


def test_the_path_of_a_folder_is_not_its_identity(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three spellings are one run, which is evaluated from anywhere; top-5 of 3 is left out."""
    assert train("pets", "--steps", "2") == 0
    printed = capsys.readouterr()
    header = "LeNet on pets: 24 training, 6 test images of 32 x 32, 3 classes\n"
    assert header in printed.err
    assert f"2 steps of 4 images (0.333 epochs) on cpu, 1 thread, float32, in runs/{RUN}\n" in (
        printed.err
    )
    assert printed.out.endswith(f"runs/{RUN}\n")
    for data in ("./pets", str(home / "pets"), "pets/../pets/"):
        assert train(data, "--steps", "2") == 0
        again = capsys.readouterr()
        assert ", as trained before" in again.out
        assert again.err == ""
    monkeypatch.chdir("/")
    assert main(["eval", str(home / "runs" / RUN)]) == 0
    assert "top-5" not in printed.out + printed.err + capsys.readouterr().out
    rows = runs.rows(home / "runs" / RUN)
    assert [row["split"] for row in rows] == ["train", "train", "test"]
    assert not any("error5" in row for row in rows)
    assert "error5" not in json.loads((home / "runs" / RUN / "result.json").read_text())["test"]


def test_epochs_are_counted_in_training_images(home: Path) -> None:
    assert train("pets", "--epochs", "0.5") == 0
    (found,) = runs.find(home / "runs")
    assert runs.read(found).recipe.steps == 3  # half of 24 images, 4 in a step
    assert found.parent.name == "lenet-size32-3steps"


def test_freeze_takes_globs_and_regular_expressions(home: Path) -> None:
    assert train("pets", "--steps", "1", "--freeze", "conv1.*", "(conv2|conv3)[.]weight") == 0
    (found,) = runs.find(home / "runs")
    run = runs.read(found)
    network = runs.fresh(run, run.load("data"))
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    assert frozen == {"conv1.weight", "conv1.bias", "conv2.weight", "conv3.weight"}


@pytest.mark.parametrize(
    ("folders", "count", "says"),
    [
        ("", 10, "has 0 folders of images; it needs two or more"),
        ("ant", 10, "has 1 folder of images; it needs two or more"),
        ("ant empty", 10, "empty has no images"),
        (
            "train/ant train/bee test/ant test/bat",
            10,
            "different classes: only one of them has bat, bee",
        ),
        ("train/ant train/bee", 10, "neither test nor val"),
        ("ant bee", 1, "too few for a test split"),
    ],
)
def test_check_has_the_rules_of_train(
    folders: str, count: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "pets"
    root.mkdir()
    for name in folders.split():
        pictures(root / name, 0 if name == "empty" else count)
    assert main(["data", "check", str(root)]) == 1
    printed = capsys.readouterr()
    assert says in printed.out
    assert printed.err.endswith(": 1 problem\n")
    assert train(str(root), "--out", str(tmp_path / "runs")) == 2
    assert says in capsys.readouterr().err


def test_predict_classifies_a_folder(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "pets/ant", "pets/bee/3.png", "--top", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.partition(": ")[0] for line in lines]
    assert names == [*(f"pets/ant/{i}.png" for i in range(10)), "pets/bee/3.png"]
    assert all(line.count("%") == 1 for line in lines)
