"""A run as data: network, dataset, recipe, seed and everything else that determines its result."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePath
from typing import Any

from sortnet import limits, modelspec
from sortnet.errors import UsageError, user_input
from sortnet.fusion import SECOND_ORDER, parse
from sortnet.lab import data
from sortnet.lab.data import Dataset
from sortnet.lab.recipes import DEFAULTS, Recipe, Section
from sortnet.lab.training.hardware import PRECISIONS

LARGE = ("imagenet", "caltech256")
"""Named datasets whose images are resized to the network's size."""


@dataclass(frozen=True)
class Run:
    """A training run: everything that determines its result.

    Attributes:
        network: Name of the model, as passed to `sortnet.modelspec.create`.
        recipe: How it is trained.
        fusion: How its branches are fused.
        data: Name of a dataset, or path of an image folder.
        seed: Seed of weights, image order, augmentation and dropout. Runs with the same seed start
            from the same weights and see the same images in the same order, with any fusion.
        options: Further arguments of `sortnet.modelspec.create`.
        validation: Number of training images to hold out.
        evaluations: Number of evaluations on the held-out images.
        preprocess: Preprocessing of the data, such as ``lcn``.
        init: Weights to start from: a run, a saved network or a file.
        freeze: Patterns of the weights that are not trained, such as ``layer[12].*``.
        precision: Dtype of convolutions: ``float32``, ``bfloat16`` or ``float16``.
        name: Suffix that distinguishes this run from others with the same directory.

    Example:
        >>> from sortnet.lab.recipes import RESNET
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
    precision: str = "float32"
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", data.resolve(self.data))
        limits.check(seed=self.seed, validation=self.validation, evaluations=self.evaluations)
        limits.check_options(self.options)
        modelspec.check(self.network)
        if self.name and not re.fullmatch(r"[\w.-]+", self.name):
            raise UsageError(f"name {self.name!r} must be of letters, digits, '-', '_' and '.'")
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"unknown precision {self.precision!r} of a run; there are {', '.join(PRECISIONS)}"
            )
        self._check_id()

    @property
    def title(self) -> str:
        """The name of the model; networks of the paper as printed in the paper."""
        return modelspec.title(
            self.network, self.fusion, branched=bool(self.options.get("branched"))
        )

    @property
    def id(self) -> str:
        """Its directory, relative to that of all runs."""
        options = [
            key if value is True else f"{key}{_safe(value) if key == 'where' else value}"
            for key, value in sorted(self.options.items())
            if value is not False and value is not None
        ]
        fusion = [] if self.fusion == "sum" else [self.fusion]
        usual = DEFAULTS.get(self.network)
        recipe = [] if usual is not None and usual.name == self.recipe.name else [self.recipe.name]
        scale = [self.recipe.length] if self.recipe.length else []
        precision = [] if self.precision == "float32" else [self.precision]
        name = [self.name] if self.name else []
        network = self.network.replace(":", "-")
        parts = [network, *options, *fusion, *recipe, *scale, *precision, *name]
        return f"{self._data_name}/{'-'.join(parts)}/seed{self.seed}"

    @property
    def _data_name(self) -> str:
        """Name of the dataset, or of its folder."""
        return Path(self.data).name

    def _check_id(self) -> None:
        """Refuse a run whose directory would be outside of the directory of all runs."""
        with user_input():
            parse(self.fusion)
        if not self._data_name:
            raise UsageError(f"--data {self.data}: put the images into a folder with a name")
        if len(PurePath(self.id).parts) != 3 or ".." in PurePath(self.id).parts:
            raise UsageError(f"{self.id!r} cannot be a run's directory: a name in it has a slash")
        if "\0" in self.id:
            raise UsageError(f"{self.id!r} cannot be a run's directory")

    def built(self, size: int) -> dict[str, Any]:
        """Return the arguments of `modelspec.create` except network, classes and fusion."""
        gate = self.recipe.gate if set(parse(self.fusion)) & set(SECOND_ORDER) else None
        return {"size": size, **({"gate": gate} if gate else {}), **self.options}

    def as_json(self) -> dict[str, Any]:
        """Return the run as JSON."""
        return asdict(self)

    def configuration(self) -> dict[str, Any]:
        """Return the settings that a checkpoint of this run must have.

        These are all of `as_json` except the name, which only selects a directory, and the path of
        the data, which may change: the fingerprint of the data is compared instead.
        """
        plain: dict[str, Any] = json.loads(json.dumps(self.as_json()))
        return {key: value for key, value in plain.items() if key not in ("name", "data")}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Run":
        """Return the run that `as_json` described.

        Raises:
            UsageError: It does not describe a run.
        """
        try:
            return cls._of(value)
        except (KeyError, TypeError, AttributeError) as error:
            reason = f"there is no {error}" if isinstance(error, KeyError) else error
            raise UsageError(f"it is not a run: {reason}") from None

    @classmethod
    def _of(cls, value: Mapping[str, Any]) -> "Run":
        recipe = dict(_known(Recipe, value.get("recipe", {})))
        recipe["sections"] = tuple(Section(**section) for section in recipe["sections"])
        if recipe.get("area") is not None:
            recipe["area"] = tuple(recipe["area"])
        rest = dict(_known(cls, value))
        return cls(**{**rest, "recipe": Recipe(**recipe), "freeze": tuple(rest.get("freeze", ()))})

    def load(self, root: str | Path) -> Dataset:
        """Load the dataset; image folders are resized to the network's size."""
        size = self.options.get("size")
        if size is None and (self.data in LARGE or self.data not in data.DATASETS):
            size = modelspec.image_size(self.network)
        return data.load(
            self.data, root, size=size, validation=self.validation, preprocess=self.preprocess
        )


def _safe(pattern: str) -> str:
    """Return a pattern as part of a directory's name."""
    return re.sub(r"[^\w.-]+", "_", pattern)


def _known(cls: type, value: Mapping[str, Any]) -> Mapping[str, Any]:
    names = {f.name for f in fields(cls)}
    if unknown := sorted(set(value) - names):
        raise UsageError(f"a {cls.__name__.lower()} has no entry {unknown[0]!r}")
    return value
