"""Exported networks give PyTorch's logits at any batch size, or there is no file."""

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sortnet import export, files, pretrained
from sortnet.lab import data
from sortnet.lab.recipes import LENET
from sortnet.lab.runs import Run, load, sample_images

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

NETS = {"resnet20": {}, "lenet": {"branched": True}}


def digits() -> Tensor:
    dataset = data.load("digits")
    return next(data.eval_batches(dataset, dataset.test, batch=200)).images


def saved(name: str, directory: Path, **options: object) -> Path:
    """A network of digits whose running statistics are those of the digits."""
    torch.manual_seed(0)
    dataset = data.load("digits")
    options = {"size": 32, **options}
    run = Run(name, LENET, fusion="sort", options=options)
    config = pretrained.Config(
        name,
        dataset.classes,
        "sort",
        options,
        32,
        dataset.mean,
        dataset.std,
        {"run": json.loads(json.dumps(run.as_json()))},
    )
    network = config.create_model()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        network.train()(digits())
    return pretrained.save(network, config, directory)


@pytest.fixture(scope="module", params=NETS)
def net(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(request.param, tmp_path_factory.mktemp("nets") / "net", **NETS[request.param])


def logits(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = network(images)
    return result


def test_onnx_gives_the_same_logits(net: Path, tmp_path: Path) -> None:
    network, config = load(net)
    result = export.to_onnx(network, config, tmp_path / "net.onnx", sample_images(config, "", 200))
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]
    assert (result.images, result.kind) == (200, "given")
    expected = logits(network, digits())
    close = 1e-5 * float(expected.abs().max())  # each processor rounds in its own way
    assert result.difference < close
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    for batch in (1, 7, 200):
        parts = torch.split(digits(), batch)
        found = [session.run(["logits"], {"images": part.numpy()})[0] for part in parts]
        assert float((torch.cat([*map(torch.from_numpy, found)]) - expected).abs().max()) < close
    about = json.loads(session.get_modelmeta().custom_metadata_map[export.ABOUT])
    assert (tuple(about["classes"]), about["size"]) == (config.classes, 32)
    assert tuple(about["mean"]) == config.mean


def test_small_numbers_under_roots_are_kept(tmp_path: Path) -> None:
    """The exporter's optimizer would drop those of a bilinear head: NaN."""
    net = saved("lenet", tmp_path / "net", branched=True, head="bilinear")
    assert export.to_onnx(*load(net), tmp_path / "net.onnx", digits()[:9]).difference < 1e-6


def test_torch_export_gives_the_same_logits(tmp_path: Path) -> None:
    net = saved("lenet", tmp_path / "net", branched=True)
    images = torch.randn(20, 3, 32, 32)
    result = export.to_torch_export(*load(net), tmp_path / "net.pt2", images)
    assert (result.images, result.kind) == (20, "given")
    assert result.difference < 1e-5
    extra = {export.ABOUT: ""}
    program = torch.export.load(tmp_path / "net.pt2", extra_files=extra)
    assert json.loads(extra[export.ABOUT])["title"] == "LeNet*-SORT"
    expected = logits(load(net)[0], images)
    for batch in (1, 3, 20):
        with torch.no_grad():
            found = program.module()(images[:batch])
        torch.testing.assert_close(found, expected[:batch], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wrong", [0.01, float("nan")])
def test_a_wrong_file_gets_no_name(
    wrong: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = saved("lenet", tmp_path / "net", branched=True)
    traced = export._Subject.traced

    def another(subject: export._Subject) -> torch.export.ExportedProgram:
        changed = copy.deepcopy(subject.network)
        with torch.no_grad():
            changed.get_submodule("fc5").get_parameter("bias")[0] += wrong
        return traced(replace(subject, network=changed))

    monkeypatch.setattr(export._Subject, "traced", another)
    out = tmp_path / "out"
    out.mkdir()
    (out / "net.onnx").write_text("the old one")
    with pytest.raises(OSError, match="is not written: its logits would differ"):
        export.to_onnx(*load(net), out / "net.onnx", digits()[:9])
    assert [path.name for path in out.iterdir()] == ["net.onnx"]
    assert (out / "net.onnx").read_text() == "the old one"


def test_random_images_where_the_data_are_not_there(tmp_path: Path) -> None:
    net = saved("lenet", tmp_path / "net", branched=True)
    written = files.read_sealed(net / "config.json", pretrained.SEAL)
    written["trained"]["run"]["data"] = "cifar10"
    files.write_sealed(net / "config.json", written, pretrained.SEAL)
    network, config = load(net)
    assert sample_images(config, tmp_path, 200) is None
    result = export.to_torch_export(network, config, tmp_path / "net.pt2")
    assert (result.images, result.kind) == (200, "random")


def test_wrong_input_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = saved("lenet", tmp_path / "net", branched=True)
    with pytest.raises(ValueError, match=r"should be called net\.onnx"):
        export.to_onnx(*load(net), tmp_path / "net.pt2")
    with pytest.raises(FileNotFoundError, match=r"cannot write .*: there is no directory"):
        export.to_torch_export(*load(net), tmp_path / "no" / "net.pt2")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match="pip install onnx onnxscript onnxruntime"):
        export.to_onnx(*load(net), tmp_path / "net.onnx")
