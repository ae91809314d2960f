"""The lab: data, training, runs, measurements, the paper's numbers; needs ``sortnet[lab]``."""

from sortnet.errors import require_lab

require_lab()
