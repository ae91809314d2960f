"""A run as data, and the directory in which it lives.

::

    runs/cifar10/resnet20-sort/seed0/
        run.json            network, data, recipe, seed; the machine
        metrics.jsonl       a row per logging interval and evaluation; a repeated run writes the
                            same rows
        events.jsonl        starts, stops and failures, with their times
        checkpoints/        the newest checkpoints, from which the run resumes
        result.json         the result, once the run has ended
        config.json, model.safetensors      the network with its weights, for `sortnet.load`
"""

from sortnet.lab.runs.directory import Result as Result
from sortnet.lab.runs.directory import Start as Start
from sortnet.lab.runs.directory import evaluate as evaluate
from sortnet.lab.runs.directory import events as events
from sortnet.lab.runs.directory import examine as examine
from sortnet.lab.runs.directory import find as find
from sortnet.lab.runs.directory import load as load
from sortnet.lab.runs.directory import read as read
from sortnet.lab.runs.directory import result as result
from sortnet.lab.runs.directory import rows as rows
from sortnet.lab.runs.directory import sample_images as sample_images
from sortnet.lab.runs.directory import start as start
from sortnet.lab.runs.execute import fresh as fresh
from sortnet.lab.runs.execute import train as train
from sortnet.lab.runs.record import RunRecord as RunRecord
from sortnet.lab.runs.run import Run as Run
