"""What all networks share: a sequence of named stages, and the options of every network."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from sortnet.fusion import Fusion
from sortnet.heads import HEADS

FusionLike = str | Callable[[int], nn.Module]
"""The name of a fusion, or a function from the number of channels to a fusion module."""


class Network(nn.Sequential):
    """A sequence of named stages with named features.

    Arguments:
        stages: Modules by name, in order; the last one computes the logits.
        features: The stage whose output is the feature, by name of the feature. A feature of a
            layer with ReLU is read after the ReLU, as section 4.3 does for transfer.
        size: Side of the images that the network was made for.
    """

    def __init__(
        self,
        stages: dict[str, nn.Module],
        features: Mapping[str, str] | None = None,
        size: int = 0,
    ) -> None:
        super().__init__()
        for name, stage in stages.items():
            self.add_module(name, stage)
        self.features = dict(features or {})
        self.size = size

    def extract_features(self, x: Tensor, *names: str) -> dict[str, Tensor]:
        """Run the network as far as needed to compute the named features.

        Arguments:
            x: Images, :math:`(N, C, H, W)`.
            names: Keys of `features`; all of them by default.

        Example:
            >>> import torch
            >>> from sortnet.networks import create_model
            >>> network = create_model("resnet20")
            >>> network.extract_features(torch.zeros(1, 3, 32, 32), "layer2")["layer2"].shape
            torch.Size([1, 32, 16, 16])
        """
        for name in names:
            if name not in self.features:
                raise ValueError(f"unknown feature {name!r}; there are {', '.join(self.features)}")
        wanted = {self.features[name]: name for name in names or self.features}
        found: dict[str, Tensor] = {}
        for stage, module in self.named_children():
            x = module(x)
            if stage in wanted:
                found[wanted[stage]] = x
            if len(found) == len(wanted):
                break
        return found


@dataclass(frozen=True)
class NetworkOptions:
    """The options of every network, as passed to `create_model`.

    Attributes:
        num_classes: Number of classes.
        fusion: How branches are fused.
        eps: Added under the root of the fusion.
        gate: Initial value of the gates of the second-order terms; None for no gates.
        head: A head from `HEADS` that replaces the network's own.
        in_chans: Channels of the images.
        size: Side of the images.
    """

    num_classes: int
    fusion: FusionLike
    eps: float
    gate: str | None
    head: str | None
    in_chans: int
    size: int

    def __post_init__(self) -> None:
        for name in ("num_classes", "in_chans", "size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, but must be an integer of at least 1")
        if self.head is not None and self.head not in HEADS:
            raise ValueError(f"unknown head {self.head!r}; there are {', '.join(HEADS)}")
        if isinstance(self.fusion, str):
            self.make_fusion(1, "residual")  # raises for an unknown name

    def make_fusion(self, channels: int, block: str) -> nn.Module:
        """Return a fusion for one block of the given kind, ``branches`` or ``residual``."""
        if callable(self.fusion):
            return self.fusion(channels)
        return Fusion(self.fusion, block=block, eps=self.eps, gate=self.gate, channels=channels)

    def make_classifier(self, channels: int) -> dict[str, nn.Module]:
        """Return the last two stages: the head, and the linear classifier."""
        head = HEADS[self.head or "average"](channels)
        return {"pool": head, "fc": nn.Linear(head.out_features, self.num_classes)}
