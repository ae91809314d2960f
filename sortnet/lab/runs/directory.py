"""Readers of a run's directory, which never change it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sortnet import files, modelspec, pretrained
from sortnet.errors import UsageError
from sortnet.lab import data
from sortnet.lab.runs.run import Run
from sortnet.lab.training import checkpoint, evaluation
from sortnet.lab.training import jsonl as records
from sortnet.lab.training.evaluation import Scores
from sortnet.lab.training.hardware import Machine

WRONG = (UsageError, KeyError, TypeError, AttributeError)
"""Errors raised by JSON of an unexpected form."""


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        directory: Directory of the run.
        run: The run.
        ended: ``finished`` or ``diverged``.
        steps: Steps taken.
        seconds: Training time without evaluation.
        test: ``error`` in percent, ``error5`` if there are more than five classes, ``loss``,
            ``images``; empty if it diverged.
        confusion: Confusion matrix, for at most 100 classes: a row per class, a column per
            prediction.
        where: The module in which it diverged.
        options: Trainer options with which it diverged; with others it can resume.
    """

    directory: Path
    run: Run
    ended: str
    steps: int
    seconds: float
    test: Mapping[str, float]
    confusion: list[list[int]] | None = None
    where: str | None = None
    options: Mapping[str, Any] | None = None

    @property
    def error(self) -> float:
        """The top-1 test error in percent; NaN if it diverged."""
        return self.test.get("error", float("nan"))


def read(directory: str | Path) -> Run:
    """Return the run of a directory."""
    path = Path(directory) / "run.json"
    if not path.is_file():
        raise UsageError(f"{directory} is not a run: there is no run.json")
    return _described(path)[0]


def _described(path: Path) -> tuple[Run, dict[str, Any]]:
    """Return the run of a run.json, and the whole content of the file."""
    stored = files.read_sealed(path)
    if unknown := sorted(stored.keys() - {"run", "machine", "data"}):
        raise UsageError(f"{path} has the unknown entry {unknown[0]!r}")
    try:
        return Run.from_json(stored["run"]), stored
    except WRONG as error:
        raise UsageError(f"{path} does not describe a run: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    missing = f"there is no {error}" if isinstance(error, KeyError) else str(error)
    return missing or type(error).__name__


def result(directory: str | Path) -> Result | None:
    """Return the result of a run; None if it has not ended."""
    path = Path(directory) / "result.json"
    if not path.is_file():
        return None
    stored = files.read_sealed(path)
    try:
        return Result(Path(directory), read(directory), **stored)
    except TypeError as error:
        raise UsageError(f"{path} does not hold a result: {error}") from None


def rows(directory: str | Path) -> list[dict[str, Any]]:
    """Return the metrics of a run; a last line left unfinished by a killed process is skipped."""
    return records.read(Path(directory) / "metrics.jsonl")


def events(directory: str | Path) -> list[dict[str, Any]]:
    """Return the starts, stops and failures of a run."""
    return records.read(Path(directory) / "events.jsonl")


def find(*directories: str | Path) -> list[Path]:
    """Return all runs in and below the directories, in order of their names."""
    found = {path.parent for root in directories for path in Path(root).rglob("run.json")}
    return sorted(found)


def load(directory: str | Path) -> tuple[nn.Module, pretrained.Config]:
    """Load the network of a finished or unfinished run, or a saved network.

    Arguments:
        directory: Directory of a run, or written by `sortnet.pretrained.save`, or the name of a
            network that comes with the package, such as ``resnet20-sort-cifar10``.
    """
    directory = pretrained.place(directory)
    if (directory / pretrained.CONFIG).is_file() or not (directory / "run.json").is_file():
        return pretrained.load(directory)
    found, _ = checkpoint.latest(directory / "checkpoints")
    if found is None:
        raise UsageError(f"{directory} has no intact checkpoint yet")
    config = network_config(directory, {"steps": found.step})
    network = config.create_model()
    pretrained.fit(network, found.tensors("model"))
    return network.eval(), config


@dataclass(frozen=True)
class Start:
    """A model to train: its name, its options, and its initial weights.

    Attributes:
        network: Name of the model, as passed to `sortnet.modelspec.create`.
        options: Its further arguments, except the fusion and its gate.
        weights: Weights to start from: a run, a saved network or a file.
    """

    network: str
    options: Mapping[str, Any]
    weights: str | None


def start(model: str, weights: str | Path | None = None) -> Start:
    """Resolve a model's name; a run or a saved network gives its model and its weights.

    Arguments:
        model: A name as in `sortnet.modelspec`, the directory of a run or of a saved network, or
            the name of a network that comes with the package.
        weights: Weights to start from, instead of the directory's own.
    """
    directory = pretrained.place(model)
    given = None if weights is None else str(weights)
    if (directory / pretrained.CONFIG).is_file():
        config = pretrained.read_config(directory)
    elif (directory / "run.json").is_file():
        config = network_config(directory, {})
    elif directory.is_dir() and "/" in model:
        raise UsageError(f"{model} holds no network: there is no {pretrained.CONFIG}")
    else:
        modelspec.check(model)
        return Start(model, {}, given)
    options = {k: v for k, v in config.options.items() if k not in ("gate", "size", "where")}
    return Start(config.network, options, given or model)


def network_config(directory: Path, trained: Mapping[str, Any]) -> pretrained.Config:
    """Return the configuration of a run's network, from its run.json."""
    run, stored = _described(directory / "run.json")
    try:
        about = stored["data"]
        return pretrained.Config(
            run.network,
            tuple(about["classes"]),
            run.fusion,
            {k: v for k, v in run.built(about["size"]).items() if k != "pretrained"},
            about["size"],
            tuple(about["mean"]),
            tuple(about["std"]),
            {**trained, "run": stored["run"], "machine": stored["machine"]},
            run.preprocess or ("lcn" if run.data == "svhn" else None),
        )
    except WRONG as error:
        message = f"{directory / 'run.json'} does not describe its data: {_reason(error)}"
        raise UsageError(message) from None


def evaluate(
    directory: str | Path,
    root: str | Path = "data",
    *,
    data: str | None = None,
    split: str = "test",
    device: str = "auto",
) -> tuple[str, Scores]:
    """Return a network's title, and its scores on a split of its own or another dataset.

    Arguments:
        directory: Directory of a run, or of a saved network that names its training data.
        root: Directory of all datasets.
        data: Another dataset with the same classes.
        split: ``train``, ``validation`` or ``test``.
        device: Device of the network, one of `sortnet.lab.training.DEVICES`.
    """
    machine = Machine.here("off", device=device)
    network, config = load(directory)
    if "run" not in config.trained:
        raise UsageError(f"{directory} does not name the data its network was trained on")
    run = Run.from_json(config.trained["run"])
    dataset = (replace(run, data=data) if data else run).load(root)
    if len(dataset.classes) != len(config.classes):
        raise UsageError(
            f"{dataset.name} has {len(dataset.classes)} classes, but the network of {directory}"
            f" has {len(config.classes)}"
        )
    images = getattr(dataset, split)
    if images is None:
        raise UsageError(f"{directory} was trained without a validation split")
    return f"{config.title} on {dataset.name}", evaluation.evaluate(
        network, dataset, images, machine
    )


def examine(directory: str | Path) -> list[str]:
    """Return lines that say what of a run is intact and where it would resume."""
    directory = Path(directory)
    run = read(directory)
    steps = run.recipe.steps
    lines = [f"{directory}: {run.title} on {run.data}, {steps:,} steps, seed {run.seed}"]
    holder = files.holder(directory / "lock")
    lines.append(f"in use by process {holder}" if holder else "not in use")
    intact, damaged = checkpoint.survey(directory / "checkpoints")
    lines += [f"damaged: {error}" for error in damaged]
    lines += [f"set aside: {path.relative_to(directory)}" for path in _set_aside(directory)]
    lines += [f"intact: checkpoint of step {found.step:,}" for found in intact]
    start = intact[0].step if intact else 0
    for look in (_metrics, _failures, lambda path: _outcome(path, start, steps)):
        try:
            lines += look(directory)
        except ValueError as error:
            lines.append(f"damaged: {error}")
    return lines


def _set_aside(directory: Path) -> list[Path]:
    places = (directory, directory / "checkpoints")
    labels = ("damaged", "superseded")
    return sorted(path for place in places for x in labels for path in place.glob(f"{x}-*"))


def _metrics(directory: Path) -> list[str]:
    count = len(rows(directory))
    return [f"{count:,} row{'s' * (count != 1)} of metrics"]


def _failures(directory: Path) -> list[str]:
    names = ("nonfinite", "rollback", "damaged")
    found = [event for event in events(directory) if event.get("event") in names]
    return [f"failure: {_describe(event)}" for event in found]


def _outcome(directory: Path, start: int, steps: int) -> list[str]:
    ended = result(directory)
    if ended is None:
        return [f"would resume at step {start:,} of {steps:,}"]
    if ended.ended == "finished":
        return [f"finished: test error {ended.error:.2f} %; it will not be trained again"]
    return [
        f"diverged at step {ended.steps:,}, in {ended.where}; with --on-nonfinite rollback it"
        f" would resume at step {start:,} of {steps:,}"
    ]


def _describe(event: Mapping[str, Any]) -> str:
    details = [f"{key} {value}" for key, value in event.items() if key not in ("time", "event")]
    return f"{event['event']}, {', '.join(details)}"


def sample_images(config: pretrained.Config, root: str | Path, count: int) -> Tensor | None:
    """Return test images of the dataset a network was trained on; None if it is missing."""
    try:
        dataset = Run.from_json(config.trained["run"]).load(root)
        return next(data.eval_batches(dataset, dataset.test, batch=count, workers=0)).images
    except (KeyError, OSError, ValueError, StopIteration):
        return None
