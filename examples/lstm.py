r"""SORT in a recurrent network: fuse the input and the state of an LSTM.

In an LSTM, every gate is a function of two branches, W x of the input and U h of the state, which
are added. Here any fusion can combine them; with ``sum``, the cell is PyTorch's LSTM.

.. math:: i, f, g, o = W x \oplus U h + b, \qquad c' = \sigma(f)\,c + \sigma(i)\tanh(g),
          \qquad h' = \sigma(o)\tanh(c')

The task is the adding problem: two numbers of a sequence are marked, and the answer is their sum.
Always answering 1 has a mean squared error of 1/6.

    python examples/lstm.py
    python examples/lstm.py --steps 2000 --length 50
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet import Fusion


class LSTMCell(nn.Module):
    """One step of an LSTM, with the parameters and the order of gates of ``nn.LSTMCell``.

    Arguments:
        input_size: Size of the input.
        hidden_size: Size of the state.
        fusion: How W x and U h are fused. The products of ``sort`` may have either sign, since the
            branches are not activated.
    """

    def __init__(self, input_size: int, hidden_size: int, fusion: str = "sort") -> None:
        super().__init__()
        self.input = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.state = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        self.fusion = Fusion(fusion)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Map the input and the state to the next state."""
        gates = self.fusion(self.input(x), self.state(h)) + self.bias
        i, f, g, o = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Adder(nn.Module):
    """Maps a sequence to one number."""

    def __init__(self, hidden: int, fusion: str) -> None:
        super().__init__()
        self.hidden = hidden
        self.cell = LSTMCell(2, hidden, fusion)
        self.out = nn.Linear(hidden, 1)

    def forward(self, sequence: Tensor) -> Tensor:
        """Map :math:`(N, length, 2)` to :math:`(N)`."""
        h = c = sequence.new_zeros(len(sequence), self.hidden)
        for x in sequence.unbind(1):
            h, c = self.cell(x, h, c)
        answer: Tensor = self.out(h).squeeze(1)
        return answer


def problem(count: int, length: int) -> tuple[Tensor, Tensor]:
    """Return sequences of numbers and marks, one mark in each half, and the marked sums."""
    numbers, marks = torch.rand(count, length), torch.zeros(count, length)
    for half in (torch.arange(length // 2), torch.arange(length // 2, length)):
        marks[torch.arange(count), half[torch.randint(len(half), (count,))]] = 1
    return torch.stack([numbers, marks], dim=2), (numbers * marks).sum(1)


def main() -> None:
    """Train with the sum and with SORT."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--length", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=32)
    options = parser.parse_args()

    for fusion in ("sum", "sort"):
        torch.manual_seed(0)
        model = Adder(options.hidden, fusion)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for _ in range(options.steps):
            sequences, answers = problem(64, options.length)
            loss = F.mse_loss(model(sequences), answers)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        with torch.no_grad():
            sequences, answers = problem(1000, options.length)
            error = F.mse_loss(model(sequences), answers).item()
        print(f"{model.cell.fusion.name:9} mean squared error {error:.4f} on new sequences")


if __name__ == "__main__":
    main()
