"""Runs as data and as directories, and the commands that use them."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from sortnet import pretrained
from sortnet.cli import main
from sortnet.lab import runs
from sortnet.lab.recipes import IMAGENET_RESNET, LENET, RECIPES, RESNET, Section
from sortnet.lab.runs import Run, train

SHORT = replace(LENET, sections=(Section(0.02, 4),), batch=8)
ALL = [
    Run("resnet20", RESNET.scaled(0.1), fusion="sort", data="cifar10"),
    Run(
        "lenet", SHORT, options={"branched": True, "head": "compact"}, seed=3, freeze=("conv1.*",)
    ),
    Run("resnet50", IMAGENET_RESNET, data="some/pets", validation=10, init="x", name="again"),
    Run("resnet20", RESNET, precision="bfloat16"),
]


def test_every_run_and_recipe_can_be_a_file() -> None:
    for run in (*ALL, *(Run("lenet", recipe) for recipe in RECIPES.values())):
        assert Run.from_json(json.loads(json.dumps(run.as_json()))) == run


def test_ids_read_as_paths() -> None:
    assert [run.id for run in ALL] == [
        "cifar10/resnet20-sort-x0.1/seed0",
        "digits/lenet-branched-headcompact/seed3",
        "pets/resnet50-again/seed0",
        "digits/resnet20-bfloat16/seed0",
    ]


def test_a_misspelt_entry_is_no_default() -> None:
    value = ALL[0].as_json()
    with pytest.raises(ValueError, match="a run has no entry 'sead'"):
        Run.from_json({**value, "sead": 1})
    with pytest.raises(ValueError, match="a recipe has no entry 'momentun'"):
        Run.from_json({**value, "recipe": {**value["recipe"], "momentun": 1}})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one finished run."""
    out = tmp_path_factory.mktemp("runs")
    return train(Run("lenet", SHORT, validation=20), out).directory


def test_a_finished_run_is_a_network(finished: Path) -> None:
    network, config = runs.load(finished)
    assert config.classes == tuple("0123456789")
    assert not network.training
    (finished / "config.json").rename(finished / "aside.json")
    halfway, other = runs.load(finished)  # from its last checkpoint
    (finished / "aside.json").rename(finished / "config.json")
    images = torch.randn(3, 3, 32, 32)
    assert torch.equal(network(images), halfway(images))
    assert (other.mean, other.size) == (config.mean, config.size)


def test_predict_reads_ordinary_pictures(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of any size and shape, in color or not: classes with probabilities that fall."""
    Image.new("RGB", (640, 411), (200, 30, 30)).save(tmp_path / "photo.jpg")
    Image.new("L", (8, 9), 120).save(tmp_path / "small.png")
    paths = [str(tmp_path / "photo.jpg"), str(tmp_path / "small.png")]
    assert main(["predict", str(finished), *paths, "--top", "10"]) == 0
    for path, line in zip(paths, capsys.readouterr().out.splitlines(), strict=True):
        assert line.startswith(f"{path}: ")
        shares = [float(part.split()[1]) for part in line.removeprefix(f"{path}: ").split(", ")]
        assert len(shares) == 10
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(100, abs=1)


def test_a_picture_of_the_networks_size_is_taken_as_it_is(finished: Path) -> None:
    _, config = runs.load(finished)
    picture = torch.randint(256, (3, 32, 32), dtype=torch.uint8)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (config.mean, config.std))
    torch.testing.assert_close(config.prepare(picture)[0], (picture / 255 - mean) / std)
    assert config.prepare(torch.zeros(3, 57, 301, dtype=torch.uint8)).shape == (1, 3, 32, 32)


def test_weights_of_another_run_are_a_start(finished: Path) -> None:
    from sortnet.lab import data

    run = Run("lenet", SHORT, init=str(finished), freeze=("conv1.*", "conv2.*"), name="tuned")
    network = runs.fresh(run, data.load("digits"))
    trained = runs.load(finished)[0].state_dict()
    for name, weight in network.named_parameters():
        assert torch.equal(weight, trained[name])
        assert weight.requires_grad != name.startswith(("conv1", "conv2"))
    with pytest.raises(ValueError, match="--freeze layer9"):
        runs.fresh(replace(run, freeze=("layer9.*",)), data.load("digits"))
    with pytest.raises(ValueError, match="belong to another network"):
        runs.fresh(Run("resnet20", RESNET, init=str(finished)), data.load("digits"))


def mistake(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and the one line of an error."""
    code = main(arguments)
    captured = capsys.readouterr()
    assert captured.err.startswith("sortnet: ")
    assert captured.err.count("\n") == 1
    return code, captured.err


def test_mistakes_are_one_line_and_lose_nothing(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    out = ["--out", str(finished.parent.parent.parent), "--precision", "float32"]
    cases = [
        (["train", "lenet", "--data", "cifar10", "--root", str(tmp_path)], 1, "data get cifar10"),
        (["train", "lenet", "--validation", "20", *out], 2, "is another run: its recipe is"),
        (["train", "lenet", "--recipe", "none"], 2, "unknown recipe 'none'; there are lenet"),
        (["train", "lenet", "--data", "mnist"], 2, "mnist"),
        (["train", "lenet", "--num-classes", "3"], 2, "--num-classes is not for training"),
        (["eval", str(tmp_path)], 2, "holds no network"),
        (["doctor", str(tmp_path)], 2, "is not a run"),
        (["predict", str(finished), str(tmp_path / "no.png")], 1, "no such image"),
        (
            ["train", "lenet", "--weights", str(tmp_path), "--out", str(tmp_path / "r")],
            2,
            "holds no",
        ),
    ]
    for arguments, code, says in cases:
        got, line = mistake(arguments, capsys)
        assert (got, says in line) == (code, True), line
    assert {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o500)
    code, line = mistake(["train", "lenet", "--out", str(tmp_path / "runs")], capsys)
    assert code == 1
    assert str(tmp_path) in line


def test_a_file_where_the_folder_should_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").write_text("not a folder")
    code, line = mistake(["train", "lenet", "--out", str(tmp_path / "runs")], capsys)
    assert code == 1
    assert str(tmp_path / "runs") in line
    assert (tmp_path / "runs").read_text() == "not a folder"


def test_a_recipe_with_gates_gives_them_to_products_only(tmp_path: Path) -> None:
    gated = replace(SHORT, gate="zero")
    run = Run("lenet", gated, "sort", options={"branched": True})
    network, config = runs.load(train(run, tmp_path).directory)
    gates = {key for key in network.state_dict() if key.endswith("gate")}
    assert len(gates) == 3
    assert config.options["gate"] == "zero"
    assert all(network.get_parameter(key).abs().max() > 0 for key in gates)  # they were trained
    assert "gate" not in replace(run, fusion="sum+max").built(32)
    assert replace(run, options={"gate": "one"}).built(32)["gate"] == "one"


def test_every_run_is_below_the_directory_of_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing that can be asked for leads out of it."""
    (tmp_path / "pets" / "x").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "pets")
    for data in (".", "x/..", "./", "x/../../pets", str(tmp_path / "pets" / "x" / "..")):
        assert Run("lenet", SHORT, data=data).id == "pets/lenet/seed0"
    out = ["--out", str(tmp_path / "runs")]
    for flags in (
        ["--data", "/"],
        ["--data", "x/../../../../../../../../../.."],
        ["--fusion", "sum/../../../../outside"],
        ["--head", "../../../outside"],
    ):
        code, _ = mistake(["train", "lenet", *flags, *out], capsys)
        assert code == 2
    assert {path.name for path in tmp_path.rglob("*")} == {"pets", "x"}


def test_a_directory_without_a_network_does_not_hide_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "resnet20-sort-cifar10"
    monkeypatch.chdir(tmp_path)
    assert main(["transfer", name, "--data", "digits", "--root", "data", "--probe"]) == 0
    assert not Path(name).exists()
    assert list(Path("data/features").glob("pool-*.safetensors"))
    (tmp_path / name / "features").mkdir(parents=True)
    network, config = runs.load(name)
    assert config.network == "resnet20"
    pretrained.save(network, replace(config, trained={"by": "me"}), name)  # now one is in it
    assert runs.load(name)[1].trained == {"by": "me"}
