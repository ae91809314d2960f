"""Models of other libraries: their sites, and what they compute with another fusion."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import models
from torchvision.models.convnext import CNBlockConfig

from sortnet import create_model
from sortnet.blocks import TwoBranch
from sortnet.cli import main
from sortnet.fusion import Fusion, kernels, sort
from sortnet.lab.measure import saved_bytes
from sortnet.surgery import Site, branch, sites, sortify
from tools.survey import CASES, Case, create, examine

QUICK = [
    "torchvision:resnet18",
    "torchvision:mobilenet_v3_small",
    "torchvision:regnet_y_800mf",
    "torchvision:quantized_resnet18",
    "torchvision:swin_t",
    "torchvision:densenet121",
    "timm:resnest14d",
    "timm:convnextv2_atto",
    "timm:vit_tiny_patch16_224",
    "transformers:dinov2",
    "transformers:swin",
    "transformers:resnet",
    "torchvision:fasterrcnn_mobilenet_v3_large_320_fpn",
    "torchvision:lraspp_mobilenet_v3_large",
]
"""One of each kind; ``python -m tools.survey`` examines all."""


def resnet18() -> Any:  # noqa: ANN401
    torch.manual_seed(1)
    return models.resnet18(num_classes=10)


def trained(model: nn.Module, images: Tensor, lr: float = 0.1) -> nn.Module:
    """Return the model after one training step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    labels = torch.arange(len(images)) % 10
    torch.autograd.backward(F.cross_entropy(model(images), labels))
    optimizer.step()
    return model


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in QUICK], ids=lambda case: case.name
)
def test_models_of_others(case: Case) -> None:
    """With ``sum`` outputs are bit-identical in both modes, and the original is untouched."""
    pytest.importorskip(case.name.partition(":")[0])
    outcome = examine(case)
    assert outcome.sites == case.sites
    assert all(name.startswith("backbone.fpn") for name in outcome.problems)
    if case.sites:
        assert outcome.equal
        assert outcome.trained


def test_cases_are_many_and_different() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert set(QUICK) <= set(names)
    for source, count in {"torchvision:": 30, "timm:": 30, "transformers:": 10}.items():
        assert sum(name.startswith(source) for name in names) >= count


@pytest.mark.parametrize("name", ["vit", "dinov2"])
def test_hugging_face_models_keep_their_keyword_arguments(name: str) -> None:
    pytest.importorskip("transformers")
    (case,) = (case for case in CASES if case.name == f"transformers:{name}")
    model: Any = create(case).eval()
    same, new = sortify(model, fusion="sum"), sortify(model)
    images = torch.randn(2, 3, case.side, case.side)
    for changed, equal in ((same, True), (new, False)):
        expected = model(images, output_hidden_states=True)
        actual = changed(pixel_values=images, output_hidden_states=True)
        assert type(actual) is type(expected)
        assert len(actual.hidden_states) == 4
        assert torch.equal(actual.hidden_states[-1], expected.hidden_states[-1]) is equal
        assert torch.equal(changed(images, return_dict=False)[0], actual.logits)


@pytest.mark.parametrize("mode", ["plain", "eager"])
def test_torchvision_with_sort_is_ours_with_sort(mode: str) -> None:
    """Outputs, gradients and running statistics."""
    theirs = sortify(resnet18())
    ours = create_model("resnet18", num_classes=10, fusion="sort")
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(4, 3, 64, 64)
    with kernels.using(mode):
        for net in (theirs, ours):
            trained(net.train(), images, lr=0)
        torch.testing.assert_close(theirs(images), ours(images), rtol=1e-5, atol=1e-5)
    for (name, p), q in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6, msg=name)
    for (name, x), y in zip(theirs.named_buffers(), ours.buffers(), strict=True):
        torch.testing.assert_close(x, y, msg=name)


@pytest.mark.parametrize("name", ["resnet20", "wrn28"])
def test_ours_changed_is_ours_built(name: str) -> None:
    variant: dict[str, Any] = {"width": 1} if name == "wrn28" else {}
    plain, built = create_model(name, **variant), create_model(name, fusion="sort", **variant)
    changed = sortify(plain)
    built.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(changed(images), built(images))
    assert repr(changed) == repr(built)
    assert torch.equal(sortify(changed, fusion="sum")(images), copy.deepcopy(plain)(images))


def test_sort_saves_no_more_for_backward() -> None:
    images = torch.randn(2, 3, 64, 64)
    with kernels.using("eager"):
        for make in (models.resnet18, models.resnext50_32x4d, models.mobilenet_v2):
            plain = make()
            assert saved_bytes(sortify(plain), images) <= saved_bytes(plain, images)
        plain = resnet18()
        written_out = sortify(plain, fusion=lambda _: WrittenOut())
        assert saved_bytes(written_out, images) > 1.3 * saved_bytes(plain, images)


def test_a_branch_reconstructed_from_the_output_has_the_same_gradients() -> None:
    """Blocks without batch normalization, whose output a convolution saves."""
    stages = [CNBlockConfig(8, 16, 2), CNBlockConfig(16, None, 2)]
    net = sortify(models.ConvNeXt(stages, layer_scale=1.0, num_classes=10)).double()
    images = torch.randn(2, 3, 32, 32).double()
    gradients, saved = {}, {}
    for mode in ("eager", "plain"):
        with kernels.using(mode):
            saved[mode] = saved_bytes(net, images)
            net.zero_grad()
            trained(net, images, lr=0)
        gradients[mode] = [p.grad for p in net.parameters()]
    torch.testing.assert_close(gradients["eager"], gradients["plain"])
    assert saved["eager"] < saved["plain"]


class WrittenOut(nn.Module):
    """The formula in plain operations."""

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """Fuse."""
        return x + f + (x.relu() * f.relu() + 1e-4).sqrt()


@pytest.mark.parametrize("name", ["resnet18", "vit", "swin"])
def test_a_zero_gate_starts_where_the_model_is_and_opens(name: str) -> None:
    makers: dict[str, Callable[[], Any]] = {
        "resnet18": resnet18,
        "vit": lambda: models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=10),
        "swin": lambda: models.SwinTransformer(
            [4, 4], 8, [1, 1], [2, 2], [4, 4], num_classes=10, stochastic_depth_prob=0.0
        ),
    }
    model = makers[name]()
    if name == "vit":
        nn.init.normal_(model.heads.head.weight)
    images = torch.randn(4, 3, 32, 32)
    gated = sortify(model, gate="zero", example=images)
    new = set(gated.state_dict()) - set(model.state_dict())
    gates = [gated.get_parameter(key) for key in sorted(new)]
    assert len(gates) == len(sites(model, images))
    assert [len(g) for g in gates] == [site.channels for site in sites(model, images)]
    for mode in (False, True):
        expected = copy.deepcopy(model).train(mode)(images)
        assert torch.equal(gated.train(mode)(images), expected)
    trained(gated.train(), images)
    assert all(gate.abs().min() > 0 for gate in gates)


def test_tokens_are_gated_by_their_last_dimension() -> None:
    vit = models.VisionTransformer(32, 8, 1, 2, 16, 32)
    net = sortify(vit, gate="one", example=torch.randn(1, 3, 32, 32))
    x, f = torch.randn(2, 17, 16), torch.randn(2, 17, 16)
    fusion = net.get_submodule("encoder.layers.encoder_layer_0.fusion1")
    (gate,) = fusion.parameters()
    torch.testing.assert_close(fusion(x, f), sort(x, f, "root"))
    with torch.no_grad():
        gate[3] = 0
    closed = fusion(x, f)
    torch.testing.assert_close(closed[..., 3], (x + f)[..., 3])
    torch.testing.assert_close(closed[..., 4:], sort(x, f, "root")[..., 4:])


class CountingHook:
    """A hook that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: object) -> None:
        """Count."""
        self.calls += 1


def test_all_but_the_fusion_is_kept() -> None:
    net = resnet18().double().eval()
    net.layer2[0].requires_grad_(False)
    hooks = {
        name: CountingHook()
        for name in ("layer1.0", "layer2.0.downsample", "layer3.1.bn2", "layer4.1.relu")
    }
    for name, hook in hooks.items():
        net.get_submodule(name).register_forward_hook(hook)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    changed: Any = sortify(net, where="layer[23].*", gate="one")
    assert all(hook.calls == 0 for hook in hooks.values())
    assert not changed.training
    assert {p.dtype for p in changed.parameters()} == {torch.float64}
    new = [key for key in changed.state_dict() if key not in before]
    assert new == [f"layer{i}.{j}.fusion.gate" for i in (2, 3) for j in (0, 1)]
    for key, value in before.items():
        assert torch.equal(changed.state_dict()[key], value)
        assert torch.equal(net.state_dict()[key], value)
    assert isinstance(changed.layer2[0], models.resnet.BasicBlock)
    assert not any(p.requires_grad for p in changed.layer2[0].conv1.parameters())
    changed(torch.randn(1, 3, 32, 32).double())
    for name, hook in hooks.items():
        (copied,) = changed.get_submodule(name)._forward_hooks.values()
        assert copied.calls == (2 if name == "layer4.1.relu" else 1)
        assert hook.calls == 0


def test_a_changed_model_is_copied_compiled_and_exported() -> None:
    net = sortify(resnet18()).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = net(images)
    assert torch.equal(copy.deepcopy(net)(images), expected)
    # Its own bytes, as processes hand models to each other; nothing is read from disk.
    assert torch.equal(pickle.loads(pickle.dumps(net))(images), expected)
    program = torch.export.export(net, (images,))
    torch.testing.assert_close(program.module()(images), expected)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), expected)


def test_training_and_evaluation_may_differ() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            """Add what is left."""
            return x + F.dropout(self.conv(x), 0.5, self.training) * scale

    block, x = Dropping(), torch.ones(1, 4, 8, 8)
    changed = sortify(block, fusion="sum", example=x)
    for training in (True, False):
        results = []
        for module in (block, changed):
            torch.manual_seed(2)
            results.append(module.train(training)(x))
        assert torch.equal(*results)
    with pytest.raises(ValueError, match=r"scale=1\.0"):
        changed(x, scale=2.0)


@pytest.mark.parametrize("name", ["lenet", "bignet", "alexnet"])
@pytest.mark.parametrize("norm", [False, True])
def test_a_chain_branched_is_our_branched_one(name: str, norm: bool) -> None:
    size: dict[str, Any] = {"size": 67} if name == "alexnet" else {}
    chain = create_model(name, 10, norm=norm, **size)
    starred = create_model(name, 10, norm=norm, branched=True, **size)
    changed = branch(chain)
    starred.load_state_dict(changed.state_dict())
    images = torch.randn(2, 3, starred.size, starred.size)
    for net in (changed, starred):
        net.eval()
    assert torch.equal(changed(images), starred(images))
    fused = sortify(changed, example=images)
    assert {site.fusion for site in sites(fused, images)} == {"sum+prod"}


@pytest.mark.parametrize(("name", "count"), [("alexnet", 5), ("vgg11", 8), ("vgg11_bn", 8)])
def test_torchvision_chains_can_be_branched(name: str, count: int) -> None:
    with torch.device("meta"):
        chain = models.get_model(name)
    changed: Any = branch(chain)
    assert sum(isinstance(m, TwoBranch) for m in changed.modules()) == count
    images = torch.empty(1, 3, 224, 224, device="meta")
    assert changed.features(images).shape == chain.features(images).shape
    assert len(sites(changed)) == count
    one = branch(chain, where="features.0")
    assert sum(isinstance(m, TwoBranch) for m in one.modules()) == 1


def test_predicates_choose_by_what_a_site_is() -> None:
    def deep(site: Site) -> bool:
        return site.channels >= 256

    net = sortify(resnet18(), where=deep)
    assert [name for name, m in net.named_modules() if isinstance(m, Fusion)] == [
        f"layer{i}.{j}.fusion" for i in (3, 4) for j in (0, 1)
    ]


def test_the_command_honors_where_and_skips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Skippable(nn.ModuleList):
        def forward(self, x: Tensor) -> Tensor:
            """Add once more, in a way that cannot be traced."""
            y: Tensor = self[1](self[0](x))
            return x + y if x.mean() > -9 else y

    net = Skippable([models.resnet.BasicBlock(3, 3), models.resnet.BasicBlock(3, 3)])
    monkeypatch.setattr("sortnet.cli.models.Choice.build", lambda _: net)
    output = tmp_path / "weights.safetensors"
    arguments = ["sortify", "torchvision:some", "-o", str(output)]

    def run(*more: str) -> tuple[int, str]:
        code = main([*arguments, *more])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    code, text = run("--dry-run", "--where", "[01]")
    assert (code, text.splitlines()[-1]) == (0, "2 of 3 sites")
    code, text = run("--dry-run", "--skip-unchangeable")
    assert "skipped: TraceError" in " ".join(text.split())
    assert text.endswith("3 of 3 sites, 1 of them cannot be changed\n")
    code, text = run()
    assert code == 2
    assert "--skip-unchangeable" in text
    assert not output.exists()
    code, text = run("--skip-unchangeable")
    assert code == 0
    assert "in 2 of 3 sites" in text
    assert "1 sites skipped: ." in text
