"""Train a run in its directory, from its initial weights to its result."""

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sortnet import files, modelspec, pretrained
from sortnet.errors import UsageError
from sortnet.lab.data import Dataset, Split
from sortnet.lab.data.seeds import derive_seed
from sortnet.lab.runs.directory import Result, load, network_config, read, result
from sortnet.lab.runs.run import Run
from sortnet.lab.training.callbacks import Callback
from sortnet.lab.training.distributed import Distributed, init_distributed
from sortnet.lab.training.environment import brief_difference
from sortnet.lab.training.evaluation import Scores
from sortnet.lab.training.failures import Diverged
from sortnet.lab.training.hardware import description
from sortnet.lab.training.loop import Trainer
from sortnet.lab.training.options import TrainerOptions
from sortnet.patterns import matches

MISTAKES = 24
"""Number of the most confident mistakes that are kept as images."""


def fresh(run: Run, dataset: Dataset, make: Callable[[], nn.Module] | None = None) -> nn.Module:
    """Create a run's network with its initial weights, which depend only on the seed.

    Arguments:
        run: The run.
        dataset: Its dataset, for the number of classes and the image size.
        make: Creates the network, instead of `sortnet.modelspec.create`.
    """
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(run.seed, "weights"))
        network = make() if make is not None else _created(run, dataset)
    if run.init is not None:
        pretrained.fit(network, first_weights(run.init), loose=True)
    if make is not None or modelspec.is_foreign(run.network):
        check_head(network, run.network, dataset)
    _freeze(network, run.freeze)
    return network


def _created(run: Run, dataset: Dataset) -> nn.Module:
    options = run.built(dataset.size)
    return modelspec.create(run.network, len(dataset.classes), fusion=run.fusion, **options)


def _freeze(network: nn.Module, patterns: Sequence[str]) -> None:
    for name, parameter in network.named_parameters():
        if any(matches(pattern, name) for pattern in patterns):
            parameter.requires_grad_(False)
    for pattern in patterns:
        if not any(matches(pattern, name) for name, _ in network.named_parameters()):
            raise UsageError(f"--freeze {pattern} matches none of the network's weights")


def check_head(network: nn.Module, name: str, dataset: Dataset) -> None:
    """Refuse a model that does not return one logit per class of the dataset."""
    images = torch.zeros(2, 3, dataset.size, dataset.size)
    was_training = network.training
    try:
        with torch.no_grad():
            output = network.eval()(images)
    except Exception as error:  # a model may raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"{name} cannot be run on images of {dataset.size} px: {reason}"
        ) from error
    finally:
        network.train(was_training)
    classes = len(dataset.classes)
    if not isinstance(output, Tensor):
        raise UsageError(f"{name} returns a {type(output).__name__}, not a tensor of logits")
    if tuple(output.shape) != (2, classes):
        raise UsageError(
            f"{name} returns {tuple(output.shape)} for 2 images, but {dataset.name} has {classes}"
            f" classes: it should return (2, {classes}); let the function take num_classes"
        )


def first_weights(source: str) -> dict[str, Tensor]:
    """Read weights to start from: those of a run, a saved network or a file."""
    path = Path(source)
    if path.is_file():
        return pretrained.read_weights(path)
    network, _ = load(path)
    return dict(network.state_dict())


def train(
    run: Run,
    out: str | Path = "runs",
    root: str | Path = "data",
    *,
    options: TrainerOptions | None = None,
    callbacks: Sequence[Callback] = (),
    make: Callable[[], nn.Module] | None = None,
    dataset: Dataset | None = None,
) -> Result:
    """Train a run, resume it, or, if it has ended, return its result.

    A run that diverged resumes from its last checkpoint if it is started with other options than
    those it diverged with, such as ``rollback``. Nothing but a lock is written before the first
    step is taken.

    Arguments:
        run: The run.
        out: Directory of all runs.
        root: Directory of all datasets.
        options: Checkpoints, resuming, compilation and device.
        callbacks: Called at each event.
        make: Creates the network, if its name is not enough.
        dataset: The dataset, if it is already read or has no name.

    Raises:
        Diverged: Loss or gradient were not finite; the result says so, too.
        Interrupted: A signal was received; a checkpoint is saved.
    """
    directory, options = Path(out) / run.id, options or TrainerOptions()
    with init_distributed(options.device) as distributed, ExitStack() as stack:
        known = distributed.on_main(lambda: _known(run, directory, options))
        if known is not None:
            return Result(directory, run, **known)
        dataset = run.load(root) if dataset is None else dataset
        _ = dataset.fingerprint  # can take minutes: before any process waits for another
        trainer = Trainer(
            fresh(run, dataset, make),
            dataset,
            run.recipe,
            seed=run.seed,
            directory=directory,
            evaluations=run.evaluations,
            title=run.title,
            precision=run.precision,
            options=options,
            distributed=distributed,
            callbacks=callbacks,
            configuration=run.configuration(),
            on_first_step=partial(_claim, run, directory, dataset),
        )
        known = distributed.on_main(lambda: _enter(run, trainer, stack))
        if known is not None:  # another process has trained it in the meantime
            return Result(directory, run, **known)
        try:
            trainer.train()
        except Diverged as error:
            _finish(distributed, directory, _diverged(trainer, error))
            raise
        stored = _tested(trainer)
        _finish(distributed, directory, stored)
        trainer.log.event("finish", trainer.state.step)
        return Result(directory, run, **stored)


def _known(run: Run, directory: Path, options: TrainerOptions) -> dict[str, Any] | None:
    """Return the stored result of a run for which there is nothing left to do.

    Raises:
        ValueError: There is another run in the directory, or this one cannot be resumed.
    """
    _same(run, directory)
    try:
        ended = result(directory)
    except ValueError:  # damaged: `_enter` sets it aside
        return None
    if ended is None or (ended.ended == "diverged" and _other_options(ended, options)):
        return None
    if options.resume_from is not None:
        raise UsageError(
            f"{directory} has {ended.ended}; to train it again from step {options.resume_from},"
            " remove its result.json"
        )
    stored: dict[str, Any] = files.read_sealed(directory / "result.json")
    return stored


def _other_options(ended: Result, options: TrainerOptions) -> bool:
    """Return True if a run is started with other options than those it diverged with."""
    before = (
        asdict(TrainerOptions()) | {"device": options.device}
        if ended.options is None
        else ended.options
    )
    return dict(before) != asdict(options)


def _enter(run: Run, trainer: Trainer, stack: ExitStack) -> dict[str, Any] | None:
    """Lock the directory, remove leftovers of killed processes, and return `_known`."""
    directory = trainer.directory
    directory.mkdir(parents=True, exist_ok=True)
    stack.enter_context(files.locked(directory / "lock", f"training {directory}"))
    files.remove_leftovers(directory)
    _set_aside_damaged(trainer)
    return _known(run, directory, trainer.options)


def _set_aside_damaged(trainer: Trainer) -> None:
    """Set aside a damaged result, so that a new one can be written."""
    try:
        result(trainer.directory)
    except ValueError as error:
        aside = files.set_aside(trainer.directory / "result.json")
        trainer.log.repair_events()
        trainer.log.damage(f"{error}; it is computed again, the old one is {aside.name}", 0)


def _same(run: Run, directory: Path) -> None:
    """Refuse a directory that belongs to another run."""
    if not (directory / "run.json").is_file():
        return
    there, here = (json.loads(json.dumps(r.as_json())) for r in (read(directory), run))
    for name, value in here.items():
        if there[name] != value:
            raise UsageError(
                f"{directory} is another run: its {name} is"
                f" {brief_difference(there[name], value)};"
                " give this run its own directory with --name"
            )


def _claim(run: Run, directory: Path, dataset: Dataset) -> None:
    """Claim a directory for this run: write run.json, and remove an earlier result."""
    if not (directory / "run.json").is_file():
        _describe(run, directory, dataset)
    (directory / "result.json").unlink(missing_ok=True)


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
    files.write_sealed(directory / "run.json", content)


def _tested(trainer: Trainer) -> dict[str, Any]:
    """Evaluate on the test images, once."""
    dataset, state = trainer.dataset, trainer.state
    scores = trainer.evaluate(dataset.test)
    trainer.log.row(scores.row(state.step, "test"))
    few = len(dataset.classes) <= 100
    stored = {
        "ended": "finished",
        "steps": state.step,
        "seconds": state.seconds,
        "test": {
            **scores.errors(),
            "loss": scores.loss,
            "images": scores.images,
        },
        "confusion": scores.confusion.tolist() if few else None,
    }
    if trainer.distributed.is_main:
        trained = {"test": stored["test"], "steps": state.step}
        config = network_config(trainer.directory, trained)
        pretrained.save(trainer.network, config, trainer.directory)
        if trainer.distributed.size == 1:
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
        "options": asdict(trainer.options),
    }


def _finish(distributed: Distributed, directory: Path, stored: Mapping[str, Any]) -> None:
    if distributed.is_main:
        files.write_sealed(directory / "result.json", stored)
    distributed.barrier()


def _mistakes(split: Split, scores: Scores) -> list[dict[str, Any]]:
    """Return the most confident mistakes, with their images as PNG."""
    chosen, sure = torch.cat(scores.predictions), torch.cat(scores.confidences)
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
