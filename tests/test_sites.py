"""Which additions are sites, how they are described, and which cannot be changed."""

import functools
import operator
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import models

from sortnet.fusion import Fusion, sort
from sortnet.surgery import branch, sites, sortify


class Block(nn.Module):
    """Every way to add, by name."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.other = nn.Conv2d(4, 4, 3, padding=1)
        self.bias = nn.Parameter(torch.randn(1, 4, 8, 8))
        self.adder = torch.ao.nn.quantized.FloatFunctional()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        """Add."""
        f = self.conv(x)
        y: Tensor = WAYS[self.way][1](self, x, f)
        return y


def _input_in_place(self: Block, x: Tensor, f: Tensor) -> Tensor:
    x += f  # the module's input has another history afterwards
    return x


def _in_place(self: Block, x: Tensor, f: Tensor) -> Tensor:
    f += x
    return f


def _method_in_place(self: Block, x: Tensor, f: Tensor) -> Tensor:
    f.add_(x)
    return f * 2  # the operand's name, after the addition


def _sum(self: Block, x: Tensor, f: Tensor) -> Tensor:
    y: Tensor = functools.reduce(operator.add, [self.other(x), f, x])
    return y


WAYS: dict[str, tuple[int, Callable[[Block, Tensor, Tensor], Tensor]]] = {
    "operator": (1, lambda self, x, f: x + f),
    "in place": (1, _in_place),
    "input in place": (1, _input_in_place),
    "method in place": (1, _method_in_place),
    "torch.add": (1, lambda self, x, f: torch.add(f, x)),
    "keyword": (1, lambda self, x, f: torch.add(f, other=x)),
    "method": (1, lambda self, x, f: f.add(x)),
    "FloatFunctional": (1, lambda self, x, f: self.adder.add_relu(f, x)),
    "two branches": (1, lambda self, x, f: F.relu(f) + self.other(x).relu()),
    "three": (2, lambda self, x, f: x + f + self.other(x)),
    "sum": (2, _sum),
    "a parameter": (0, lambda self, x, f: f + self.bias),
    "a number": (0, lambda self, x, f: f + 1),
    "broadcast": (0, lambda self, x, f: f + x.mean((2, 3), keepdim=True)),
    "itself": (0, lambda self, x, f: f + f),
    "its parts": (0, lambda self, x, f: f * 2 + f.flip(1) * 3),
    "scaled": (0, lambda self, x, f: torch.add(x, f, alpha=2)),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_add(way: str) -> None:
    block = nn.Sequential(Block(way))
    count, _ = WAYS[way]
    x = torch.randn(2, 4, 8, 8)
    found = sites(block, x)
    assert len(found) == count
    if not count:
        return
    assert torch.equal(sortify(block, fusion="sum", example=x)(x.clone()), block(x.clone()))
    y = sortify(block, example=x)(x.clone())
    assert not torch.allclose(y, block(x.clone()))
    assert [site.block for site in found] == [
        "branches" if way == "two branches" else "residual"
    ] * count
    assert sites(sortify(block, example=x), x)[0].fusion in ("sum+root", "sum+prod")


def test_the_shortcut_comes_first() -> None:
    """Only ``square`` tells the two branches apart: it is of the first."""
    for way in ("operator", "in place", "torch.add", "method"):
        block = Block(way)
        x = torch.randn(2, 4, 8, 8)
        changed = sortify(block, fusion="sum+square", example=x)
        torch.testing.assert_close(changed(x), x + block.conv(x) + x * x)


def test_sites_of_one_module_can_be_changed_in_turn() -> None:
    block, x = nn.Sequential(Block("three")), torch.randn(2, 4, 8, 8)
    first = sortify(block, "0#1", example=x)
    assert [site.fusion for site in sites(first, x)] == ["sum+root", "sum"]
    both = sortify(first, "*#2", example=x)
    assert torch.equal(both(x), sortify(block, example=x)(x))
    assert isinstance(both.get_submodule("0"), Block)
    assert torch.equal(sortify(both, fusion="sum", example=x)(x), block(x))


def test_sites_say_where_and_what() -> None:
    first, second = sites(models.resnet18())[1:3]
    assert (first.name, first.shortcut, first.branch) == ("layer1.1", "x", "bn2")
    assert (second.shortcut, second.follows, second.shape) == (
        "downsample",
        "relu",
        (1, 128, 28, 28),
    )
    assert "layer2.0" in str(second)
    assert "128x28x28" in str(second)


class ReadsShape(nn.Module):
    """A block whose additions depend on the shape of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Add."""
        f = self.conv(x)
        y: Tensor = x + f if x.shape[0] > 1 else f + x
        return y


class Plain(ReadsShape):
    """A block that can be traced."""

    def forward(self, x: Tensor) -> Tensor:
        """Add."""
        y: Tensor = x + self.conv(x)
        return y


class ReadsValues(nn.Module):
    """A model that cannot run on meta tensors; it has state, randomness and a plain block."""

    runs: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm, self.last = Plain(), nn.BatchNorm2d(3), ReadsShape()
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Add to a response with a positive mean."""
        self.runs += 1
        h = self.norm(self.block(x)) + torch.rand(1)
        y: Tensor = h + self.last(h) if h.mean() > -9 else h
        return y


def test_a_model_that_reads_values_keeps_its_other_sites() -> None:
    model, x = ReadsValues(), torch.randn(2, 3, 8, 8)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state, image = torch.get_rng_state(), x.clone()
    found = sites(model, x)
    assert {site.name: bool(site.problem) for site in found} == {
        "block": False,
        "last": True,
        ".": True,
    }
    assert len(sites(model)) == 3
    changed = sortify(model, where="block", example=x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, image)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert changed.state_dict().keys() == before.keys()
    assert isinstance(changed.get_submodule("block.fusion"), Fusion)


def test_unchangeable_sites_can_be_skipped() -> None:
    model, x = nn.Sequential(Plain(), ReadsShape()), torch.randn(2, 3, 8, 8)
    with pytest.raises(ValueError, match=r"1 of 2.*skip_unchangeable=True.*: 1 \(.*control flow"):
        sortify(model, example=x)
    changed = sortify(model, example=x, skip_unchangeable=True)
    assert [site.fusion for site in sites(changed, x)] == ["sum+root", "sum"]
    with pytest.raises(ValueError, match=r"1 of 1 selected sites cannot be changed: 1"):
        sortify(model, where="1", example=x, skip_unchangeable=True)


class Inner(nn.Module):
    """A layer with an optional argument."""

    def forward(self, x: Tensor, scale: float = 1.0, shift: Tensor | None = None) -> Tensor:
        """Scale and shift."""
        return x * scale if shift is None else x * scale + shift


class PassesOn(nn.Module):
    """A block that passes its keyword arguments on, and reads one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.inner = nn.Conv2d(3, 3, 1), Inner()

    def forward(self, x: Tensor, *others: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        """Add."""
        if options.get("twice"):
            x = 2 * x
        options.pop("twice", None)
        y: Tensor = x + self.inner(self.conv(x), *others, **options)
        return y


def test_keyword_arguments_are_passed_on() -> None:
    block, x, shift = PassesOn(), torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    same = sortify(block, fusion="sum", example=x)
    for options in ({}, {"scale": 3.0}, {"shift": shift, "scale": 0.5}):
        assert torch.equal(same(x, **options), block(x, **options))
    with pytest.raises(ValueError, match="without twice"):
        same(x, twice=True)
    with pytest.raises(ValueError, match=r"len\(others\)=0"):
        same(x, 2.0)
    twice = sortify(block, fusion="sum", example={"x": x, "twice": True, "scale": 2.0})
    assert torch.equal(twice(x, twice=True, scale=3.0), block(x, twice=True, scale=3.0))
    with pytest.raises(ValueError, match="twice=True"):
        twice(x)
    other = sortify(block, fusion="sum", example=(x, 2.0))
    assert torch.equal(other(x, 3.0), block(x, 3.0))


class Shared(nn.Module):
    """A model that calls one block in several ways."""

    def __init__(self, *flags: bool) -> None:
        super().__init__()
        self.block, self.flags = PassesOn(), flags

    def forward(self, x: Tensor) -> Tensor:
        """Call the block with each flag."""
        for flag in self.flags:
            x = self.block(x, twice=flag)
        return x


def test_a_block_called_in_different_ways_cannot_be_changed() -> None:
    x = torch.randn(2, 3, 8, 8)
    alike = Shared(True, True)
    assert torch.equal(sortify(alike, fusion="sum", example=x)(x), alike(x))
    (site,) = sites(Shared(True, False), x)
    assert site.problem == "ValueError: it is called several times, with different arguments"


class Structured(nn.Module):
    """A block that takes and returns containers, and branches on a number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, images: dict[str, Any], crop: int) -> OrderedDict[str, Tensor]:
        """Add; crop if asked to."""
        x = images["low"][0]
        y = x + self.conv(x)
        return OrderedDict(y=y[..., crop:] if crop > 0 else y, last=images["high"])


def test_containers_and_fixed_numbers() -> None:
    block, x = Structured(), torch.randn(2, 3, 8, 8)
    images = {"low": [x], "high": x}
    same = sortify(block, fusion="sum", example=(images, 2))
    y = same(images, 2)
    assert type(y) is OrderedDict
    assert torch.equal(y["y"], block(images, 2)["y"])
    with pytest.raises(ValueError, match="crop=2"):
        same(images, 3)
    with pytest.raises(ValueError, match=r"len\(images\['low'\]\)=1"):
        same({"low": [x, x], "high": x}, 2)


@pytest.mark.parametrize("function", [sites, sortify])
def test_a_name_is_not_a_model(function: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"nn.Module.*got str 'resnet18'; create it first"):
        function("resnet18")


def test_a_number_is_not_a_branch() -> None:
    with pytest.raises(TypeError, match="takes two tensors of one shape, not Tensor and float"):
        sort(torch.ones(2), 2.0)  # type: ignore[arg-type]


def _mistakes() -> dict[str, tuple[Callable[[], object], str]]:
    net = models.resnet18
    return {
        "untraceable": (lambda: sortify(ReadsShape()), "cannot be changed.*control flow"),
        "wrong size": (lambda: sites(net(), torch.zeros(1, 5, 8, 8)), r"\(1, 5, 8, 8\).*example"),
        "no such site": (
            lambda: sortify(net(), "layer9"),
            "'layer9'.*layer1.0, layer1.1.*layer4.1",
        ),
        "none selected": (lambda: sortify(net(), lambda _: False), "predicate.*layer1.0"),
        "concatenation": (
            lambda: sortify(models.squeezenet1_1()),
            r"SqueezeNet has no addition .*: it concatenates them; use sortnet\.Fusion",
        ),
        "chain": (
            lambda: sortify(models.alexnet()),
            r"AlexNet has no addition .*: it is a chain; sortnet\.branch",
        ),
        "neither": (lambda: sortify(nn.Conv2d(3, 3, 1)), "Conv2d has no addition .* meet$"),
        "no chain": (lambda: branch(nn.Linear(2, 2)), "Linear has no convolution"),
        "no such conv": (lambda: branch(models.alexnet(), "conv1"), "'conv1'.*features.0"),
        "fusion": (lambda: sortify(net(), fusion="summ"), "unknown term 'summ'"),
        "gate": (lambda: sortify(net(), fusion="sum", gate="zero"), "no second-order term"),
        "scripted": (lambda: sites(torch.jit.ScriptModule()), "scripted"),
    }


@pytest.mark.parametrize("name", _mistakes())
def test_mistakes_are_one_line(name: str) -> None:
    make, says = _mistakes()[name]
    with pytest.raises(ValueError, match=says) as error:
        make()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
