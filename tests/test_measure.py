"""Counts against figures known from elsewhere, receptive fields against arithmetic."""

from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from sortnet import Fusion, create_model
from sortnet.blocks import TwoBranch
from sortnet.lab.measure import receptive_fields, stages, work
from sortnet.networks import Network


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_multiply_adds_are_those_torchvision_publishes(name: str) -> None:
    published = torchvision.models.get_model_weights(name).IMAGENET1K_V1.meta["_ops"]  # billions
    counted = work(create_model(name), torch.empty(1, 3, 224, 224)).layers
    assert round(counted / 1e9, 3) == published


def test_a_fusion_costs_one_multiply_add_for_each_response() -> None:
    images = torch.empty(1, 3, 32, 32)
    plain, sort = (work(create_model("resnet20", fusion=f), images) for f in ("sum", "sort"))
    assert plain.fusion == 0
    assert sort.layers == plain.layers
    assert sort.fusion == 3 * (16 * 32 * 32 + 32 * 16 * 16 + 64 * 8 * 8)
    both = work(create_model("resnet20", fusion="sum+prod+root"), images)
    assert both.fusion == 2 * sort.fusion


@pytest.mark.parametrize("head", ["average", "bilinear", "compact"])
def test_heads_can_be_measured(head: str) -> None:
    rows = stages(create_model("bignet", branched=True, head=head))
    assert [row.name for row in rows[-2:]] == ["pool", "fc"]
    assert rows[-1].shape == (10,)


def test_measuring_leaves_the_network_alone() -> None:
    network = create_model("lenet", branched=True, fusion="sort")
    before = {key: value.clone() for key, value in network.state_dict().items()}
    rows = stages(network)
    assert sum(row.parameters for row in rows) == 234_378
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    assert not any(module._forward_hooks for module in network.modules())


def arithmetic(*layers: tuple[int, int]) -> int:
    """The receptive field of kernels and strides in a row."""
    field, jump = 1, 1
    for kernel, stride in layers:
        field += (kernel - 1) * jump
        jump *= stride
    return field


def test_receptive_fields_by_arithmetic() -> None:
    lenet = receptive_fields(create_model("lenet"))
    assert lenet["pool3"] == arithmetic(*[(5, 1), (3, 2)] * 3)
    alexnet = receptive_fields(create_model("alexnet"))
    assert alexnet["conv1"] == 11
    expected = arithmetic((11, 4), (3, 2), (5, 1), (3, 2), (3, 1), (3, 1), (3, 1), (3, 2))
    assert alexnet["pool5"] == expected == 195
    resnet = receptive_fields(create_model("resnet20", fusion="sort"))
    down = [(3, 2), *[(3, 1)] * 5]
    assert resnet["layer3"] == arithmetic(*[(3, 1)] * 7, *down, *down)


@pytest.mark.parametrize("name", ["lenet", "bignet", "alexnet"])
def test_branching_keeps_the_receptive_field(name: str) -> None:
    plain = receptive_fields(create_model(name))
    for fusion in ("sum", "sort"):
        branched = receptive_fields(create_model(name, branched=True, fusion=fusion))
        assert branched == {stage: plain[stage] for stage in branched}


@pytest.mark.parametrize(
    ("kernel", "options"),
    [(1, {}), (3, {}), (5, {"padding": 2}), (7, {"padding": 3, "stride": 2}), (11, {"stride": 4})],
)
def test_two_branches_see_what_one_convolution_sees(kernel: int, options: dict[str, Any]) -> None:
    branched = TwoBranch(3, 8, kernel, Fusion("sort"), **options)
    conv = nn.Conv2d(3, 8, kernel, **options)
    images = torch.zeros(1, 3, 63, 63)
    assert branched(images).shape == conv(images).shape
    fields = receptive_fields(Network({"a": branched}, size=63))
    assert fields["a"] == kernel


def test_an_even_kernel_cannot_be_branched() -> None:
    with pytest.raises(ValueError, match="kernel_size is 4"):
        TwoBranch(3, 8, 4, Fusion("sort"))
