"""The laboratory: data, training, runs, measurements, the paper's numbers; needs ``[lab]``."""

from sortnet.errors import require_lab

require_lab()
