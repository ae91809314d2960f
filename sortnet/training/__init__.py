"""Training: one loop, checkpoints, several processes, and the machine at hand."""

from sortnet.training.devices import DEVICES, resolve_device
from sortnet.training.distributed import World, joined
from sortnet.training.faults import Diverged, Interrupted
from sortnet.training.loop import Habits, Trainer
from sortnet.training.machine import Machine, description, resolve_precision, tune
from sortnet.training.watch import StepTimer, TensorBoard, Terminal, Watcher

__all__ = [
    "DEVICES",
    "Diverged",
    "Habits",
    "Interrupted",
    "Machine",
    "StepTimer",
    "TensorBoard",
    "Terminal",
    "Trainer",
    "Watcher",
    "World",
    "description",
    "joined",
    "resolve_device",
    "resolve_precision",
    "tune",
]
