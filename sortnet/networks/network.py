"""What all networks have in common: named stages in a row, and what every one can be asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from sortnet.fusion import Fusion
from sortnet.heads import HEADS

Fusing = str | Callable[[int], nn.Module]
"""A fusion's name, or a function from the number of channels to a module that fuses."""


class Network(nn.Sequential):
    """Named stages, one after the other, and the activations that have names.

    Arguments:
        stages: Modules by name, in order; the last one gives the logits.
        taps: The activations worth reading, each with the stage after which it is read: an
            activation is read behind its ReLU, as section 4.3 does for transfer.
        size: The side of the images that it was built for.
    """

    def __init__(
        self, stages: dict[str, nn.Module], taps: Mapping[str, str] | None = None, size: int = 0
    ) -> None:
        super().__init__()
        for name, stage in stages.items():
            self.add_module(name, stage)
        self.taps = dict(taps or {})
        self.size = size

    def activations(self, x: Tensor, *names: str) -> dict[str, Tensor]:
        """Run the images `x` through the network as far as is needed for the named activations.

        Arguments:
            x: Images, :math:`(N, C, H, W)`.
            names: Out of `taps`; all of them without any.

        Example:
            >>> import torch
            >>> from sortnet.networks import create_model
            >>> maps = create_model("resnet20").activations(torch.zeros(1, 3, 32, 32), "layer2")
            >>> maps["layer2"].shape
            torch.Size([1, 32, 16, 16])
        """
        for name in names:
            if name not in self.taps:
                raise ValueError(f"unknown activation {name!r}; there are {', '.join(self.taps)}")
        behind = {self.taps[name]: name for name in names or self.taps}
        found: dict[str, Tensor] = {}
        for stage, module in self.named_children():
            x = module(x)
            if stage in behind:
                found[behind[stage]] = x
            if len(found) == len(behind):
                break
        return found


@dataclass(frozen=True)
class Plan:
    """What every network can be asked for.

    Attributes:
        num_classes: How many classes it tells apart.
        fusion: How branches meet.
        eps: The number under the fusion's root.
        gate: Whether the second-order term is gated, and the gate's first value.
        head: A head in place of the network's own, out of `HEADS`.
        in_chans: The images' channels.
        size: The images' side.
    """

    num_classes: int
    fusion: Fusing
    eps: float
    gate: str | None
    head: str | None
    in_chans: int
    size: int

    def __post_init__(self) -> None:
        for name in ("num_classes", "in_chans", "size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, but must be a whole number of 1 or more")
        if self.head is not None and self.head not in HEADS:
            raise ValueError(f"unknown head {self.head!r}; there are {', '.join(HEADS)}")
        if isinstance(self.fusion, str):
            self.fuse(1, "residual")  # a misspelt one is found before anything is built

    def fuse(self, channels: int, block: str) -> nn.Module:
        """A fusion for one block of the given kind, ``branches`` or ``residual``."""
        if callable(self.fusion):
            return self.fusion(channels)
        return Fusion(self.fusion, block=block, eps=self.eps, gate=self.gate, channels=channels)

    def classifier(self, channels: int) -> dict[str, nn.Module]:
        """The last two stages: a head over the responses' channels, and the linear classifier."""
        head = HEADS[self.head or "average"](channels)
        return {"pool": head, "fc": nn.Linear(head.features, self.num_classes)}
