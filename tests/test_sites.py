"""What counts as a place where branches meet, what is said of it, and what cannot be done."""

import functools
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import models

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
    y = sortify(block, example=x)(x)
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


def test_places_of_one_module_can_be_changed_in_turn() -> None:
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


class Asking(nn.Module):
    """A block whose way depends on what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Add, at once or later."""
        f = self.conv(x)
        y: Tensor = x + f if x.shape[0] > 1 else f + x
        return y


class Deciding(Asking):
    """A model that cannot be run without content."""

    def forward(self, x: Tensor) -> Tensor:
        """Add if it likes the image."""
        y: Tensor = x + self.conv(x) if x.mean() > 0 else x
        return y


def _mistakes() -> dict[str, tuple[Callable[[], object], str]]:
    net = models.resnet18
    return {
        "untraceable": (lambda: sortify(Asking()), "cannot be changed.*control flow"),
        "unrunnable": (lambda: sites(Deciding()), "Deciding could not be run on.*Tensor.item"),
        "wrong size": (lambda: sites(net(), torch.zeros(1, 5, 8, 8)), r"\(1, 5, 8, 8\)"),
        "no such place": (
            lambda: sortify(net(), "layer9"),
            "'layer9'.*layer1.0, layer1.1.*layer4.1",
        ),
        "none chosen": (lambda: sortify(net(), lambda _: False), "predicate.*layer1.0"),
        "no additions": (lambda: sortify(models.squeezenet1_1()), "SqueezeNet has no addition"),
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
