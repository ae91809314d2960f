"""Run directories as `sortnet.train` writes them, with made-up numbers."""

import base64
import io
import json
import math
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from sortnet.lab.recipes import RESNET, Recipe
from sortnet.lab.runs import Run

CLASSES = ["aeroplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "lorry"]


def make(
    root: Path,
    run: Run,
    *,
    every: int = 100,
    level: float = 8.0,
    ended: str | None = "finished",
    classes: Sequence[str] = CLASSES,
    pictures: int = 8,
    part: float = 1.0,
) -> Path:
    """Write a run directory with made-up numbers.

    Arguments:
        root: Directory of all runs.
        run: The run.
        every: Steps between rows of metrics.
        level: Final error.
        ended: ``finished``, ``diverged``, or None for a run that has not ended.
        classes: Names of the classes.
        pictures: Number of mistakes with images.
        part: Fraction of the steps that are done.
    """
    directory = root / run.id
    directory.mkdir(parents=True)
    chance = random.Random(f"{run.id}")
    images = {"train": 45000, "validation": 5000, "test": 10000}
    machine = {"processor": "Test", "threads": 2, "torch": "2.15"}
    data = {"fingerprint": "f00d", "classes": list(classes), "images": images}
    write_json(directory / "run.json", {"run": run.as_json(), "machine": machine, "data": data})
    steps = int(run.recipe.steps * part)
    rows = _rows(chance, run.recipe, steps, every, level)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    events: list[dict[str, Any]] = [
        {"time": 1.79e9 + 3000 * run.seed, "event": "start", "step": 0, "process": 1}
    ]
    if ended == "finished":
        events.append({"time": events[0]["time"] + 2500, "event": "finish", "step": steps})
        _finish(chance, directory, steps, level, classes, pictures)
    elif ended == "diverged":
        result = {"ended": ended, "steps": steps, "seconds": 9.5, "test": {}, "where": "layer1.0"}
        write_json(directory / "result.json", result)
    (directory / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    return directory


def _rows(
    chance: random.Random, recipe: Recipe, steps: int, every: int, level: float
) -> Iterator[dict[str, Any]]:
    for step in range(every, steps + 1, every):
        rate = recipe.learning_rate(step - 1)
        error = level + 60 * math.exp(-8 * step / recipe.steps) + 40 * rate + chance.gauss(0, 0.8)
        yield {
            "step": step,
            "split": "train",
            "loss": error / 30 + chance.gauss(0, 0.02),
            "error": error,
            "rate": rate,
            "gradient": 1 + abs(chance.gauss(0, 0.3)),
        }
        if step % (every * max(1, steps // every // 20)) == 0:
            worse = error + 2 + chance.gauss(0, 0.3)
            yield {"step": step, "split": "validation", "loss": worse / 25, "error": worse}


def _finish(
    chance: random.Random,
    directory: Path,
    steps: int,
    level: float,
    classes: Sequence[str],
    pictures: int,
) -> None:
    n = len(classes)
    confusion = [
        [900 if i == j else int(chance.expovariate(0.1)) for j in range(n)] for i in range(n)
    ]
    test = {
        "error": level + chance.gauss(0, 0.1),
        "error5": 0.4,
        "loss": 0.3,
        "images": 10000,
    }
    result = {"ended": "finished", "steps": steps, "seconds": 2400.5, "test": test}
    write_json(directory / "result.json", result | {"confusion": confusion})
    mistakes = [
        {
            "image": chance.randrange(10000),
            "label": i % n,
            "taken_for": (i + 1) % n,
            "probability": 0.99 - 0.01 * i,
            "png": base64.b64encode(_picture(i)).decode(),
        }
        for i in range(pictures)
    ]
    write_json(directory / "mistakes.json", mistakes)


@cache
def _picture(number: int) -> bytes:
    """Return an image of noise, which compresses least."""
    picture = Image.frombytes("RGB", (32, 32), random.Random(number).randbytes(3 * 32 * 32))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2))


def resnet(fusion: str, seed: int, scale: float = 0.1, network: str = "resnet20") -> Run:
    recipe = RESNET.scaled(scale)
    return Run(network, recipe, fusion, "cifar10", seed, validation=5000)
