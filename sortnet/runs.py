"""A run as data, and the directory in which it lives.

::

    runs/cifar10/resnet20-sort/seed0/
        run.json            what is trained, on what, how; the machine
        metrics.jsonl       a row for each stretch of steps and each evaluation, the same for every
                            repetition of the run
        events.jsonl        starts, stops and mishaps, with their times
        checkpoints/        where to go on
        result.json         once it has ended
        config.json, model.safetensors      the network with its weights, for `sortnet.load`
"""

import base64
import io
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sortnet import data, files, pretrained
from sortnet.data import Dataset, Split
from sortnet.data.seeds import chance
from sortnet.networks import NETWORKS, Network, build, display
from sortnet.recipes import DEFAULTS, Recipe, Section
from sortnet.training import checkpoint
from sortnet.training.distributed import World, joined
from sortnet.training.faults import Diverged
from sortnet.training.loop import Habits, Trainer, score
from sortnet.training.machine import description
from sortnet.training.scores import Scores
from sortnet.training.watch import Watcher

LARGE = ("imagenet", "caltech256")
"""The named data sets whose images are brought to the network's size."""
MISTAKES = 24
"""How many of the most confident mistakes are kept as pictures."""


@dataclass(frozen=True)
class Run:
    """What is trained, on what and how: all that decides a run's outcome.

    Attributes:
        network: Its name, as `sortnet.build` takes it.
        recipe: How it is trained.
        fusion: How its branches meet.
        data: A data set's name, or the path of an image folder.
        seed: Of weights, order, augmentation and dropout. Runs of the same seed start with the
            same weights and see the same images in the same order, whatever their fusion.
        options: What else `sortnet.build` takes.
        validation: How many training images are held out.
        evaluations: How many times they are looked at.
        preprocess: What is done to the data once, such as ``lcn``.
        init: A run or directory whose weights are the first ones.
        freeze: Patterns of the weights that are not trained, such as ``layer[12].*``.
        name: Tells this run from others that would have the same directory.

    Example:
        >>> from sortnet.recipes import RESNET
        >>> Run("resnet20", RESNET.scaled(0.1), fusion="sort", data="cifar10").id
        'cifar10/resnet20-sort-x0.1/seed0'
    """

    network: str
    recipe: Recipe
    fusion: str = "sum"
    data: str = "digits"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    validation: int = 0
    evaluations: int = 20
    preprocess: str | None = None
    init: str | None = None
    freeze: tuple[str, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise ValueError(f"unknown network {self.network!r}; there are {', '.join(NETWORKS)}")
        if self.name and not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"name {self.name!r} must be of letters, digits, '-', '_' and '.'")

    @property
    def title(self) -> str:
        """The network's name as the paper prints it."""
        return display(self.network, self.fusion, branched=bool(self.options.get("branched")))

    @property
    def id(self) -> str:
        """Its directory, below that of all runs."""
        options = [
            key if value is True else f"{key}{value}"
            for key, value in sorted(self.options.items())
            if value is not False and value is not None
        ]
        fusion = [] if self.fusion == "sum" else [self.fusion]
        usual = DEFAULTS[self.network].name == self.recipe.name
        recipe = [] if usual else [self.recipe.name]
        scale = [] if self.recipe.scale == 1 else [f"x{self.recipe.scale:g}"]
        name = [self.name] if self.name else []
        parts = [self.network, *options, *fusion, *recipe, *scale, *name]
        return f"{Path(self.data).name}/{'-'.join(parts)}/seed{self.seed}"

    def as_json(self) -> dict[str, Any]:
        """As what JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Run":
        """What `as_json` gave, also after it has been a file."""
        recipe = dict(_known(Recipe, value.get("recipe", {})))
        recipe["sections"] = tuple(Section(**section) for section in recipe["sections"])
        if recipe.get("area") is not None:
            recipe["area"] = tuple(recipe["area"])
        rest = dict(_known(cls, value))
        return cls(**{**rest, "recipe": Recipe(**recipe), "freeze": tuple(rest.get("freeze", ()))})

    def load(self, root: str | Path) -> Dataset:
        """The data, for which networks of large images have a say in the images' size."""
        size = self.options.get("size")
        if size is None and (self.data in LARGE or self.data not in data.DATASETS):
            size = NETWORKS[self.network].size
        return data.load(
            self.data, root, size=size, validation=self.validation, preprocess=self.preprocess
        )

    def build(self, dataset: Dataset) -> Network:
        """The network with its first weights, which depend on the seed alone."""
        with torch.random.fork_rng():
            torch.manual_seed(chance(self.seed, "weights"))
            options = {"size": dataset.size, **self.options}
            network = build(self.network, len(dataset.classes), self.fusion, **options)
        if self.init is not None:
            pretrained.fit(network, first_weights(self.init), loose=True)
        for name, parameter in network.named_parameters():
            if any(fnmatch(name, pattern) for pattern in self.freeze):
                parameter.requires_grad_(False)
        for pattern in self.freeze:
            if not any(fnmatch(name, pattern) for name, _ in network.named_parameters()):
                raise ValueError(f"--freeze {pattern} fits none of the network's weights")
        return network


def _known(cls: type, value: Mapping[str, Any]) -> Mapping[str, Any]:
    names = {f.name for f in fields(cls)}
    if unknown := sorted(set(value) - names):
        raise ValueError(f"a {cls.__name__.lower()} has no entry {unknown[0]!r}")
    return value


def first_weights(source: str) -> dict[str, Tensor]:
    """Weights to start from: of a run, of a directory with a network, or of a safetensors file."""
    path = Path(source)
    if path.is_file():
        return pretrained.weights(path.read_bytes(), path)
    network, _ = load(path)
    return dict(network.state_dict())


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        directory: Where it is.
        run: What it was.
        ended: ``finished`` or ``diverged``.
        steps: How many steps were taken.
        seconds: How long they took, without evaluation.
        test: ``error`` and ``error5`` in per cent, ``loss``, ``images``; empty if it diverged.
        confusion: How many images of each class were taken for which, for 100 classes at most.
        where: Where it diverged.
    """

    directory: Path
    run: Run
    ended: str
    steps: int
    seconds: float
    test: Mapping[str, float]
    confusion: list[list[int]] | None = None
    where: str | None = None

    @property
    def error(self) -> float:
        """The top-1 test error in per cent; NaN if it diverged."""
        return self.test.get("error", float("nan"))


def read(directory: str | Path) -> Run:
    """The run of a directory."""
    path = Path(directory) / "run.json"
    if not path.is_file():
        raise ValueError(f"{directory} is not a run: there is no run.json")
    try:
        return Run.from_json(files.read_json(path)["run"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} does not describe a run: {error}") from None


def result(directory: str | Path) -> Result | None:
    """The result of a run; nothing if it has not ended."""
    path = Path(directory) / "result.json"
    if not path.is_file():
        return None
    stored = files.read_json(path)
    try:
        return Result(Path(directory), read(directory), **stored)
    except TypeError as error:
        raise ValueError(f"{path} does not hold a result: {error}") from None


def rows(directory: str | Path) -> list[dict[str, Any]]:
    """A run's metrics; a last line that a killed process left unfinished is passed over."""
    return _lines(Path(directory) / "metrics.jsonl")


def events(directory: str | Path) -> list[dict[str, Any]]:
    """A run's starts, stops and mishaps."""
    return _lines(Path(directory) / "events.jsonl")


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1].splitlines()
    try:  # as one array, which is twice as fast as line by line
        lines: list[dict[str, Any]] = json.loads(f"[{','.join(whole)}]")
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not a file of JSON lines: {error}") from None
    return lines


def find(*directories: str | Path) -> list[Path]:
    """All runs in and below the directories, in order of their names."""
    found = {path.parent for root in directories for path in Path(root).rglob("run.json")}
    return sorted(found)


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
    directory = Path(out) / run.id
    with joined() as world, ExitStack() as stack:
        if world.writes:
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
            run.build(dataset),
            dataset,
            run.recipe,
            seed=run.seed,
            directory=directory,
            evaluations=run.evaluations,
            title=run.title,
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
        config = _config(trainer.directory, trained)
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


def load(directory: str | Path) -> tuple[Network, pretrained.Config]:
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
        raise ValueError(f"{directory} has no intact checkpoint yet")
    config = _config(directory, {"steps": found.step})
    network = config.build()
    pretrained.fit(network, found.tensors("model"))
    return network.eval(), config


def _config(directory: Path, trained: Mapping[str, Any]) -> pretrained.Config:
    """What a run's network is, from its run.json."""
    stored = files.read_json(directory / "run.json")
    run, about = read(directory), stored["data"]
    return pretrained.Config(
        run.network,
        tuple(about["classes"]),
        run.fusion,
        {"size": about["size"], **run.options},
        about["size"],
        tuple(about["mean"]),
        tuple(about["std"]),
        {**trained, "run": stored["run"], "machine": stored["machine"]},
        run.preprocess or ("lcn" if run.data == "svhn" else None),
    )


def evaluate(
    directory: str | Path,
    root: str | Path = "data",
    *,
    data: str | None = None,
    split: str = "test",
) -> tuple[str, Scores]:
    """A network's title, and its scores on a split of the data it was trained on, or of others.

    Arguments:
        directory: Of a run, or of a saved network that says on what it was trained.
        root: The directory of all data.
        data: Other data, with the same classes.
        split: ``train``, ``validation`` or ``test``.
    """
    network, config = load(directory)
    if "run" not in config.trained:
        raise ValueError(f"{directory} does not say on what its network was trained")
    run = Run.from_json(config.trained["run"])
    dataset = (replace(run, data=data) if data else run).load(root)
    if len(dataset.classes) != len(config.classes):
        raise ValueError(
            f"{dataset.name} has {len(dataset.classes)} classes, and the network of {directory}"
            f" tells {len(config.classes)} apart"
        )
    images = getattr(dataset, split)
    if images is None:
        raise ValueError(f"{directory} was trained without a validation split")
    return f"{config.title} on {dataset.name}", score(network, dataset, images)


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
    lines += [f"intact: checkpoint of step {found.step:,}" for found in intact]
    lines.append(f"{len(rows(directory)):,} rows of metrics")
    mishaps = [e for e in events(directory) if e["event"] in ("nonfinite", "rollback", "damaged")]
    lines += [f"mishap: {_told(event)}" for event in mishaps]
    ended = result(directory)
    if ended is not None and ended.ended == "finished":
        lines.append(f"finished: test error {ended.error:.2f} %; it will not be trained again")
    elif ended is not None:
        lines.append(f"diverged at step {ended.steps:,}, in {ended.where}")
    else:
        start = intact[0].step if intact else 0
        lines.append(f"would go on at step {start:,} of {steps:,}")
    return lines


def _told(event: Mapping[str, Any]) -> str:
    details = [f"{key} {value}" for key, value in event.items() if key not in ("time", "event")]
    return f"{event['event']}, {', '.join(details)}"
