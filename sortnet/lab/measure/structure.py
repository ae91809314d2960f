"""The structure of a network: parameters, multiply-adds, receptive fields."""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sortnet.blocks import Subsample
from sortnet.fusion import Fusion
from sortnet.networks import Network


def parameters(model: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in model.parameters())


@dataclass(frozen=True)
class Work:
    """Multiply-adds of one image's forward pass.

    Attributes:
        layers: Multiply-adds of convolutions and linear layers.
        fusion: Multiply-adds of the second-order terms, one for each element: ``(a + b) + a * b``
            has one more than ``a + b``, and under the root ``a * b + eps`` is one, too.
    """

    layers: int
    fusion: int

    @property
    def total(self) -> int:
        """All multiply-adds."""
        return self.layers + self.fusion


def work(model: nn.Module, images: Tensor) -> Work:
    """Count the multiply-adds of a forward pass, on the meta device: nothing is computed.

    Arguments:
        model: Any module; it is not changed.
        images: A batch of one; only its shape is used.

    Example:
        >>> from sortnet.networks import create_model
        >>> work(create_model("resnet20", fusion="sort"), torch.empty(1, 3, 32, 32))
        Work(layers=40551040, fusion=86016)
    """
    model = _on_meta(model)
    fused = 0

    def count(fusion: nn.Module, _: object, output: Tensor) -> None:
        nonlocal fused
        assert isinstance(fusion, Fusion)
        fused += len(fusion.second_order) * output.numel()

    for module in model.modules():
        if isinstance(module, Fusion):
            module.register_forward_hook(count)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(images.to("meta"))
    return Work(counter.get_total_flops() // 2, fused)


@dataclass(frozen=True)
class Stage:
    """One stage of a network, as `sortnet info` prints it.

    Attributes:
        name: Its name.
        kind: What it is made of.
        shape: The shape of its response to one image.
        parameters: Number of trainable parameters.
        work: Its multiply-adds.
        receptive_field: The side of the image region that one response depends on; None if
            responses have no position in the image.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    work: Work
    receptive_field: int | None


def stages(network: Network) -> list[Stage]:
    """Return the stages of a network for RGB images, which is not changed."""
    fields = receptive_fields(network)
    x = torch.empty(1, 3, network.size, network.size, device="meta")
    rows = []
    for name, module in _on_meta(network).named_children():
        cost = work(module, x)
        with torch.no_grad():
            x = module(x)
        kind = _kind(module)
        field = fields.get(name)
        rows.append(Stage(name, kind, tuple(x.shape[1:]), parameters(module), cost, field))
    return rows


def _kind(module: nn.Module) -> str:
    if isinstance(module, nn.Sequential):
        return f"{len(module)} x {type(module[0]).__name__}"
    return type(module).__name__


def receptive_fields(network: Network) -> dict[str, int]:
    """Return the receptive field after each stage, by the support of one response's gradient.

    The gradient of a response with respect to the image is nonzero where the response depends on
    it. To make this exact, it is computed in a copy of the network in float64 with one channel,
    positive weights, and average pooling instead of max pooling. The image is a strip, high enough
    for the network and wider than the receptive field.

    Example:
        >>> from sortnet.networks import create_model
        >>> list(receptive_fields(create_model("lenet")).values())
        [5, 5, 7, 15, 15, 19, 35, 35, 43]
    """
    probe = _positive(network)
    fields: dict[str, int] = {}
    width = 2 * network.size
    while missing := [name for name in _maps(network) if name not in fields]:
        image = torch.ones(1, 1, network.size, width, dtype=torch.float64)
        fields |= _supports(probe, missing, image.requires_grad_())
        width *= 2
    return fields


def _maps(network: Network) -> list[str]:
    """Return the stages whose responses have spatial positions."""
    x = torch.empty(1, 3, network.size, network.size, device="meta")
    names = []
    with torch.no_grad():
        for name, module in _on_meta(network).named_children():
            x = module(x)
            if x.dim() == 4:
                names.append(name)
    return names


def _supports(probe: nn.Module, names: list[str], image: Tensor) -> dict[str, int]:
    """Return the width of the middle response's support after each stage, if inside the image."""
    fields = {}
    x = image
    for name, module in probe.named_children():
        x = module(x)
        if name in names:
            middle = x[..., x.shape[-1] // 2].sum()
            (gradient,) = torch.autograd.grad(middle, image, retain_graph=True)
            seen = gradient.sum((0, 1, 2)).nonzero().flatten().tolist()
            if seen[0] > 0 and seen[-1] < image.shape[-1] - 1:
                fields[name] = seen[-1] - seen[0] + 1
        if name == names[-1]:
            break
    return fields


def _positive(network: Network) -> nn.Module:
    """Return a copy with one channel whose responses increase with every pixel they see."""
    probe = copy.deepcopy(network).eval()
    for parent in list(probe.modules()):
        if isinstance(parent, Subsample):
            parent.out_channels = 1
        if isinstance(parent, nn.Conv2d):
            kernel = (1, 1, *parent.kernel_size)
            parent.weight = nn.Parameter(torch.full(kernel, 1 / math.prod(kernel)))
            parent.bias, parent.groups = None, 1
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d):
                parent.register_module(name, nn.Identity())
            elif isinstance(child, nn.MaxPool2d):
                geometry = (child.kernel_size, child.stride, child.padding, child.ceil_mode)
                parent.register_module(name, nn.AvgPool2d(*geometry))
            elif isinstance(child, Fusion):
                parent.register_module(name, Fusion("sum"))
    return probe.double().requires_grad_(False)


def _on_meta(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to("meta")
