"""The fused path against the plain composition, in every way a block can call it."""

import copy
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from sortnet import Fusion, create_model, sort
from sortnet.blocks import (
    Basic,
    Bottleneck,
    PreActivation,
    Projected,
    Subsample,
    TwoBranch,
    shortcut,
)
from sortnet.fusion import (
    Branch,
    Normalized,
    Rectified,
    fuse_branches,
    fused,
    kernels,
    private,
    why_not_fused,
)
from sortnet.lab.measure import peak_bytes, saved_bytes
from sortnet.networks import Network


class Parts(nn.Module):
    """The branches of all kinds of blocks."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__()
        self.norm, self.other = (nn.BatchNorm2d(6, **options) for _ in range(2))
        self.subsample = Subsample(6, 2)
        self.conv = nn.Conv2d(4, 6, 1, stride=2, bias=False)
        for norm in (self.norm, self.other):
            for tensor in (*norm.parameters(), norm.running_var):
                if tensor is not None:
                    nn.init.uniform_(tensor, 0.5, 1.5)

    def forward(self, kind: str, a: Tensor, b: Tensor, wide: Tensor) -> tuple[Any, Any]:
        """Two branches; `wide` has twice the size and fewer channels."""
        relu = nn.ReLU(inplace=True)
        return {
            "identity-normalized": (a, Normalized(b, self.norm)),
            "normalized-normalized": (Normalized(a, self.other), Normalized(b, self.norm)),
            "subsampled-normalized": (shortcut(self.subsample, wide), Normalized(b, self.norm)),
            "rectified-rectified": (Rectified(a, relu), Rectified(b, relu)),
            "convolved-plain": (Projected(self.conv, wide), b),
            "plain": (a, b),
        }[kind]


KINDS = [
    "identity-normalized",
    "normalized-normalized",
    "subsampled-normalized",
    "rectified-rectified",
    "convolved-plain",
    "plain",
]


def inputs(batch: int = 3, last: bool = False, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = [(batch, 6, 4, 4), (batch, 6, 4, 4), (batch, 4, 8, 8)]
    layout = torch.channels_last if last else torch.contiguous_format
    tensors = [torch.randn(shape, dtype=dtype).to(memory_format=layout) for shape in shapes]
    return [tensor.requires_grad_() for tensor in tensors]


def fusion_of(terms: str, gated: bool, dtype: torch.dtype = torch.float64) -> Fusion:
    """Return a fusion, with gates of either sign if `gated`."""
    if not gated:
        return Fusion(terms)
    fusion = Fusion(terms, gate="one", channels=6).to(dtype)
    fusion.load_state_dict({"gate": torch.linspace(-1, 2, 6)})
    return fusion


def outcome(
    mode: str,
    kind: str,
    terms: str,
    relu: bool,
    parts: Parts,
    tensors: list[Tensor],
    gated: bool = False,
) -> dict[str, Tensor]:
    """Everything a training step computes: response, statistics, gradients."""
    parts, fusion = copy.deepcopy(parts), fusion_of(terms, gated, tensors[0].dtype)
    with kernels.using(mode):
        # raw responses are computed, as they are by a convolution, and may be changed in place
        branches = parts(kind, tensors[0] * 1, tensors[1] * 1, tensors[2])
        y = fuse_branches(fusion, *branches, act=nn.ReLU() if relu else None)
        wanted = [*tensors, *parts.parameters(), *fusion.parameters()]
        weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        found = torch.autograd.grad((y * weight).sum(), wanted, allow_unused=True)
    result = {f"gradient {i}": g for i, g in enumerate(found) if g is not None}
    return {"response": y} | result | dict(parts.named_buffers())


def assert_same(
    first: dict[str, Tensor], second: dict[str, Tensor], rtol: float = 1e-12, atol: float = 1e-12
) -> None:
    torch.testing.assert_close(first, second, rtol=rtol, atol=atol)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("terms", ["sum+root", "sum+prod", "max+root", "sum+max+square"])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_is_the_plain_composition(kind: str, terms: str, relu: bool, gated: bool) -> None:
    arguments = (kind, terms, relu, Parts().double(), inputs(), gated)
    assert_same(outcome("eager", *arguments), outcome("plain", *arguments))


@pytest.mark.parametrize(
    "options",
    [{"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"momentum": 0.5}],
    ids=str,
)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_every_kind_of_batch_norm(kind: str, train: bool, options: dict[str, Any]) -> None:
    parts = Parts(**options).double().train(train)
    for batch, last in ((3, False), (1, True)):
        arguments = (kind, "sum+root", True, parts, inputs(batch, last))
        plain = outcome("plain", *arguments)
        assert_same(outcome("eager", *arguments), plain)


@pytest.mark.parametrize(
    ("kind", "terms"),
    [
        ("normalized-normalized", "sum+root"),
        ("convolved-plain", "sum+root"),
        ("rectified-rectified", "sort"),
    ],
)
def test_gradients_of_gradients(kind: str, terms: str) -> None:
    parts = Parts().double()

    def function(*tensors: Tensor) -> Tensor:
        branches = copy.deepcopy(parts)(kind, tensors[0] * 1, tensors[1] * 1, tensors[2])
        return fuse_branches(Fusion(terms, eps=0.1), *branches, act=nn.ReLU())

    with kernels.using("eager"):
        assert torch.autograd.gradcheck(function, inputs(2))
        assert torch.autograd.gradgradcheck(function, inputs(2))


def test_gradients_of_a_gates_gradient() -> None:
    gate = torch.linspace(-1, 2, 6, dtype=torch.float64).requires_grad_()

    def function(a: Tensor, b: Tensor, gate: Tensor) -> Tensor:
        return fused.run_fused(Branch(a), Branch(b), ("sum", "root"), 0.1, relu=True, gate=gate)

    with kernels.using("eager"):
        assert torch.autograd.gradcheck(function, (*inputs(2)[:2], gate))
        assert torch.autograd.gradgradcheck(function, (*inputs(2)[:2], gate))


@pytest.mark.usefixtures("small_kernels")
@pytest.mark.parametrize(
    ("kind", "terms"),
    [
        ("identity-normalized", "sum+root"),
        ("normalized-normalized", "sum+root"),
        ("rectified-rectified", "sum+prod"),
        ("convolved-plain", "sum+root"),
    ],
)
@pytest.mark.parametrize(("last", "gated"), [(True, False), (False, False), (True, True)])
def test_kernels_compute_the_same(kind: str, terms: str, last: bool, gated: bool) -> None:
    arguments = (kind, terms, True, Parts().double(), inputs(last=last), gated)
    found = outcome("auto", *arguments)
    made = [kernel for forms in kernels._kernels.values() for kernel in forms.values()]
    assert len(made) == 2  # one forward, one backward
    assert None not in made  # none was done without
    assert_same(found, outcome("plain", *arguments))
    contiguous = torch.channels_last if last else torch.contiguous_format
    assert found["response"].is_contiguous(memory_format=contiguous)


@pytest.mark.usefixtures("small_kernels")
@pytest.mark.parametrize("case", ["large images", "one frozen", "no weights"])
def test_kernels_leave_batch_norm_its_gradients(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By our kernel or by PyTorch, for one branch or both, batch or running statistics."""
    parts = Parts(affine=case != "no weights").double()
    parts.other.train(case != "one frozen")
    if case == "large images":
        monkeypatch.setattr(fused, "MAX_IMAGE", 0)
    arguments = ("normalized-normalized", "sum+root", True, parts, inputs(last=True))
    assert_same(outcome("auto", *arguments), outcome("plain", *arguments))
    inside = {options.norm_backward for _, options in kernels._kernels}  # type: ignore[attr-defined]
    assert inside == {case == "no weights"}


@pytest.mark.usefixtures("small_kernels")
def test_strides_that_a_hook_changed_are_seen() -> None:
    """A tensor packed by a saved-tensor hook may be unpacked in another layout."""
    arguments = ("identity-normalized", "sum+root", True, Parts().double(), inputs(last=True))
    expected = outcome("plain", *arguments)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.contiguous(), lambda x: x):
        assert_same(outcome("auto", *arguments), expected)


@pytest.mark.skipif(not kernels.available("cpu"), reason="kernels need a C++ compiler")
def test_who_looks_at_one_image_need_not_wait_for_a_compiler() -> None:
    image, images = torch.zeros(1, 64, 56, 56), torch.zeros(2, 64, 56, 56)
    why = partial(why_not_fused, ("sum", "prod"))
    assert why(image, image) is why(images, images) is None
    with torch.no_grad():
        assert "too small" in (why(image, image) or "")
        assert why(images, images) is None


@pytest.mark.usefixtures("small_kernels")
def test_ever_new_sizes_do_not_compile_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MAX_KERNELS", 1)
    parts = Parts().double()
    for batch in (2, 3, 4):
        arguments = ("rectified-rectified", "sum+prod", False, parts, inputs(batch))
        assert_same(outcome("auto", *arguments), outcome("plain", *arguments))
    assert [len(forms) for forms in kernels._kernels.values()] == [1, 1]


@pytest.mark.usefixtures("small_kernels")
def test_inference_mode() -> None:
    network = create_model("resnet20", fusion="sort").eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        found = network(images)
        with kernels.using("plain"):
            torch.testing.assert_close(found, network(images))


def test_without_a_compiler_the_plain_operations_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "available", lambda device: False)
    network = create_model("resnet20", fusion="sort")
    images = torch.randn(64, 3, 32, 32)
    with kernels.using("plain"):
        plain = saved_bytes(network, images)
    assert saved_bytes(network, images) == plain


NETWORKS: list[tuple[str, dict[str, Any]]] = [
    ("resnet20", {}),
    ("resnet20", {"style": "xu"}),
    ("wrn28", {"width": 1}),
    ("resnet18", {"size": 64}),
    ("resnet50", {"size": 64}),
    ("lenet", {"branched": True}),
    ("bignet", {"branched": True}),
    ("alexnet", {"branched": True, "size": 99}),
    ("lenet", {"branched": True, "norm": True}),
]


LIMITS = {"wrn28": 1.25}
"""In a pre-activation block nothing but the fusion needs F(x): it is saved in addition."""


def trained(network: Network, mode: str, images: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(0)  # dropout
    again = copy.deepcopy(network)
    with kernels.using(mode):
        logits = again(images)
        torch.autograd.backward(F.cross_entropy(logits, torch.arange(len(images))))
    gradients = {f"gradient of {k}": p.grad for k, p in again.named_parameters()}
    return {"logits": logits} | gradients | dict(again.named_buffers())


@pytest.mark.parametrize(("name", "variant"), NETWORKS, ids=str)
def test_networks_train_alike_and_keep_no_more_than_the_sum(
    name: str, variant: dict[str, Any]
) -> None:
    network = create_model(name, num_classes=10, fusion="sort", **variant).double()
    images = torch.randn(2, 3, network.size, network.size, dtype=torch.float64)
    eager, plain = (trained(network, mode, images) for mode in ("eager", "plain"))
    assert_same(eager, plain, rtol=1e-7, atol=1e-7)  # roundings, which batch norm amplifies

    with_sum = create_model(name, num_classes=10, fusion="sum", **variant).double()
    with kernels.using("eager"):
        assert saved_bytes(network, images) <= LIMITS.get(name, 1) * saved_bytes(with_sum, images)


@pytest.mark.skipif(not kernels.available("cpu"), reason="kernels need a C++ compiler")
@pytest.mark.parametrize("stride", [1, 2])
def test_residual_blocks_hold_no_more_at_once_than_with_the_sum(stride: int) -> None:
    held = {}
    images = torch.randn(32, 16, 16, 16).to(memory_format=torch.channels_last).requires_grad_()
    for fusion in ("sum", "sort"):
        first = Basic(16, 16, 1, Fusion(fusion, block="residual"))
        shortcut = Subsample(32, 2) if stride == 2 else None
        last = Basic(16, 16 * stride, stride, Fusion(fusion, block="residual"), shortcut)
        network = nn.Sequential(first, last).to(memory_format=torch.channels_last)

        def step(network: nn.Module = network) -> None:
            torch.autograd.backward(network(images).sum())
            network.zero_grad()
            images.grad = None

        step()  # kernels are made, gradients' layouts are settled
        held[fusion] = peak_bytes(step)
    assert held["sort"] <= 1.01 * held["sum"]


@pytest.mark.parametrize(("name", "variant"), [("resnet20", {}), ("wrn28", {"width": 1})])
def test_compiled_networks_keep_no_more_than_the_sum(name: str, variant: dict[str, Any]) -> None:
    """The partitioner of torch.compile decides what is saved; it must find our savings."""
    images = torch.randn(2, 3, 32, 32)
    kept = {}
    for fusion in ("sum", "sort"):
        torch._dynamo.reset()
        network = create_model(name, fusion=fusion, **variant)
        compiled = torch.compile(network, backend="aot_eager_decomp_partition", fullgraph=True)
        assert isinstance(compiled, nn.Module)
        kept[fusion] = saved_bytes(compiled, images)
    assert kept["sort"] <= 1.001 * LIMITS.get(name, 1) * kept["sum"]


def test_a_compiled_network_is_the_network_and_compiles_once() -> None:
    torch._dynamo.reset()
    network = create_model("resnet20", fusion="sort").double()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(3):
            torch.manual_seed(seed)
            images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
            network.zero_grad()
            compiled(images).square().sum().backward()
    grads = [p.grad for p in network.parameters()]
    statistics = {k: b.clone() for k, b in network.named_buffers()}
    again = create_model("resnet20", fusion="sort").double()
    again.load_state_dict(network.state_dict())
    with kernels.using("plain"):
        again(images).square().sum().backward()
    torch.testing.assert_close([p.grad for p in again.parameters()], grads, rtol=1e-8, atol=1e-8)
    assert int(statistics["bn1.num_batches_tracked"]) == 3


def test_hooks_and_strangers_fall_back() -> None:
    """Hooks on the batch norm are called, and so are other norms and fusions."""
    network = create_model("resnet20", fusion="sort").double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    expected = trained(network, "plain", images)
    heard = []
    hook = network.get_submodule("layer1.0.bn2").register_forward_hook(lambda *_: heard.append(1))
    assert_same(trained(network, "eager", images), expected, rtol=1e-8, atol=1e-9)
    assert heard
    hook.remove()
    network.get_submodule("layer1.0").bn2 = nn.GroupNorm(4, 16).double()
    assert_same(
        trained(network, "eager", images), trained(network, "plain", images), rtol=1e-8, atol=1e-9
    )


class Doubling(nn.Conv2d):
    """A convolution that somebody has adapted."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve and double."""
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "change", ["forward", "sequence hook", "identity hook", "subclass", "3 x 3", "stem"]
)
def test_modules_that_were_changed_are_called(change: str) -> None:
    """A replaced forward, a hook on a shortcut, an adapted convolution, a longer shortcut."""
    heard: list[str] = []
    style: dict[str, Any] = {"width": 1} if change in ("subclass", "3 x 3") else {"style": "xu"}
    name = "wrn28" if "width" in style else "resnet20"
    network: Any = create_model(name, fusion="sort", **style).double()
    block: Any = network.get_submodule("layer2.0")
    if change == "forward":

        def forward(x: Tensor) -> Tensor:
            heard.append("forward")
            return x.tanh()

        block.bn2.forward = forward
    elif change.endswith("hook"):
        module = block.downsample if change == "sequence hook" else network.layer1[0].downsample
        module.register_forward_hook(lambda *_: heard.append("hook"))
    elif change == "stem":
        block.downsample = nn.Sequential(nn.Identity(), *block.downsample)
    else:
        conv = Doubling(16, 32, 1, 2, bias=False) if change == "subclass" else None
        block.downsample = (conv or nn.Conv2d(16, 32, 3, 2, 1, bias=False)).double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    expected = trained(network, "plain", images)
    told = len(heard)
    assert_same(trained(network, "eager", images), expected, rtol=1e-8, atol=1e-9)
    assert len(heard) == 2 * told
    assert bool(heard) == (change == "forward" or change.endswith("hook"))


@pytest.mark.parametrize("act_layer", [nn.GELU, nn.SiLU])  # the first has no in-place form
def test_blocks_take_other_layers(act_layer: type[nn.Module]) -> None:
    """They are plain then, and equal to their equations."""
    norm_layer = partial(nn.GroupNorm, 2)
    layers: dict[str, Any] = {"norm_layer": norm_layer, "act_layer": act_layer}
    act, x = act_layer(), torch.randn(2, 8, 6, 6)
    residual = Fusion("sort", block="residual")
    basic: Any = Basic(8, 8, 1, residual, **layers)
    pre: Any = PreActivation(8, 8, 1, residual, **layers)
    neck: Any = Bottleneck(8, 2, 1, residual, **layers)
    two: Any = TwoBranch(8, 8, 3, Fusion("sort"), padding=1, **layers)
    with kernels.using("eager"):
        f = basic.bn2(basic.conv2(act(basic.bn1(basic.conv1(x)))))
        torch.testing.assert_close(basic(x), act(sort(x, f, "root")))
        f = pre.conv2(act(pre.bn2(pre.conv1(act(pre.bn1(x))))))
        torch.testing.assert_close(pre(x), sort(x, f, "root"))
        f = act(neck.bn2(neck.conv2(act(neck.bn1(neck.conv1(x))))))
        torch.testing.assert_close(neck(x), act(sort(x, neck.bn3(neck.conv3(f)), "root")))
        torch.testing.assert_close(two(x), sort(act(two.branch1(x)), act(two.branch2(x))))
        why = why_not_fused(residual, x, x, act=act)
        assert f"{act_layer.__name__} follows the fusion" in (why or "fused")


def test_batch_norm_complains_as_ever() -> None:
    parts, tensor = Parts(), torch.randn(1, 6, 1, 1)
    with kernels.using("eager"), pytest.raises(ValueError, match="more than 1 value per channel"):
        fuse_branches(Fusion("sum+root"), tensor, Normalized(tensor, parts.norm))


def test_modes_have_names() -> None:
    with pytest.raises(ValueError, match="there are auto, eager, plain"):
        kernels.set_mode("fast")


@pytest.mark.usefixtures("small_kernels")
@pytest.mark.parametrize("fault", ["compiler", "call", "result"])
def test_a_kernel_that_fails_is_done_without_and_not_tried_again(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def broken(formula: Any, inputs: Any) -> Any:  # noqa: ANN401
        tried.append(formula)
        calls = [0]

        def kernel(tensors: list[Tensor]) -> Any:  # noqa: ANN401
            calls[0] += 1
            if fault == "call" and calls[0] > 1:
                raise RuntimeError("no space left on device")
            found = formula(*tensors)
            return [None if x is None else x * 1.1 for x in found] if fault == "result" else found

        if fault == "compiler":
            raise RuntimeError("no space left on device")
        return kernel

    monkeypatch.setattr(private, "compile_formula", broken)
    for batch in (2, 3):
        arguments = ("identity-normalized", "sum+root", True, Parts().double(), inputs(batch))
        assert_same(outcome("auto", *arguments), outcome("plain", *arguments))
    assert len(tried) == 1
    assert len(caplog.records) == 1
    says = "wrong by 10.0%" if fault == "result" else "no space left"
    assert says in caplog.text


@pytest.mark.usefixtures("small_kernels")
def test_a_damaged_kernel_on_disk_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process killed while linking leaves a truncated library."""
    monkeypatch.setenv("SORTNET_CACHE", str(tmp_path))
    script = (
        "import torch; from sortnet.fusion import kernels, sort\n"
        "x = torch.rand(4, 16, 32, 32); y = sort(x, x)\n"
        "torch.testing.assert_close(y, 2 * x + x * x); assert not kernels._broken"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script], check=True)
        (library,) = tmp_path.rglob("*.main.so")
        assert library.stat().st_size > 1000
        library.write_bytes(library.read_bytes()[:100])
    assert tmp_path.stat().st_mode & 0o077 == 0


class Doubled(Fusion):
    """A user's fusion."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Fuse twice."""
        return 2 * super().forward(a, b)


class Counting(TorchFunctionMode):
    """A mode that wants to see what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Tagged(Tensor):
    """A subclass of tensors."""


def test_where_the_fused_path_is_not_used() -> None:
    """Each reason by itself; otherwise it is fused, also under `set_default_device`."""
    a, b = (torch.randn(2, 6, 4, 4) for _ in range(2))
    fusion, norm = Fusion("sum+root"), nn.BatchNorm2d(6)

    def why(fusion: nn.Module = fusion, a: Tensor = a, norm: nn.Module = norm) -> str:
        with kernels.using("eager"):
            return why_not_fused(fusion, a, Normalized(b, norm)) or "fused"

    with torch.device("cpu"):
        assert why() == "fused"
    assert "no second-order term" in why(Fusion("sum"))
    assert "its own forward" in why(Doubled("sum+root"))
    assert "GroupNorm" in why(norm=nn.GroupNorm(2, 6))
    assert "subclass" in why(a=a.as_subclass(Tagged))
    with Counting():
        assert "mode" in why()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert "mode" in why()
    hook = norm.register_forward_hook(lambda *_: None)
    assert "hook" in why()
    hook.remove()
    assert why() == "fused"


@pytest.mark.usefixtures("small_kernels")
def test_a_fusion_of_a_users_own_is_called() -> None:
    x = torch.randn(2, 16, 8, 8)
    block = Basic(16, 16, 1, Doubled("sum+root"), final_act=False)
    plain = copy.deepcopy(block)
    plain.fusion = Fusion("sum+root")
    torch.testing.assert_close(block(x), 2 * plain(x))


@pytest.mark.usefixtures("small_kernels")
def test_tracers_and_modes_see_pytorchs_operations_only() -> None:
    """After a warm call, on tensors large enough for kernels."""
    a, b = (torch.randn(4, 16, 32, 32) for _ in range(2))
    root = partial(sort, term="root")
    expected = root(a, b)
    graph = make_fx(root)(a, b)
    assert {node.op for node in graph.graph.nodes} == {"placeholder", "call_function", "output"}
    other = torch.randn_like(a)
    torch.testing.assert_close(graph(other, b), root(other, b))
    with FakeTensorMode() as mode:
        fake = root(mode.from_tensor(a), mode.from_tensor(b))
    assert fake.shape == a.shape
    with Counting() as counting:
        torch.testing.assert_close(root(a, b), expected)
    assert "fuse" in counting.seen
    tagged = root(a.as_subclass(Tagged), b)
    torch.testing.assert_close(tagged.as_subclass(Tensor), expected)


# torch.jit.trace says itself that it is on its way out
@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:Converting a tensor")
@pytest.mark.usefixtures("small_kernels")
def test_jit_trace() -> None:
    a, b = (torch.randn(4, 16, 32, 32) for _ in range(2))
    sort(a, b)
    traced = torch.jit.trace(sort, (a, b))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(traced(b, b), sort(b, b))


@pytest.mark.usefixtures("small_kernels")
def test_saving_on_another_device() -> None:
    arguments = ("identity-normalized", "sum+root", True, Parts().double(), inputs(last=True))
    expected = outcome("plain", *arguments)
    with torch.autograd.graph.save_on_cpu():
        assert_same(outcome("auto", *arguments), expected)
