"""Networks for others: directories, torch.hub from a clone, timm."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sortnet import create_model, files, pretrained
from sortnet.errors import Damaged
from sortnet.networks import NETWORKS, Network

CLONE = Path(__file__).resolve().parents[1]
SMALL: list[tuple[str, str, dict[str, Any]]] = [
    ("lenet", "sum", {}),
    ("lenet", "sum+max+prod", {"branched": True, "norm": True}),
    ("lenet", "sort", {"branched": True, "head": "compact"}),
    ("resnet20", "sort", {"style": "xu"}),
    ("resnet32", "sort", {"gate": "zero", "eps": 0.01}),
    ("wrn28", "sort", {"width": 1}),
    ("resnet18", "sort", {"size": 64}),
]


def logits(network: nn.Module, size: int = 32, channels: int = 3) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        result: Tensor = network.eval()(torch.randn(2, channels, size, size, generator=draw))
    return result


def seeded(name: str, classes: int, fusion: str, **options: object) -> Network:
    torch.manual_seed(0)
    return create_model(name, classes, fusion, **options)  # type: ignore[arg-type]


def config(name: str, fusion: str, options: dict[str, Any]) -> pretrained.Config:
    classes = ("ape", "bee", "crow")
    return pretrained.Config(name, classes, fusion, options, options.get("size", 32))


@pytest.mark.parametrize(("name", "fusion", "options"), SMALL)
def test_a_directory_is_all_that_is_needed(
    name: str, fusion: str, options: dict[str, Any], tmp_path: Path
) -> None:
    about = config(name, fusion, options)
    network = about.build()
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.01 * torch.randn_like(p))
    pretrained.save(network, about, tmp_path)
    loaded, read = pretrained.load(tmp_path)
    assert read == about
    assert not loaded.training
    assert torch.equal(logits(loaded, about.size), logits(network, about.size))


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    about = config("lenet", "sum", {})
    pretrained.save(about.build(), about, tmp_path)
    weights = tmp_path / pretrained.WEIGHTS
    content = weights.read_bytes()
    for place in (0, 20, len(content) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 1
        weights.write_bytes(damaged)
        with pytest.raises(Damaged, match="does not have the SHA-256"):
            pretrained.load(tmp_path)
    weights.write_bytes(content[:-1])
    with pytest.raises(Damaged, match="does not have the SHA-256"):
        pretrained.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"network": "resnet21"}, "unknown network 'resnet21'"),
        ({"network": "resnet20"}, "the weights do not fit"),
        ({"fusion": "prodd"}, "prodd"),
        ({"options": {"widht": 3}}, "unknown argument 'widht'"),
        ({"classes": ["one", "two"]}, "the weights do not fit: fc5"),
        ({"colour": "blue"}, "unknown entry 'colour'"),
        ({"network": None}, "no entry 'network'"),
    ],
)
def test_wrong_entries_are_one_line(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    about = config("lenet", "sum", {})
    pretrained.save(about.build(), about, tmp_path)
    path = tmp_path / pretrained.CONFIG
    changed = {**files.read_sealed(path, pretrained.SEAL), **change}
    path.write_text(json.dumps({name: x for name, x in changed.items() if x is not None}))
    with pytest.raises(ValueError, match=says) as caught:
        pretrained.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_clone_is_enough_for_torch_hub(tmp_path: Path) -> None:
    """In a process that has no other way to the package than the clone."""
    about = config("lenet", "sum", {})
    pretrained.save(about.build(), about, tmp_path / "net")
    program = f"""
import sys, torch
clone = {str(CLONE)!r}
sys.path = [path for path in sys.path if path not in ("", clone)]
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
torch.manual_seed(0)
net = torch.hub.load(clone, "resnet20", source="local", num_classes=7, fusion="sort")
torch.save(net.state_dict(), "built.pt")
trained = torch.hub.load(clone, "trained", source="local", directory="net")
print(net.layer1[0].fusion, trained.fc5.out_features, trained.training)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Fusion(sum+root) 3 False\n"
    built = torch.load(tmp_path / "built.pt", weights_only=True)
    for name, x in seeded("resnet20", 7, "sort").state_dict().items():
        assert torch.equal(built[name], x)


def test_torch_hub_knows_every_network() -> None:
    """Its entries are the callables whose names do not begin with an underscore."""
    content = runpy.run_path(str(CLONE / "hubconf.py"))
    entries = {name: x for name, x in content.items() if callable(x) and name[0] != "_"}
    assert set(entries) == {*NETWORKS, "trained"}
    assert entries["resnet56"].__doc__.startswith("Create ResNet-56")


@pytest.fixture(scope="module")
def timm() -> Any:  # noqa: ANN401
    module = pytest.importorskip("timm")
    import sortnet.timm  # noqa: F401

    return module


@pytest.mark.parametrize(("name", "fusion", "options"), SMALL)
def test_timm_builds_the_same_networks(
    name: str,
    fusion: str,
    options: dict[str, Any],
    timm: Any,  # noqa: ANN401
) -> None:
    torch.manual_seed(0)
    model = timm.create_model(f"sortnet_{name}", fusion=fusion, num_classes=5, **options)
    ours = seeded(name, 5, fusion, **options)
    assert list(model.state_dict()) == list(ours.state_dict())
    size = options.get("size", 32)
    assert torch.equal(logits(model, size), logits(ours, size))
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        maps = model.forward_features(images)
        vectors = model.forward_head(maps, pre_logits=True)
        assert maps.dim() == 4
        assert vectors.shape == (2, model.num_features)
        assert torch.equal(model.get_classifier()(vectors), model(images))
        model.reset_classifier(9)
        assert (model.num_classes, model(images).shape) == (9, (2, 9))
        model.reset_classifier(0)
        assert torch.equal(model(images), vectors)
    settings = timm.data.resolve_model_data_config(model)
    assert settings["input_size"] == (3, size, size)


def test_timm_knows_every_network(timm: Any) -> None:  # noqa: ANN401
    assert timm.list_models("sortnet_*") == sorted(f"sortnet_{name}" for name in NETWORKS)
    grey = timm.create_model("sortnet_resnet20", in_chans=1, num_classes=0)
    assert grey.num_classes == 0
    assert logits(grey, channels=1).shape == (2, 64)
    with pytest.raises(ValueError, match="no published weights"):
        timm.create_model("sortnet_resnet20", pretrained=True)
    with pytest.raises(ValueError, match="resnet20 has no argument 'width'"):
        timm.create_model("sortnet_resnet20", width=4)
    with pytest.raises(ValueError, match="global_pool cannot be changed"):
        grey.reset_classifier(3, global_pool="max")
