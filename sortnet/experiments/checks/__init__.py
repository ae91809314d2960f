"""The paper's claims as checks: each is run, says what it found, and comes to a verdict."""

from sortnet.experiments.checks import accuracy, cost, curves, gradients, operation
from sortnet.experiments.checks.finding import Check, Context, Finding

__all__ = ["CHECKS", "Check", "Context", "Finding"]

CHECKS: dict[str, Check] = {
    **operation.CHECKS,
    **cost.CHECKS,
    **gradients.CHECKS,
    **accuracy.CHECKS,
    **curves.CHECKS,
}
"""By the claim's name."""
