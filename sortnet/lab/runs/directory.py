"""What a run's directory holds: readers that never change it."""

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
"""What JSON of another shape than expected raises."""


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        directory: Where it is.
        run: What it was.
        ended: ``finished`` or ``diverged``.
        steps: How many steps were taken.
        seconds: How long they took, without evaluation.
        test: ``error`` in percent, ``error5`` if there are more than five classes, ``loss``,
            ``images``; empty if it diverged.
        confusion: How many images of each class were taken for which, for 100 classes at most.
        where: Where it diverged.
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
        """The top-1 test error in per cent; NaN if it diverged."""
        return self.test.get("error", float("nan"))


def read(directory: str | Path) -> Run:
    """The run of a directory."""
    path = Path(directory) / "run.json"
    if not path.is_file():
        raise UsageError(f"{directory} is not a run: there is no run.json")
    return _described(path)[0]


def _described(path: Path) -> tuple[Run, dict[str, Any]]:
    """The run of a run.json, and all that the file says."""
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
    """The result of a run; nothing if it has not ended."""
    path = Path(directory) / "result.json"
    if not path.is_file():
        return None
    stored = files.read_sealed(path)
    try:
        return Result(Path(directory), read(directory), **stored)
    except TypeError as error:
        raise UsageError(f"{path} does not hold a result: {error}") from None


def rows(directory: str | Path) -> list[dict[str, Any]]:
    """A run's metrics; a last line that a killed process left unfinished is passed over."""
    return records.read(Path(directory) / "metrics.jsonl")


def events(directory: str | Path) -> list[dict[str, Any]]:
    """A run's starts, stops and mishaps."""
    return records.read(Path(directory) / "events.jsonl")


def find(*directories: str | Path) -> list[Path]:
    """All runs in and below the directories, in order of their names."""
    found = {path.parent for root in directories for path in Path(root).rglob("run.json")}
    return sorted(found)


def load(directory: str | Path) -> tuple[nn.Module, pretrained.Config]:
    """The network of a directory: of a run, at its end or as far as it is, or a saved one.

    Arguments:
        directory: Of a run, or written by `sortnet.pretrained.save`, or the name of a network that
            comes with the package, such as ``resnet20-sort-cifar10``.
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
    """A model to train: its name, its options, and its first weights.

    Attributes:
        network: As `sortnet.modelspec.create` takes it.
        options: What else it takes; neither the fusion nor its gate.
        weights: A run, a saved network or a file whose weights are the first ones.
    """

    network: str
    options: Mapping[str, Any]
    weights: str | None


def start(model: str, weights: str | Path | None = None) -> Start:
    """Resolve a model's name; of a run or a saved network, its model and its weights.

    Arguments:
        model: A name as in `sortnet.modelspec`, the directory of a run or of a saved network, or
            the name of a network that comes with the package.
        weights: Weights to start from, in place of the directory's own.
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
    """What a run's network is, from its run.json."""
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
    """A network's title, and its scores on a split of the data it was trained on, or of others.

    Arguments:
        directory: Of a run, or of a saved network that says on what it was trained.
        root: The directory of all data.
        data: Other data, with the same classes.
        split: ``train``, ``validation`` or ``test``.
        device: Where the network runs, one of `sortnet.lab.training.DEVICES`.
    """
    machine = Machine.here("off", device=device)
    network, config = load(directory)
    if "run" not in config.trained:
        raise UsageError(f"{directory} does not say on what its network was trained")
    run = Run.from_json(config.trained["run"])
    dataset = (replace(run, data=data) if data else run).load(root)
    if len(dataset.classes) != len(config.classes):
        raise UsageError(
            f"{dataset.name} has {len(dataset.classes)} classes, and the network of {directory}"
            f" tells {len(config.classes)} apart"
        )
    images = getattr(dataset, split)
    if images is None:
        raise UsageError(f"{directory} was trained without a validation split")
    return f"{config.title} on {dataset.name}", evaluation.evaluate(
        network, dataset, images, machine
    )


def examine(directory: str | Path) -> list[str]:
    """What of a run is intact and where it would go on, in lines for a person to read."""
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
    for look in (_rows_told, _mishaps, lambda path: _outcome(path, start, steps)):
        try:
            lines += look(directory)
        except ValueError as error:
            lines.append(f"damaged: {error}")
    return lines


def _set_aside(directory: Path) -> list[Path]:
    places = (directory, directory / "checkpoints")
    labels = ("damaged", "superseded")
    return sorted(path for place in places for x in labels for path in place.glob(f"{x}-*"))


def _rows_told(directory: Path) -> list[str]:
    return [f"{len(rows(directory)):,} rows of metrics"]


def _mishaps(directory: Path) -> list[str]:
    names = ("nonfinite", "rollback", "damaged")
    found = [event for event in events(directory) if event.get("event") in names]
    return [f"mishap: {_told(event)}" for event in found]


def _outcome(directory: Path, start: int, steps: int) -> list[str]:
    ended = result(directory)
    if ended is None:
        return [f"would go on at step {start:,} of {steps:,}"]
    if ended.ended == "finished":
        return [f"finished: test error {ended.error:.2f} %; it will not be trained again"]
    return [
        f"diverged at step {ended.steps:,}, in {ended.where}; with --on-nonfinite rollback it"
        f" would go on at step {start:,} of {steps:,}"
    ]


def _told(event: Mapping[str, Any]) -> str:
    details = [f"{key} {value}" for key, value in event.items() if key not in ("time", "event")]
    return f"{event['event']}, {', '.join(details)}"


def sample_images(config: pretrained.Config, root: str | Path, count: int) -> Tensor | None:
    """Return test images of the data set a network was trained on; None if it is not there."""
    try:
        dataset = Run.from_json(config.trained["run"]).load(root)
        return next(data.eval_batches(dataset, dataset.test, batch=count, workers=0)).images
    except (KeyError, OSError, ValueError, StopIteration):
        return None
