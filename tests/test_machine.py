"""Device, precision and compilation, as far as a CPU can test them."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from sortnet import create_model
from sortnet.lab.training import (
    Machine,
    distributed,
    init_distributed,
    resolve_device,
    resolve_precision,
)
from sortnet.lab.training.hardware import FUSED

Pretend = Callable[[str | None], None]

FAULTS = """
import resource, torch
from sortnet.lab.training import tune
tune()
for i in range(13):
    if i == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(1 << 22)  # 16 MB, 4096 pages
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_large_tensor_is_not_given_back_to_the_system() -> None:
    """In a new process: what other tests left of the heap would change the number."""
    faults = int(subprocess.check_output([sys.executable, "-c", FAULTS]))
    assert faults < 3 * 4096  # all ten would be 40960


def test_a_network_is_placed_in_channels_last_and_trains() -> None:
    machine = Machine.here()
    network = machine.place(create_model("resnet20", fusion="sort"))
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


def test_the_device_is_a_choice(pretend: Pretend) -> None:
    pretend(None)
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match=r"no device 'cuda' here; there are auto, cpu$"):
        resolve_device("cuda")
    pretend("xpu")
    assert resolve_device("auto") == resolve_device("xpu") == torch.device("xpu")
    assert Machine.here("off", device="cpu").device == torch.device("cpu")
    assert Machine.here("off").device == torch.device("xpu")
    with pytest.raises(ValueError, match=r"no device 'mps' here; there are auto, cpu, xpu$"):
        Machine.here(device="mps")


def test_compile_is_a_choice(pretend: Pretend) -> None:
    assert Machine.here("on").compile
    with pytest.raises(ValueError, match="there are auto, on, off"):
        Machine.here("maybe")
    for kind, worth in ((None, False), ("cuda", True), ("xpu", True), ("mps", False)):
        pretend(kind)
        assert Machine.here("auto", steps=100_000).compile is worth
        assert not Machine.here("auto", steps=10).compile
        assert not Machine.here("off").compile
    assert not Machine.here("auto", steps=100_000, device="cpu").compile


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_bfloat16_only_where_the_hardware_has_it(
    native: bool, pretend: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def supported(including_emulation: bool = True) -> bool:
        return native or including_emulation

    expected = "bfloat16" if native else "float32"
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    for module in (torch.cuda, torch.xpu):
        monkeypatch.setattr(module, "is_bf16_supported", supported, raising=False)
    for kind in (None, "cuda", "xpu"):
        pretend(kind)
        assert resolve_precision("auto") == expected
    pretend("mps")
    assert resolve_precision("auto") == "float32"
    assert resolve_precision("auto", "cpu") == expected
    assert resolve_precision("bfloat16") == "bfloat16"
    with pytest.raises(ValueError, match="there are auto, float32, bfloat16"):
        resolve_precision("half")
    pretend("xpu")
    monkeypatch.delattr(torch.xpu, "is_bf16_supported")  # as in a version that cannot tell
    assert resolve_precision("auto") == "float32"


def test_sgd_is_fused_where_there_is_a_kernel() -> None:
    supported = torch.utils._foreach_utils._get_fused_kernels_supported_devices()
    assert set(FUSED) <= set(supported)
    weight = nn.Parameter(torch.zeros(1))
    for kind, fused in (("cpu", True), ("xpu", True), ("meta", None)):
        machine = Machine(torch.device(kind), "float32", compile=False)
        optimizer = machine.sgd([weight], lr=0.1, momentum=0.9, decay=0.0)
        assert optimizer.defaults["fused"] is fused


@pytest.mark.parametrize(
    ("kind", "backend"), [("cuda", "nccl"), ("xpu", "xccl"), ("mps", "gloo"), (None, "gloo")]
)
def test_torchrun_gives_each_process_its_device_and_backend(
    kind: str | None, backend: str, pretend: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(kind)
    calls: dict[str, Any] = {"index": None}
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.accelerator, "set_device_index", lambda index: calls.update(index=index)
    )
    store = HashStore()
    monkeypatch.setattr(distributed, "rendezvous", lambda *_, **__: iter([(store, 5, 8)]))
    monkeypatch.setattr(
        dist,
        "init_process_group",
        lambda backend, **more: calls.update(backend=backend, **more),
    )
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    with init_distributed() as group:
        assert (group.rank, group.size) == (5, 8)
    assert calls["backend"] == backend
    device = torch.device("cpu") if kind is None else torch.device(kind, 1)
    assert group.device == device
    assert calls["index"] == device.index
    assert calls["device_id"] == (device if backend in ("nccl", "xccl") else None)
    if kind is not None:
        monkeypatch.setenv("LOCAL_RANK", "2")
        words = f"process 2 .* there are 2 {kind} devices"
        with pytest.raises(ValueError, match=words), init_distributed():
            pass


def test_bfloat16_keeps_weights_and_statistics_in_float32() -> None:
    machine = Machine.here(precision="bfloat16")
    network = machine.place(create_model("resnet20", fusion="sort"))
    with machine.autocast():
        logits = network(machine.images(torch.randn(4, 3, 32, 32)))
    assert logits.dtype == torch.bfloat16
    torch.autograd.backward(logits.float().sum())
    floats = [t for t in network.state_dict().values() if t.is_floating_point()]
    assert {t.dtype for t in floats} == {torch.float32}
    assert {p.grad.dtype for p in network.parameters() if p.grad is not None} == {torch.float32}
