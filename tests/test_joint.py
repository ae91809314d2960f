"""The joint function against the plain composition, in every way a block can call it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor import compile_fx
from torch.nn.parallel import DistributedDataParallel

from sortnet import Fusion, build
from sortnet.blocks import Basic, Subsample, _pointwise, _shortcut
from sortnet.fusion import Normalised, Rectified, Remade, Solved, formulas, join, joint, kernels
from sortnet.measure import peak_bytes, saved_bytes
from sortnet.networks import Network


class Parts(nn.Module):
    """What branches are made of, as in the blocks."""

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
        conv = Remade(self.conv(wide), (wide, self.conv.weight), _pointwise, (2,))
        return {
            "identity-normalised": (a, Normalised(b, self.norm)),
            "normalised-normalised": (Normalised(a, self.other), Normalised(b, self.norm)),
            "subsampled-normalised": (_shortcut(self.subsample, wide), Normalised(b, self.norm)),
            "rectified-rectified": (Rectified(a), Rectified(b)),
            "identity-solved": (a, Solved(b)),
            "convolved-solved": (conv, Solved(b)),
            "plain": (a, b),
        }[kind]


KINDS = [
    "identity-normalised",
    "normalised-normalised",
    "subsampled-normalised",
    "rectified-rectified",
    "identity-solved",
    "convolved-solved",
    "plain",
]


def inputs(batch: int = 3, last: bool = False, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = [(batch, 6, 4, 4), (batch, 6, 4, 4), (batch, 4, 8, 8)]
    layout = torch.channels_last if last else torch.contiguous_format
    tensors = [torch.randn(shape, dtype=dtype).to(memory_format=layout) for shape in shapes]
    return [tensor.requires_grad_() for tensor in tensors]


def fusion_of(terms: str, gated: bool, dtype: torch.dtype = torch.float64) -> Fusion:
    """A fusion, if asked for with gates of either sign."""
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
    """All that a training step leaves behind: response, statistics, gradients."""
    parts, fusion = copy.deepcopy(parts), fusion_of(terms, gated, tensors[0].dtype)
    with kernels.using(mode):
        # raw responses are computed, as they are by a convolution, and may be changed in place
        branches = parts(kind, tensors[0] * 1, tensors[1] * 1, tensors[2])
        y = join(fusion, *branches, relu=relu)
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
def test_joint_is_the_plain_composition(kind: str, terms: str, relu: bool, gated: bool) -> None:
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


def test_several_batches_leave_the_same_running_statistics() -> None:
    for momentum in (0.1, None):
        blocks = [copy.deepcopy(Parts(momentum=momentum).double()) for _ in range(2)]
        blocks[1].load_state_dict(blocks[0].state_dict())
        for _ in range(3):
            tensors = inputs()
            for mode, parts in zip(("eager", "plain"), blocks, strict=True):
                with kernels.using(mode):
                    join(Fusion("sum+root"), *parts("normalised-normalised", *tensors))
        buffers = [dict(parts.named_buffers()) for parts in blocks]
        assert_same(buffers[0], buffers[1])


@pytest.mark.parametrize(
    ("kind", "terms"), [*((kind, "sum+root") for kind in KINDS), ("rectified-rectified", "sort")]
)
def test_gradients_of_gradients(kind: str, terms: str) -> None:
    parts = Parts().double()

    def function(*tensors: Tensor) -> Tensor:
        branches = copy.deepcopy(parts)(kind, tensors[0] * 1, tensors[1] * 1, tensors[2])
        return join(Fusion(terms, eps=0.1), *branches, relu=True)

    with kernels.using("eager"):
        assert torch.autograd.gradcheck(function, inputs(2))
        assert torch.autograd.gradgradcheck(function, inputs(2))


def test_a_branch_told_from_the_response_has_its_gradient_at_every_magnitude() -> None:
    """In float32 the product's gradients are right to the last digits, beside a huge branch, too.

    What is lost is only a positive response too small to have changed the fused one.
    """
    half = torch.logspace(-9, 9, 100)
    line = torch.cat([-half, torch.zeros(1), half])
    square = torch.meshgrid(line, line, indexing="ij")
    p, q = (x.clone().view(1, 1, *x.shape).requires_grad_() for x in square)
    with kernels.using("eager"):
        y = join(Fusion("sort"), Rectified(p * 1), Rectified(q * 1))
    by_p, by_q = torch.autograd.grad(y.sum(), (p, q))
    a, b = p.detach().relu(), q.detach().relu()
    seen = b > 2e-7 * a
    torch.testing.assert_close(by_p, torch.where(a > 0, 1 + b, 0.0), rtol=1e-6, atol=0)
    torch.testing.assert_close(by_q[seen], (1 + a)[seen], rtol=1e-6, atol=0)
    assert not by_q[b == 0].any()


def test_gradients_of_a_gates_gradient() -> None:
    gate = torch.linspace(-1, 2, 6, dtype=torch.float64).requires_grad_()

    def function(a: Tensor, b: Tensor, gate: Tensor) -> Tensor:
        return joint.fused(a, b, ("sum", "root"), 0.1, True, gate)

    with kernels.using("eager"):
        assert torch.autograd.gradcheck(function, (*inputs(2)[:2], gate))
        assert torch.autograd.gradgradcheck(function, (*inputs(2)[:2], gate))


@pytest.fixture
def _kernels_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SMALLEST", {"batch": 0, "image": 0})
    monkeypatch.setattr(kernels, "_kernels", {})
    if not kernels.available("cpu"):
        pytest.skip("there is no C++ compiler")


@pytest.mark.usefixtures("_kernels_for_all")
@pytest.mark.parametrize(
    ("kind", "terms"),
    [
        ("identity-normalised", "sum+root"),
        ("normalised-normalised", "sum+root"),
        ("rectified-rectified", "sum+prod"),
        ("convolved-solved", "sum+root"),
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


@pytest.mark.usefixtures("_kernels_for_all")
@pytest.mark.parametrize("case", ["large images", "one frozen", "no weights"])
def test_kernels_leave_batch_norm_its_gradients(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made by our kernel or by PyTorch, of one branch or both, by the batch or by running ones."""
    parts = Parts(affine=case != "no weights").double()
    parts.other.train(case != "one frozen")
    if case == "large images":
        monkeypatch.setattr(joint, "LARGEST_IMAGE", 0)
    arguments = ("normalised-normalised", "sum+root", True, parts, inputs(last=True))
    assert_same(outcome("auto", *arguments), outcome("plain", *arguments))
    backward = formulas.pull_all if case == "no weights" else formulas.pull
    assert {formula for formula, _ in kernels._kernels} == {formulas.forward, backward}


@pytest.mark.usefixtures("_kernels_for_all")
def test_strides_that_a_hook_changed_are_seen() -> None:
    """A tensor that was packed away for the backward pass may come back in another layout."""
    arguments = ("identity-normalised", "sum+root", True, Parts().double(), inputs(last=True))
    expected = outcome("plain", *arguments)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.contiguous(), lambda x: x):
        assert_same(outcome("auto", *arguments), expected)


def test_who_looks_at_one_image_need_not_wait_for_a_compiler() -> None:
    image, images = torch.zeros(1, 64, 56, 56), torch.zeros(2, 64, 56, 56)
    assert kernels.pay(image) == kernels.pay(images) == kernels.available("cpu")
    with torch.no_grad():
        assert not kernels.pay(image)
        assert kernels.pay(images) == kernels.available("cpu")


@pytest.mark.usefixtures("_kernels_for_all")
def test_a_compiler_that_fails_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("g++: no space left on device")

    monkeypatch.setattr(compile_fx, "compile_fx_inner", broken)
    arguments = ("identity-normalised", "sum+root", True, Parts().double(), inputs())
    assert_same(outcome("auto", *arguments), outcome("plain", *arguments))
    assert "no space left" in caplog.text


@pytest.mark.usefixtures("_kernels_for_all")
def test_ever_new_sizes_do_not_compile_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MOST", 1)
    parts = Parts().double()
    for batch in (2, 3, 4):
        arguments = ("rectified-rectified", "sum+prod", False, parts, inputs(batch))
        assert_same(outcome("auto", *arguments), outcome("plain", *arguments))
    assert [len(forms) for forms in kernels._kernels.values()] == [1, 1]


@pytest.mark.usefixtures("_kernels_for_all")
def test_inference_mode() -> None:
    network = build("resnet20", fusion="sort").eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        found = network(images)
        with kernels.using("plain"):
            torch.testing.assert_close(found, network(images))


def test_without_a_compiler_the_plain_operations_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "available", lambda device: False)
    network = build("resnet20", fusion="sort")
    images = torch.randn(64, 3, 32, 32)
    with kernels.using("plain"):
        plain = saved_bytes(network, images)
    assert saved_bytes(network, images) == plain


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind: str, dtype: torch.dtype) -> None:
    """At least as exact as the plain composition; batch norm keeps its float32 parameters."""
    tensors, parts = inputs(dtype=dtype), Parts()
    parts.conv.to(dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = outcome("plain", kind, "sum+root", True, copy.deepcopy(parts).double(), exact)
    error = {}
    for mode in ("eager", "plain"):
        found = outcome(mode, kind, "sum+root", True, parts, tensors)
        assert found["response"].dtype == dtype
        error[mode] = (found["response"].double() - expected["response"]).abs().mean()
    assert error["eager"] <= 1.1 * error["plain"]


def test_autocast_trains_a_network_as_well_as_the_plain_composition_does() -> None:
    """Both are compared with float32: in bfloat16 two orders of rounding differ much."""

    def gradient(network: Network, mode: str, enabled: bool) -> Tensor:
        images = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        again = copy.deepcopy(network)
        with kernels.using(mode), torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = F.cross_entropy(again(images), torch.arange(32) % 10)
        torch.autograd.backward(loss)
        return torch.cat([p.grad.flatten() for p in again.parameters() if p.grad is not None])

    agreement = {"eager": 0.0, "plain": 0.0}
    for _ in range(4):
        network = build("resnet20", fusion="sort")
        exact = gradient(network, "plain", enabled=False)
        for mode in agreement:
            found = gradient(network, mode, enabled=True)
            agreement[mode] += F.cosine_similarity(found, exact, dim=0).item() / 4
    assert agreement["eager"] > agreement["plain"] - 0.05
    assert agreement["eager"] > 0.7


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
    network = build(name, classes=10, fusion="sort", **variant).double()
    images = torch.randn(2, 3, network.size, network.size, dtype=torch.float64)
    eager, plain = (trained(network, mode, images) for mode in ("eager", "plain"))
    assert_same(eager, plain, rtol=1e-7, atol=1e-7)  # roundings, which batch norm amplifies

    with_sum = build(name, classes=10, fusion="sum", **variant).double()
    most = 0.96 if variant.get("branched") else 1.0  # one branch is told from the response
    with kernels.using("eager"):
        assert saved_bytes(network, images) <= most * saved_bytes(with_sum, images)


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
    """The partitioner that torch.compile has decides what is kept; it must find our savings."""
    images = torch.randn(2, 3, 32, 32)
    kept = {}
    for fusion in ("sum", "sort"):
        torch._dynamo.reset()
        network = build(name, fusion=fusion, **variant)
        compiled = torch.compile(network, backend="aot_eager_decomp_partition", fullgraph=True)
        assert isinstance(compiled, nn.Module)
        kept[fusion] = saved_bytes(compiled, images)
    assert kept["sort"] <= 1.001 * kept["sum"]


def test_a_compiled_network_is_the_network_and_compiles_once() -> None:
    torch._dynamo.reset()
    network = build("resnet20", fusion="sort").double()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(3):
            torch.manual_seed(seed)
            images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
            network.zero_grad()
            compiled(images).square().sum().backward()
    grads = [p.grad for p in network.parameters()]
    statistics = {k: b.clone() for k, b in network.named_buffers()}
    again = build("resnet20", fusion="sort").double()
    again.load_state_dict(network.state_dict())
    with kernels.using("plain"):
        again(images).square().sum().backward()
    torch.testing.assert_close([p.grad for p in again.parameters()], grads, rtol=1e-8, atol=1e-8)
    assert int(statistics["bn1.num_batches_tracked"]) == 3


def test_hooks_and_strangers_fall_back() -> None:
    """Whoever listens to the batch norm hears it; other norms and fusions are simply called."""
    network = build("resnet20", fusion="sort").double()
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


def test_batch_norm_complains_as_ever() -> None:
    parts, tensor = Parts(), torch.randn(1, 6, 1, 1)
    with kernels.using("eager"), pytest.raises(ValueError, match="more than 1 value per channel"):
        join(Fusion("sum+root"), tensor, Normalised(tensor, parts.norm))


def test_distributed(tmp_path: Path) -> None:
    """Gradients arrive in the buckets of DistributedDataParallel."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        network = build("resnet20", fusion="sort").double()
        images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
        expected = trained(network, "plain", images)
        with kernels.using("eager"):
            DistributedDataParallel(network)(images)
            network.zero_grad()
            fresh = build("resnet20", fusion="sort").double()
            fresh.load_state_dict(network.state_dict())
            parallel = DistributedDataParallel(fresh)
            logits = parallel(images)
            torch.autograd.backward(F.cross_entropy(logits, torch.arange(2)))
        for key, parameter in fresh.named_parameters():
            torch.testing.assert_close(
                parameter.grad, expected[f"gradient of {key}"], rtol=1e-8, atol=1e-9
            )
    finally:
        torch.distributed.destroy_process_group()


def test_modes_have_names() -> None:
    with pytest.raises(ValueError, match="there are auto, eager, plain"):
        kernels.set_mode("fast")
