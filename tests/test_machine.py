"""The machine at hand, as far as a CPU allows."""

import resource

import pytest
import torch

from sortnet import build
from sortnet.training import Machine, description, tune


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_a_large_tensor_is_not_given_back_to_the_system() -> None:
    tune()
    for _ in range(3):
        torch.ones(1 << 22)
    before = page_faults()
    for _ in range(10):
        torch.ones(1 << 22)  # 16 MB, 4096 pages
    assert page_faults() - before < 4096


def test_a_network_is_placed_in_channels_last_and_trains() -> None:
    machine = Machine.here()
    network = machine.place(build("resnet20", fusion="sort"))
    conv = network.get_submodule("layer1.0.conv1")
    assert isinstance(conv, torch.nn.Conv2d)
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    images = machine.images(torch.randn(4, 3, 32, 32))
    assert images.is_contiguous(memory_format=torch.channels_last)
    optimizer = machine.sgd(network.parameters(), lr=0.1, momentum=0.9, decay=1e-4)
    before = conv.weight.clone()
    with machine.precision():
        loss = torch.nn.functional.cross_entropy(network(images), machine.labels(torch.arange(4)))
    torch.autograd.backward(loss)
    optimizer.step()
    assert not torch.equal(conv.weight, before)


def test_compile_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Machine.here("auto", steps=100_000).compile or torch.cuda.is_available()
    assert Machine.here("on").compile
    with pytest.raises(ValueError, match="there are auto, on, off"):
        Machine.here("maybe")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    gpu = Machine.here("auto", steps=100_000)
    assert (gpu.device.type, gpu.autocast, gpu.compile) == ("cuda", torch.bfloat16, True)
    assert not Machine.here("auto", steps=10).compile
    assert not Machine.here("off").compile


def test_description_can_be_stored() -> None:
    assert description()["torch"] == torch.__version__
    assert int(description()["threads"]) >= 1
