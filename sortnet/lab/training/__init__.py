"""Training: the loop, checkpoints, several processes, and the machine."""

from sortnet.lab.training.callbacks import Callback, StepTimer, TensorBoard, Terminal
from sortnet.lab.training.devices import DEVICES, resolve_device
from sortnet.lab.training.distributed import Distributed, init_distributed
from sortnet.lab.training.failures import Diverged, Interrupted
from sortnet.lab.training.hardware import Machine, description, resolve_precision, tune
from sortnet.lab.training.loop import Trainer
from sortnet.lab.training.options import TrainerOptions

__all__ = [
    "DEVICES",
    "Callback",
    "Distributed",
    "Diverged",
    "Interrupted",
    "Machine",
    "StepTimer",
    "TensorBoard",
    "Terminal",
    "Trainer",
    "TrainerOptions",
    "description",
    "init_distributed",
    "resolve_device",
    "resolve_precision",
    "tune",
]
