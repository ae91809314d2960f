"""Measure the structure and the cost of a network, without training it."""

from sortnet.lab.measure.activities import Activity as Activity
from sortnet.lab.measure.activities import activity as activity
from sortnet.lab.measure.cost import Peak as Peak
from sortnet.lab.measure.cost import Ratio as Ratio
from sortnet.lab.measure.cost import machine_peak as machine_peak
from sortnet.lab.measure.cost import peak_bytes as peak_bytes
from sortnet.lab.measure.cost import ratio as ratio
from sortnet.lab.measure.cost import saved_bytes as saved_bytes
from sortnet.lab.measure.cost import side_by_side as side_by_side
from sortnet.lab.measure.gradients import autocorrelation as autocorrelation
from sortnet.lab.measure.gradients import gradient_correlation as gradient_correlation
from sortnet.lab.measure.gradients import input_gradients as input_gradients
from sortnet.lab.measure.gradients import rounding_error as rounding_error
from sortnet.lab.measure.structure import Stage as Stage
from sortnet.lab.measure.structure import Work as Work
from sortnet.lab.measure.structure import parameters as parameters
from sortnet.lab.measure.structure import receptive_fields as receptive_fields
from sortnet.lab.measure.structure import stages as stages
from sortnet.lab.measure.structure import work as work
