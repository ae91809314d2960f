"""A run from its first weights to its result, in its directory."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sortnet import files, pretrained
from sortnet.data import Dataset, Split
from sortnet.data.seeds import chance
from sortnet.networks import Network, build
from sortnet.runs.directory import Result, load, network_config, read, result
from sortnet.runs.run import Run
from sortnet.training.distributed import World, joined
from sortnet.training.faults import Diverged
from sortnet.training.loop import Habits, Trainer
from sortnet.training.machine import description
from sortnet.training.scores import Scores
from sortnet.training.watch import Watcher

MISTAKES = 24
"""How many of the most confident mistakes are kept as pictures."""


def fresh(run: Run, dataset: Dataset) -> Network:
    """The network with its first weights, which depend on the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(chance(run.seed, "weights"))
        options = run.built(dataset.size)
        network = build(run.network, len(dataset.classes), run.fusion, **options)
    if run.init is not None:
        pretrained.fit(network, first_weights(run.init), loose=True)
    for name, parameter in network.named_parameters():
        if any(fnmatch(name, pattern) for pattern in run.freeze):
            parameter.requires_grad_(False)
    for pattern in run.freeze:
        if not any(fnmatch(name, pattern) for name, _ in network.named_parameters()):
            raise ValueError(f"--freeze {pattern} fits none of the network's weights")
    return network


def first_weights(source: str) -> dict[str, Tensor]:
    """Weights to start from: of a run, of a directory with a network, or of a safetensors file."""
    path = Path(source)
    if path.is_file():
        return pretrained.weights(path.read_bytes(), path)
    network, _ = load(path)
    return dict(network.state_dict())


def train(
    run: Run,
    out: str | Path = "runs",
    root: str | Path = "data",
    *,
    habits: Habits | None = None,
    watchers: Sequence[Watcher] = (),
) -> Result:
    """Train a run, or go on with it, or, if it has ended, say what came of it.

    Arguments:
        run: What is trained, on what and how.
        out: The directory of all runs.
        root: The directory of all data.
        habits: How it is kept.
        watchers: Who is told.

    Raises:
        Diverged: Loss or gradient were not finite; the result says so, too.
        Interrupted: A signal came; what was learnt is saved.
    """
    directory, habits = Path(out) / run.id, habits or Habits()
    with joined(habits.device) as world, ExitStack() as stack:
        if world.writes and result(directory) is None:  # what has ended may be read-only
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(files.locked(directory / "lock", f"training {directory}"))
        _same(run, directory)
        if (ended := result(directory)) is not None:
            return ended
        dataset = run.load(root)
        if world.writes and not (directory / "run.json").is_file():
            _describe(run, directory, dataset)
        world.wait()
        trainer = Trainer(
            fresh(run, dataset),
            dataset,
            run.recipe,
            seed=run.seed,
            directory=directory,
            evaluations=run.evaluations,
            title=run.title,
            precision=run.precision,
            habits=habits,
            world=world,
            watchers=watchers,
        )
        try:
            trainer.train()
        except Diverged as error:
            _finish(world, directory, _diverged(trainer, error))
            raise
        stored = _tested(trainer)
        _finish(world, directory, stored)
        trainer.event("finish")
        return Result(directory, run, **stored)


def _same(run: Run, directory: Path) -> None:
    """Refuse a directory in which there is another run."""
    if not (directory / "run.json").is_file():
        return
    there, here = (json.loads(json.dumps(r.as_json())) for r in (read(directory), run))
    for name, value in here.items():
        if there[name] != value:
            raise ValueError(
                f"{directory} is another run: its {name} is {_brief(there[name], value)};"
                " --name gives this one a directory of its own"
            )


def _describe(run: Run, directory: Path, dataset: Dataset) -> None:
    """Write run.json."""
    splits = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
    content = {
        "run": run.as_json(),
        "machine": description(),
        "data": {
            "fingerprint": dataset.fingerprint,
            "classes": list(dataset.classes),
            "size": dataset.size,
            "mean": list(dataset.mean),
            "std": list(dataset.std),
            "images": {name: len(split) for name, split in splits.items() if split is not None},
        },
    }
    files.write_json(directory / "run.json", content)


def _brief(there: object, here: object) -> str:
    """Two differing values; of two recipes only what differs in them."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in there:
            if there[name] != here.get(name):
                return f"{name} {_brief(there[name], here.get(name))}"
    return f"{there}, not {here}"


def _tested(trainer: Trainer) -> dict[str, Any]:
    """Use the test images, once."""
    dataset, state = trainer.dataset, trainer.state
    scores = trainer.evaluate(dataset.test)
    trainer.append(scores.row(state.step, "test"))
    few = len(dataset.classes) <= 100
    stored = {
        "ended": "finished",
        "steps": state.step,
        "seconds": state.seconds,
        "test": {
            "error": scores.error,
            "error5": scores.error5,
            "loss": scores.loss,
            "images": scores.images,
        },
        "confusion": scores.confusion.tolist() if few else None,
    }
    if trainer.world.writes:
        trained = {"test": stored["test"], "steps": state.step}
        config = network_config(trainer.directory, trained)
        pretrained.save(trainer.network, config, trainer.directory)
        if trainer.world.size == 1:
            shown = _mistakes(dataset.test, scores)
            files.write_json(trainer.directory / "mistakes.json", shown)
    return stored


def _diverged(trainer: Trainer, error: Diverged) -> dict[str, Any]:
    return {
        "ended": "diverged",
        "steps": error.step,
        "seconds": trainer.state.seconds,
        "test": {},
        "where": error.where,
    }


def _finish(world: World, directory: Path, stored: Mapping[str, Any]) -> None:
    if world.writes:
        files.write_json(directory / "result.json", stored)
    world.wait()


def _mistakes(split: Split, scores: Scores) -> list[dict[str, Any]]:
    """The most confident mistakes, with their pictures as PNG."""
    chosen, sure = torch.cat(scores.chosen), torch.cat(scores.sure)
    wrong = (chosen != split.labels).nonzero().flatten()
    worst = wrong[sure[wrong].argsort(descending=True)][:MISTAKES].tolist()
    return [
        {
            "image": i,
            "label": int(split.labels[i]),
            "taken_for": int(chosen[i]),
            "probability": float(sure[i]),
            "png": base64.b64encode(_png(split.picture(i))).decode(),
        }
        for i in worst
    ]


def _png(picture: Tensor) -> bytes:
    from PIL import Image

    image = Image.fromarray(picture.permute(1, 2, 0).numpy())
    image.thumbnail((96, 96))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
