"""ImageNet on several GPUs, as a table."""

from collections.abc import Sequence
from typing import Any

from tools.scale import Demand

RATE = 50e12
"""Multiply-adds a second that are assumed of a GPU: a third of the 312 TFLOP/s that its maker
states for an A100 in bfloat16. Convolutional networks rarely get more."""
LINKS = {8: 200e9, 64: 20e9}
"""Bytes a second that are assumed between GPUs: of one machine, and over a network."""


def markdown(stored: Sequence[dict[str, Any]]) -> str:
    """For each network and number of GPUs what a step needs, and what all of them take."""
    head = ["network", "GPUs", "images each", "memory each", "sent each", "computing", "sending"]
    head.append("all steps")
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for demand in (Demand(**entry) for entry in stored):
        for gpus, link in LINKS.items():
            computing, sending = demand.computing(gpus, RATE), demand.exchanged(gpus) / link
            cells = [
                demand.name,
                str(gpus),
                str(demand.batch // gpus),
                f"{demand.memory(gpus) / 1e9:.2f} GB",
                f"{demand.exchanged(gpus) / 1e6:.0f} MB",
                f"{1000 * computing:.2f} ms",
                f"{1000 * sending:.2f} ms",
                f"{demand.steps * max(computing, sending) / 3600:.1f} h",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
