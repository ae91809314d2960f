"""Training: the loop, checkpoints, several processes, and the machine."""

from sortnet.lab.training.callbacks import Callback as Callback
from sortnet.lab.training.callbacks import StepTimer as StepTimer
from sortnet.lab.training.callbacks import TensorBoard as TensorBoard
from sortnet.lab.training.callbacks import Terminal as Terminal
from sortnet.lab.training.devices import DEVICES as DEVICES
from sortnet.lab.training.devices import resolve_device as resolve_device
from sortnet.lab.training.distributed import Distributed as Distributed
from sortnet.lab.training.distributed import init_distributed as init_distributed
from sortnet.lab.training.failures import Diverged as Diverged
from sortnet.lab.training.failures import Interrupted as Interrupted
from sortnet.lab.training.hardware import Machine as Machine
from sortnet.lab.training.hardware import description as description
from sortnet.lab.training.hardware import resolve_precision as resolve_precision
from sortnet.lab.training.hardware import tune as tune
from sortnet.lab.training.loop import Trainer as Trainer
from sortnet.lab.training.options import TrainerOptions as TrainerOptions
