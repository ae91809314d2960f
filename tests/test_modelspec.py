"""Models by name: ours, torchvision's, timm's and a user's functions."""

import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sortnet import modelspec, pretrained
from sortnet.cli import main
from sortnet.errors import UsageError
from sortnet.lab import runs
from sortnet.lab.recipes import SCRATCH
from sortnet.lab.runs import Run

timm = pytest.importorskip("timm")

SOURCE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return x + self.conv(x)

class Tiny(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.one, self.two = Block(), Block()
        self.head = nn.Linear(8, num_classes)

    def forward(self, x):
        x = self.stem(x)
        for block in (self.one, self.two):
            if x.shape[-1] > 2:
                x = block(x)
        return self.head(x.relu().mean((2, 3)))

def three(): return Tiny()
def deep(depth): return Tiny(depth)
def chain(num_classes): return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))
def broken(): raise RuntimeError("no disk\\nat all")
def number(): return 3
model = Tiny()
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the current directory."""
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "bad.py").write_text("import nothing_of_that_name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield "mine"
    for name in ("mine", "bad"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "spec", ["resnet20", "torchvision:resnet18", "timm:test_resnet", "timm:test_vit", "mine:Tiny"]
)
def test_a_model_has_the_datas_classes_and_keeps_its_weights(spec: str, mine: str) -> None:
    """The plain model and the one with zero gates give the same logits, from the same seed."""
    models = []
    for fusion, gate in (("sum", None), ("sort", "zero")):
        torch.manual_seed(0)
        made = modelspec.create(spec, num_classes=4, fusion=fusion, gate=gate, size=32)
        models.append(made.eval())
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        plain, gated = (model(images) for model in models)
    assert plain.shape == (2, 4)
    torch.testing.assert_close(plain, gated)
    gates = [name for name, _ in models[1].named_parameters() if name.endswith("gate")]
    assert gates
    assert not any(name.endswith("gate") for name, _ in models[0].named_parameters())


MISTAKES = {
    "resnet21": "unknown network 'resnet21'; did you mean .*resnet20",
    "torchvision:resnet81": "torchvision has no model 'resnet81'; did you mean resnet",
    "timm:resnet81": "timm has no model 'resnet81'; did you mean",
    "nowhere:make": "there is no module 'nowhere'; use a name like resnet20",
    "bad:make": "bad does not import: ModuleNotFoundError: No module named 'nothing_of_that_name'",
    "os:abort": "os is part of Python",
    "mine:Tinny": "mine has no function 'Tinny'; did you mean Tiny",
    "mine:deep": "mine:deep needs the argument 'depth'",
    "mine:model": "mine:model is a model, but must be a function",
    "mine:broken": "mine:broken failed: RuntimeError: no disk",
    "mine:number": "mine:number returned a int, not a torch.nn.Module",
    "mine:": "'mine:' is not the name of a model",
    "a b:c/../d": "is not the name of a model",
}


@pytest.mark.parametrize("spec", MISTAKES)
def test_mistakes_are_one_line(spec: str, mine: str) -> None:
    with pytest.raises(UsageError, match=MISTAKES[spec]) as error:
        modelspec.create(spec, num_classes=3)
    assert "\n" not in str(error.value)


def test_timm_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match=r"pip install 'sortnet\[timm\]'"):
        modelspec.create("timm:resnet18")


def test_logits_are_taken_out_of_an_output_object() -> None:
    """Hugging Face's models return an object, Inception in training a named tuple."""
    output = namedtuple("output", ["logits", "other"])

    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Any:  # noqa: ANN401
            return output(super().forward(x), None)

    model = modelspec.call(lambda: Model(2, 3), "local", {})
    assert model(torch.ones(1, 2)).shape == (1, 3)


def test_pretrained_weights_but_not_their_head(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import models

    offered: dict[str, Tensor] = models.resnet18(num_classes=1000).state_dict()
    asked: dict[str, object] = {}

    def download(_self: object, **options: object) -> dict[str, Tensor]:
        asked.update(options)
        return offered

    monkeypatch.setattr(models.WeightsEnum, "get_state_dict", download)
    made = modelspec.create("torchvision:resnet18", num_classes=7, pretrained=True)
    assert asked == {"check_hash": True, "weights_only": True}
    assert torch.equal(made.state_dict()["conv1.weight"], offered["conv1.weight"])
    assert made.state_dict()["fc.weight"].shape == (7, 512)
    with pytest.raises(UsageError, match="resnet20 has no weights to download"):
        modelspec.create("resnet20", pretrained=True)


def test_weights_are_read_from_either_format_and_from_nothing_else(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    weights = {"a": torch.randn(2, 3)}
    save_file(weights, tmp_path / "a.safetensors")
    torch.save(weights, tmp_path / "a.pt")
    torch.save({"state_dict": weights, "epoch": 3}, tmp_path / "b.pt")
    for name in ("a.safetensors", "a.pt", "b.pt"):
        assert torch.equal(pretrained.read_weights(tmp_path / name)["a"], weights["a"])
    torch.save({"a": 1}, tmp_path / "c.pt")
    torch.save(nn.Linear(1, 1), tmp_path / "d.pt")  # a pickled module, which could be anything
    (tmp_path / "e.pt").write_bytes(b"PK and no more")
    for name in ("c.pt", "d.pt", "e.pt"):
        with pytest.raises(UsageError, match=f"{name} is not a state dict") as error:
            pretrained.read_weights(tmp_path / name)
        assert "\n" not in str(error.value)


def test_a_run_of_a_users_model_is_trained_saved_and_loaded(mine: str, tmp_path: Path) -> None:
    """Its directory has a safe name, and is itself a model's name afterwards."""
    run = Run("mine:Tiny", SCRATCH.with_steps(2), "sort", options={"where": ".*"}, name="x")
    assert run.id == "digits/mine-Tiny-where._-sort-scratch-x0.001-x/seed0"
    directory = runs.train(run, tmp_path / "runs").directory
    network, config = runs.load(directory)
    assert config.title == "mine:Tiny-SORT"
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    start = runs.start(str(directory))
    assert (start.network, start.options, start.weights) == ("mine:Tiny", {}, str(directory))
    sys.modules.pop("mine")
    (tmp_path / "mine.py").unlink()
    sys.path_importer_cache.clear()
    with pytest.raises(UsageError, match="there is no module 'mine'"):
        runs.load(directory)


def test_a_head_of_another_size_is_refused(mine: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"mine:three returns \(2, 3\).*10 classes.*num_classes"):
        runs.train(Run("mine:three", SCRATCH.with_steps(1)), tmp_path)


def test_commands_take_every_kind_of_name(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for spec in ("resnet20", "torchvision:resnet18", "timm:test_resnet", "mine:Tiny"):
        assert main(["sortify", spec, "--dry-run"]) == 0
        assert "sites" in capsys.readouterr().out
    flags = ["--scale", "0.0005", "--batch", "4", "--out", str(tmp_path / "r")]
    assert main(["train", "mine:Tiny", "--fusion", "sort", "--recipe", "scratch", *flags]) == 0
    assert "mine:Tiny-SORT on digits: test error" in capsys.readouterr().out
    assert main(["info", "mine:Tiny", "--fusion", "sort", "--size", "32"]) == 0
    assert "2 sites where two branches meet, 2 of them" in capsys.readouterr().out
    file = tmp_path / "tiny.pt2"
    assert main(["export", "mine:Tiny", "--size", "32", "--torch-export", str(file)]) == 0
    assert file.stat().st_size > 0
