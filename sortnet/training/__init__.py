"""Training: how a network is run on the machine at hand."""

from sortnet.training.machine import Machine, description, tune

__all__ = ["Machine", "description", "tune"]
