"""The machine at hand, as far as a CPU allows."""

import resource

import pytest
import torch

from sortnet import build
from sortnet.training import Machine, description, resolve_precision, tune


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_a_large_tensor_is_not_given_back_to_the_system() -> None:
    tune()
    for _ in range(3):
        torch.ones(1 << 22)
    before = page_faults()
    for _ in range(10):
        torch.ones(1 << 22)  # 16 MB, 4096 pages; all ten would be 40960
    assert page_faults() - before < 3 * 4096


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
    with machine.autocast():
        logits = network(images)
    loss = torch.nn.functional.cross_entropy(logits, machine.labels(torch.arange(4)))
    torch.autograd.backward(loss)
    optimizer.step()
    assert not torch.equal(conv.weight, before)


def test_compile_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Machine.here("auto", steps=100_000).compile or torch.cuda.is_available()
    assert Machine.here("on").compile
    with pytest.raises(ValueError, match="there are auto, on, off"):
        Machine.here("maybe")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gpu = Machine.here("auto", steps=100_000)
    assert (gpu.device.type, gpu.compile) == ("cuda", True)
    assert not Machine.here("auto", steps=10).compile
    assert not Machine.here("off").compile


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_bfloat16_only_where_the_hardware_has_it(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def supported(including_emulation: bool = True) -> bool:
        return native or including_emulation

    expected = "bfloat16" if native else "float32"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert resolve_precision("auto") == expected
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert resolve_precision("auto") == expected
    assert resolve_precision("bfloat16") == "bfloat16"
    with pytest.raises(ValueError, match="there are auto, float32, bfloat16"):
        resolve_precision("half")


def test_bfloat16_keeps_weights_and_statistics_in_float32() -> None:
    machine = Machine.here(precision="bfloat16")
    network = machine.place(build("resnet20", fusion="sort"))
    with machine.autocast():
        logits = network(machine.images(torch.randn(4, 3, 32, 32)))
    assert logits.dtype == torch.bfloat16
    torch.autograd.backward(logits.float().sum())
    floats = [t for t in network.state_dict().values() if t.is_floating_point()]
    assert {t.dtype for t in floats} == {torch.float32}
    assert {p.grad.dtype for p in network.parameters() if p.grad is not None} == {torch.float32}


def test_description_can_be_stored() -> None:
    assert description()["torch"] == torch.__version__
    assert int(description()["threads"]) >= 1
