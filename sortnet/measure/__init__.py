"""What a network is made of and what it costs, without training it."""

from sortnet.measure.activities import Activity, activity
from sortnet.measure.cost import (
    Peak,
    Ratio,
    machine_peak,
    peak_bytes,
    ratio,
    saved_bytes,
    side_by_side,
)
from sortnet.measure.gradients import (
    autocorrelation,
    gradient_correlation,
    input_gradients,
    rounding_error,
)
from sortnet.measure.structure import Stage, Work, parameters, receptive_fields, stages, work

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
