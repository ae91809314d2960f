r"""SORT in a network that concatenates: torchvision's DenseNet.

A dense layer concatenates its response with the earlier ones instead of adding it. So there are no
branches to fuse, `sites` is empty, and the paper does not cover such networks. This example shows
one possible choice: before concatenation, the new response f (k channels, the growth rate) gets a
gated second-order term with x, the last k channels of the earlier responses, which are those of
the previous layer.

.. math:: [x_1, \ldots, x_l] \mapsto [x_1, \ldots, x_l,\; f + \gamma \sqrt{\sigma(x_l)\,\sigma(f) +
          \varepsilon}]

All shapes stay the same, and with the gates at zero the network computes the same outputs, bit for
bit.

    python examples/densenet.py
"""

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.densenet import DenseNet, _DenseLayer

from sortnet import Fusion
from sortnet.surgery import sites


class Fused(nn.Module):
    """A dense layer whose response is fused with the previous one.

    Arguments:
        layer: The layer.
    """

    def __init__(self, layer: _DenseLayer) -> None:
        super().__init__()
        self.layer = layer
        self.growth: int = layer.conv2.out_channels
        self.fusion = Fusion("root", gate="zero", channels=self.growth)

    def forward(self, earlier: list[Tensor]) -> Tensor:
        """Return the new response, to be concatenated with the earlier ones."""
        f: Tensor = self.layer(earlier)
        y: Tensor = f + self.fusion(earlier[-1][:, -self.growth :], f)
        return y


def fused(model: nn.Module) -> nn.Module:
    """Return a copy whose dense layers are `Fused`."""
    changed = copy.deepcopy(model)
    for module in list(changed.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, _DenseLayer):
                setattr(module, name, Fused(child))
    return changed


def main() -> None:
    """Convert, compare, train for a few steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, nargs="+", default=[2, 3], help="6 12 24 16 is 121")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    torch.manual_seed(0)
    plain = DenseNet(8, tuple(options.blocks), 16, num_classes=10)
    print(f"sites: {len(sites(plain))}")
    changed = fused(plain)
    images, labels = torch.randn(16, 3, 64, 64), torch.randint(10, (16,))
    same = torch.equal(changed.eval()(images), plain.eval()(images))
    print(f"with gates at zero, same outputs bit for bit: {same}")
    optimizer = torch.optim.SGD(changed.train().parameters(), lr=0.05, momentum=0.9)
    for _ in range(options.steps):
        loss = F.cross_entropy(changed(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    gates = torch.cat([p.detach() for n, p in changed.named_parameters() if n.endswith("gate")])
    print(f"loss after {options.steps} steps: {loss.item():.3f}")
    print(f"{len(gates)} gates, from {gates.min():.4f} to {gates.max():.4f}")


if __name__ == "__main__":
    main()
