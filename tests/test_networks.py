"""Contracts over every network, plain and branched, and every fusion."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sortnet import create_model
from sortnet.blocks import Basic, Subsample, TwoBranch
from sortnet.fusion import kernels
from sortnet.heads import HEADS
from sortnet.lab.measure import parameters
from sortnet.networks import NETWORKS, display

State = dict[str, Tensor]
# Table 1 and the control of section 3.3. In a residual block the second-order term is the root:
# products without one overflow in deep ones, which is what the paper calls non-convergence.
FUSIONS = {
    "branches": ["sum", "max", "prod", "sum+max", "sum+prod", "max+prod", "sum+max+prod"],
    "residual": ["sum", "max", "root", "sum+max", "sum+root", "max+root", "sum+max+root"],
}
FUSIONS["branches"] += ["sum+square", "sum+root", "sort"]
FUSIONS["residual"] += ["sort"]
CHAINS = ["lenet", "bignet", "alexnet"]
# Small enough to run them all: narrow WRN, small images where the architecture allows them.
SMALL: dict[str, dict[str, Any]] = {
    "alexnet": {"size": 67},
    "wrn28": {"width": 1},
    **{name: {"size": 32} for name in ("resnet18", "resnet34", "resnet50")},
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, SMALL.get(name, {})) for name in NETWORKS),
    *((name, {**SMALL.get(name, {}), "branched": True}) for name in CHAINS),
    ("lenet", {"branched": True, "norm": True}),
    ("resnet20", {"style": "xu"}),
]
FUSING = [(name, v) for name, v in VARIANTS if name not in CHAINS or "branched" in v]
CASES = [
    pytest.param(name, variant, fusion, id=f"{name}-{fusion}")
    for name, variant in FUSING
    for fusion in FUSIONS["branches" if name in CHAINS else "residual"]
]


def ids(value: object) -> str | None:
    return "-".join(map(str, value)) or "plain" if isinstance(value, dict) else None


@pytest.mark.parametrize(
    ("name", "variant", "count"),
    [
        ("lenet", {}, 145_578),
        ("lenet", {"branched": True}, 234_378),
        ("bignet", {}, 7_580_746),
        ("bignet", {"branched": True}, 9_751_562),
        ("alexnet", {}, 60_965_224),
        ("resnet20", {}, 269_722),
        ("resnet32", {}, 464_154),
        ("resnet56", {}, 853_018),
        ("resnet20", {"style": "xu"}, 280_938),
        ("resnet32", {"style": "xu"}, 475_818),
        ("resnet56", {"style": "xu"}, 865_578),
        ("wrn28", {}, 36_479_194),
        ("resnet18", {}, 11_689_512),
        ("resnet34", {}, 21_797_672),
        ("resnet50", {}, 25_557_032),
    ],
)
def test_published_parameter_counts(name: str, variant: dict[str, Any], count: int) -> None:
    assert parameters(create_model(name, **variant)) == count


@pytest.mark.parametrize(("name", "variant", "fusion"), CASES)
def test_every_network_with_every_fusion(name: str, variant: dict[str, Any], fusion: str) -> None:
    network = create_model(name, num_classes=7, fusion=fusion, **variant).double()
    images = torch.randn(3, 3, network.size, network.size, dtype=torch.float64)
    logits = network(images)
    assert logits.shape == (3, 7)
    assert logits.isfinite().all()
    loss = F.cross_entropy(logits, torch.tensor([0, 3, 6]))
    torch.autograd.backward(loss)
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key

    network.eval()
    with torch.no_grad():
        assert torch.equal(network(images), network(images))


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=ids)
def test_weights_travel(name: str, variant: dict[str, Any], tmp_path: Path) -> None:
    """Through a file, and between fusions: no fusion of the paper adds a key."""
    fusion = "sort" if (name, variant) in FUSING else "sum"
    network = create_model(name, num_classes=7, fusion=fusion, **variant).eval()
    images = torch.randn(2, 3, network.size, network.size)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    again = create_model(name, num_classes=7, fusion=fusion, **variant).eval()
    again.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    with torch.no_grad():
        assert torch.equal(network(images), again(images))
    plain = create_model(name, num_classes=7, **variant)
    assert list(plain.state_dict()) == list(network.state_dict())
    plain.load_state_dict(network.state_dict())


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_sum_is_torchvision(name: str) -> None:
    theirs = getattr(torchvision.models, name)().eval()
    ours = create_model(name, num_classes=1000, fusion="sum").eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        assert torch.equal(ours(images), theirs(images))
    torch.manual_seed(0)
    theirs = getattr(torchvision.models, name)()
    torch.manual_seed(0)
    ours = create_model(name)
    scale = [
        {k: v.std() for k, v in m.state_dict().items() if v.dim() > 1} for m in (ours, theirs)
    ]
    torch.testing.assert_close(*scale, rtol=0.1, atol=0)


def norm(x: Tensor, state: State, key: str) -> Tensor:
    mean, var = state[f"{key}.running_mean"], state[f"{key}.running_var"]
    return F.batch_norm(x, mean, var, state[f"{key}.weight"], state[f"{key}.bias"])


def he_forward(x: Tensor, state: State) -> Tensor:
    """ResNet for CIFAR as its authors describe it, written out without any of our modules."""
    x = norm(F.conv2d(x, state["conv1.weight"], padding=1), state, "bn1").relu()
    for stage in (1, 2, 3):
        for i in range(3):
            key, stride = f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1
            f = F.conv2d(x, state[f"{key}.conv1.weight"], stride=stride, padding=1)
            f = norm(f, state, f"{key}.bn1").relu()
            f = norm(F.conv2d(f, state[f"{key}.conv2.weight"], padding=1), state, f"{key}.bn2")
            if stride == 2:
                x = x[:, :, ::2, ::2]
                x = torch.cat([x, torch.zeros_like(x)], dim=1)
            x = (x + f).relu()
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


def wide_forward(x: Tensor, state: State) -> Tensor:
    """WRN-28 as in its authors' code, written out without any of our modules."""
    x = F.conv2d(x, state["conv1.weight"], padding=1)
    for stage in (1, 2, 3):
        for i in range(4):
            key, stride = f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1
            o = norm(x, state, f"{key}.bn1").relu()
            f = F.conv2d(o, state[f"{key}.conv1.weight"], stride=stride, padding=1)
            f = norm(f, state, f"{key}.bn2").relu()
            f = F.conv2d(f, state[f"{key}.conv2.weight"], padding=1)
            if f"{key}.downsample.weight" in state:
                x = F.conv2d(o, state[f"{key}.downsample.weight"], stride=stride)
            x = x + f
    x = norm(x, state, "bn").relu()
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


def lenet_forward(x: Tensor, state: State) -> Tensor:
    """LeNet* with the linear sum."""
    for i, pool in ((1, F.max_pool2d), (2, F.avg_pool2d), (3, F.avg_pool2d)):
        y = torch.zeros(())
        for branch in (f"conv{i}.branch1", f"conv{i}.branch2"):
            f = x
            for conv in (f"{branch}.0", f"{branch}.2"):
                f = F.conv2d(f, state[f"{conv}.weight"], state[f"{conv}.bias"], padding=1).relu()
            y = y + f
        x = pool(y, 3, 2, ceil_mode=True)
    x = F.linear(x.flatten(1), state["fc4.weight"], state["fc4.bias"]).relu()
    return F.linear(x, state["fc5.weight"], state["fc5.bias"])


@pytest.mark.parametrize(
    ("name", "variant", "forward"),
    [
        ("resnet20", {}, he_forward),
        ("wrn28", {"width": 2}, wide_forward),
        ("lenet", {"branched": True}, lenet_forward),
    ],
)
def test_sum_is_the_published_network(
    name: str, variant: dict[str, Any], forward: Callable[[Tensor, State], Tensor]
) -> None:
    network = create_model(name, **variant).double().eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # as if trained: nothing is zero or one
            for tensor in (*module.parameters(), module.running_mean, module.running_var):
                assert tensor is not None
                nn.init.uniform_(tensor, 0.5, 1.5)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(network(images), forward(images, network.state_dict()))


def test_sort_in_a_block_is_the_papers_equation() -> None:
    """It is relu(x + f + sqrt(relu(x) relu(f) + eps)), F read off the same block's parts."""
    network = create_model("resnet20", fusion="sort", eps=0.01).double().eval()
    block = network.get_submodule("layer1.0")
    assert isinstance(block, Basic)
    x = torch.randn(2, 16, 8, 8, dtype=torch.float64)
    f = block.bn2(block.conv2(block.bn1(block.conv1(x)).relu()))
    expected = (x + f + (x.relu() * f.relu() + 0.01).sqrt()).relu()
    torch.testing.assert_close(block(x), expected)


def test_activations_have_names() -> None:
    images = torch.randn(2, 3, 227, 227)
    found = create_model("alexnet").eval().extract_features(images, "fc7", "pool5", "fc6")
    assert {k: tuple(v.shape[1:]) for k, v in found.items()} == {
        "pool5": (256, 6, 6),
        "fc6": (4096,),
        "fc7": (4096,),
    }
    assert all((x >= 0).all() for x in found.values())  # after the ReLU
    assert len(create_model("resnet50").features) == 5
    network = create_model("resnet20", fusion="sort").eval()
    maps = network.extract_features(images[:, :, :32, :32])
    assert list(maps) == ["layer1", "layer2", "layer3", "pool"]
    logits = network.get_submodule("fc")(maps["pool"])
    assert torch.equal(logits, network(images[:, :, :32, :32]))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    ("name", "variant"),
    [("bignet", {"branched": True}), ("resnet20", {}), ("wrn28", {"width": 1})],
)
def test_heads_fit_any_network(name: str, variant: dict[str, Any], head: str) -> None:
    network = create_model(name, num_classes=4, head=head, **variant)
    network(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lenet", {"size": 28, "in_chans": 1}),
        ("alexnet", {"size": 67, "branched": True, "fusion": "sort"}),
        ("resnet20", {"size": 8, "in_chans": 1}),
        ("resnet20", {"size": 76, "style": "xu"}),
        ("resnet18", {"size": 33, "in_chans": 4, "fusion": "sort"}),
    ],
)
def test_other_images(name: str, options: dict[str, Any]) -> None:
    network = create_model(name, num_classes=2, **options)
    images = torch.randn(2, options.get("in_chans", 3), network.size, network.size)
    assert network(images).shape == (2, 2)


@pytest.mark.skipif(not kernels.available("cpu"), reason="Inductor needs a C++ compiler")
def test_what_stands_between_blocks_has_its_gradient_when_compiled() -> None:
    """Pooling and response normalization; torch.compile has had a wrong gradient of pooling."""
    kinds = nn.AvgPool2d, nn.MaxPool2d, nn.LocalResponseNorm
    every = (module for name in CHAINS for module in create_model(name, 10).modules())
    layers = {str(module): module for module in every if isinstance(module, kinds)}
    assert len(layers) == 5

    def together(x: Tensor) -> list[Tensor]:
        return [layer(x) for layer in layers.values()]

    found = []
    torch._dynamo.reset()
    for function in (together, torch.compile(together)):
        x = torch.linspace(-2, 3, 6 * 16 * 16, dtype=torch.float64).cos().view(1, 6, 16, 16)
        x.requires_grad_()
        loss = sum((y * torch.linspace(0, 1, y.shape[-1])).sum() for y in function(x))
        assert isinstance(loss, Tensor)
        found.append(torch.autograd.grad(loss, x)[0])
    torch.testing.assert_close(found[0], found[1])


def test_a_fusion_of_ones_own() -> None:
    class Difference(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a - b

    seen: list[int] = []

    def fusion(channels: int) -> nn.Module:
        seen.append(channels)
        return Difference()

    network = create_model("resnet20", fusion=fusion)
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert seen == [16] * 3 + [32] * 3 + [64] * 3


def test_gates_are_the_only_new_parameters() -> None:
    gated, plain = create_model("resnet20", fusion="sort", gate="zero"), create_model("resnet20")
    new = set(gated.state_dict()) - set(plain.state_dict())
    assert {key.rsplit(".", 1)[1] for key in new} == {"gate"}
    gated.load_state_dict(plain.state_dict(), strict=False)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(gated(images), plain(images))


def test_display_names() -> None:
    assert display("resnet56", "sort") == "ResNet-56-SORT"
    assert display("bignet", branched=True) == "BigNet*"
    assert display("lenet", "sum+max", branched=True) == "LeNet*-sum+max"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: create_model("resnet21"), "there are lenet, .* resnet50"),
        (lambda: create_model("resnet20", branched=True), "it belongs to lenet, bignet, alexnet"),
        (lambda: create_model("resnet20", width=4), "it belongs to wrn28"),
        (
            lambda: create_model("resnet20", depth=4),
            "unknown argument 'depth'; resnet20 takes num_classes, .*, style",
        ),
        (lambda: create_model("resnet20", classes=7), "did you mean num_classes"),
        (lambda: create_model("resnet20", channels=1), "did you mean in_chans"),
        (lambda: create_model("resnet20", num_class=7), "did you mean num_classes"),
        (lambda: create_model("resnet20", pretrained=True), "did you mean sortnet.load"),
        (lambda: create_model("resnet20", num_classes=0), "num_classes is 0"),
        (lambda: create_model("resnet20", in_chans=-1), "in_chans is -1"),
        (lambda: create_model("resnet20", fusion="sum+sum"), "twice"),
        (lambda: create_model("resnet20", style="hu"), "there are he, xu"),
        (lambda: create_model("wrn28", width=0), "width is 0"),
        (lambda: create_model("lenet", fusion="sort"), "branched=True"),
        (lambda: create_model("lenet", fusion="srot", branched=True), "'srot'"),
        (lambda: create_model("lenet", head="max"), "there are average, bilinear, compact"),
        (lambda: create_model("alexnet", size=32), "32 x 32 are too small"),
        (
            lambda: create_model("lenet").extract_features(torch.zeros(1, 3, 32, 32), "fc9"),
            "there are conv1, pool1",
        ),
    ],
)
def test_wrong_input_says_what_is_allowed(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        wrong()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["lenet", "bignet", "alexnet", "resnet20", "resnet56", "wrn28"])
def test_first_responses_neither_explode_nor_vanish(name: str) -> None:
    """With SORT, at the start: products must not have grown from block to block."""
    variant: dict[str, Any] = {"branched": True} if name in CHAINS else {}
    variant |= {"width": 1} if name == "wrn28" else {}
    network = create_model(name, num_classes=10, fusion="sort", **variant)
    images = torch.randn(8, 3, network.size, network.size)
    with torch.no_grad():
        *_, last = network.extract_features(images).values()
        logits = network(images)
    assert 1e-3 < last.square().mean().sqrt() < 30
    assert logits.std() < 30


@pytest.mark.parametrize(("name", "left"), [("lenet", 0.05), ("bignet", 0.0)])
def test_first_responses_vanish_with_the_product_alone(name: str, left: float) -> None:
    """The reason why Table 1's row with the product alone is not reproduced: docs/results.md."""
    network = create_model(name, num_classes=10, fusion="prod", branched=True)
    means: list[float] = []
    for module in network.modules():
        if isinstance(module, TwoBranch):
            module.register_forward_hook(lambda _, __, y: means.append(float(y.mean())))
    with torch.no_grad():
        network(torch.randn(8, 3, 32, 32))
    assert means == sorted(means, reverse=True)
    assert means[-1] <= left * means[0]


@pytest.mark.parametrize("side", [7, 8])
def test_the_parameter_free_shortcut_keeps_the_layout_in_both_passes(side: int) -> None:
    """A gradient in another layout makes what follows in backward several times as slow."""
    x = torch.randn(2, 4, side, side).to(memory_format=torch.channels_last).requires_grad_()
    y = Subsample(6, 2)(x)
    sliced = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, 2))
    assert torch.equal(y, sliced)
    weights = torch.randn_like(y)
    (grad,) = torch.autograd.grad(y, x, weights)
    assert torch.equal(grad, torch.autograd.grad(sliced, x, weights)[0])
    for tensor in (y, grad):
        assert tensor.is_contiguous(memory_format=torch.channels_last)


class Layouts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the layers whose backward reads responses in two layouts at once."""

    layers = ("threshold_backward", "native_batch_norm_backward", "convolution_backward")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mixed: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        name = func.overloadpacket.__name__
        maps = [x for x in args if isinstance(x, Tensor) and x.dim() == 4 and x.shape[2] > 3]
        last = {x.is_contiguous(memory_format=torch.channels_last) for x in maps}
        if name in self.layers and len(last) > 1:
            self.mixed.add(f"{name} {tuple(maps[0].shape)}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("fusion", ["sum", "sort"])
@pytest.mark.parametrize("name", ["lenet", "resnet20", "resnet20-xu", "wrn28"])
def test_gradients_keep_the_layout(name: str, fusion: str, layout: torch.memory_format) -> None:
    """An operation that reads two layouts takes up to twenty times as long."""
    name, _, style = name.partition("-")
    options = {"style": style} if style else {"branched": True} if name == "lenet" else {}
    network = create_model(name, num_classes=10, fusion=fusion, **options).to(memory_format=layout)
    images = torch.randn(4, 3, 32, 32).to(memory_format=layout)
    with kernels.using("eager"):
        loss = network(images).sum()
    with kernels.using("eager"), Layouts() as layouts:
        torch.autograd.backward(loss)
    assert layouts.mixed == set()
