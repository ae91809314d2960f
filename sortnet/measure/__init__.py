"""What a network is made of and what it costs, without training it."""

from sortnet.measure.cost import (
    Peak,
    Ratio,
    machine_peak,
    peak_bytes,
    ratio,
    saved_bytes,
    side_by_side,
)
from sortnet.measure.structure import Stage, Work, parameters, receptive_fields, stages, work

__all__ = [
    "Peak",
    "Ratio",
    "Stage",
    "Work",
    "machine_peak",
    "parameters",
    "peak_bytes",
    "ratio",
    "receptive_fields",
    "saved_bytes",
    "side_by_side",
    "stages",
    "work",
]
