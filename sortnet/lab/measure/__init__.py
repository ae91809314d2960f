"""Measure the structure and the cost of a network, without training it."""

from sortnet.lab.measure.activities import Activity, activity
from sortnet.lab.measure.cost import (
    Peak,
    Ratio,
    machine_peak,
    peak_bytes,
    ratio,
    saved_bytes,
    side_by_side,
)
from sortnet.lab.measure.gradients import (
    autocorrelation,
    gradient_correlation,
    input_gradients,
    rounding_error,
)
from sortnet.lab.measure.structure import Stage, Work, parameters, receptive_fields, stages, work

__all__ = [
    "Activity",
    "Peak",
    "Ratio",
    "Stage",
    "Work",
    "activity",
    "autocorrelation",
    "gradient_correlation",
    "input_gradients",
    "machine_peak",
    "parameters",
    "peak_bytes",
    "ratio",
    "receptive_fields",
    "rounding_error",
    "saved_bytes",
    "side_by_side",
    "stages",
    "work",
]
