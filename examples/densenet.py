r"""SORT in a network that concatenates: torchvision's DenseNet.

A dense layer does not add its response to what came before, it puts it beside it; no two branches
meet, `sites` is empty, and there is nothing that the paper says about such a network. What can be
done is a choice of ours, shown here: before it is put beside them, a new response f (growth rate
k channels) meets the last k channels x of those that came before it, the previous layer's, by a
gated second-order term.

.. math:: [x_1, \ldots, x_l] \mapsto [x_1, \ldots, x_l,\; f + \gamma \sqrt{\sigma(x_l)\,\sigma(f) +
          \varepsilon}]

Number and shape of all responses stay what they were, and with the gate at zero so does the
network, bit for bit.

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
    """A dense layer whose response meets the one before it.

    Arguments:
        layer: The layer.
    """

    def __init__(self, layer: _DenseLayer) -> None:
        super().__init__()
        self.layer = layer
        self.growth: int = layer.conv2.out_channels
        self.fusion = Fusion("root", gate="zero", channels=self.growth)

    def forward(self, earlier: list[Tensor]) -> Tensor:
        """Give the new response, to be put beside the earlier ones."""
        f: Tensor = self.layer(earlier)
        y: Tensor = f + self.fusion(earlier[-1][:, -self.growth :], f)
        return y


def fused(model: nn.Module) -> nn.Module:
    """A copy whose dense layers are `Fused`."""
    changed = copy.deepcopy(model)
    for module in list(changed.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, _DenseLayer):
                setattr(module, name, Fused(child))
    return changed


def main() -> None:
    """Change, compare, take a few steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, nargs="+", default=[2, 3], help="6 12 24 16 is 121")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    torch.manual_seed(0)
    plain = DenseNet(8, tuple(options.blocks), 16, num_classes=10)
    print(f"places where branches meet by addition: {len(sites(plain))}")
    changed = fused(plain)
    images, labels = torch.randn(16, 3, 64, 64), torch.randint(10, (16,))
    same = torch.equal(changed.eval()(images), plain.eval()(images))
    print(f"with gates at zero the same outputs, bit for bit: {same}")
    optimizer = torch.optim.SGD(changed.train().parameters(), lr=0.05, momentum=0.9)
    for _ in range(options.steps):
        loss = F.cross_entropy(changed(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    gates = torch.cat([p.detach() for n, p in changed.named_parameters() if n.endswith("gate")])
    print(f"after {options.steps} steps the loss is {loss.item():.3f}, the gates {len(gates)}")
    print(f"numbers between {gates.min():.4f} and {gates.max():.4f}")


if __name__ == "__main__":
    main()
