"""The paper's claims as checks: each is run, says what it found, and comes to a verdict."""

from sortnet.lab.claims import accuracy
from sortnet.lab.claims import backprop as gradients
from sortnet.lab.claims import equations as operation
from sortnet.lab.claims import time_and_memory as cost
from sortnet.lab.claims import training_curves as curves
from sortnet.lab.claims.finding import Check, Context, Finding

__all__ = ["CHECKS", "Check", "Context", "Finding"]

CHECKS: dict[str, Check] = {
    **operation.CHECKS,
    **cost.CHECKS,
    **gradients.CHECKS,
    **accuracy.CHECKS,
    **curves.CHECKS,
}
"""By the claim's name."""
