"""The plan of a comparison: model, dataset, variants, and how each of them is trained."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sortnet import files, limits, modelspec
from sortnet.errors import UsageError, user_input
from sortnet.fusion import SECOND_ORDER, parse
from sortnet.lab import runs
from sortnet.lab.data.dataset import Dataset
from sortnet.lab.data.torch_datasets import from_torch
from sortnet.lab.recipes import Recipe
from sortnet.lab.recipes import recipe as find_recipe
from sortnet.lab.runs import Run
from sortnet.lab.training import resolve_precision

Make = Callable[..., nn.Module]


@dataclass(frozen=True)
class Variant:
    """One of the variants that are compared.

    Attributes:
        label: Its name; unique.
        fusion: How branches are fused.
        options: Further arguments of the model.
        name: Name of its runs, if a fusion occurs twice.
    """

    label: str
    fusion: str
    options: Mapping[str, Any]
    name: str


@dataclass(frozen=True)
class ComparisonPlan:
    """Everything that determines a comparison except the number of seeds.

    Attributes:
        variants: The baseline first.
        first: The baseline's run with seed 0; other runs differ only in variant and seed.
        function: Creates the model, if its name is not enough.
        dataset: The data.
        out: Directory of the comparison.
        root: Directory of all datasets.
        device: Device of the networks.
    """

    variants: tuple[Variant, ...]
    first: Run
    function: Make | None
    dataset: Dataset
    is_named: bool
    out: Path
    root: Path
    device: str

    @property
    def recipe(self) -> Recipe:
        """The recipe of every variant."""
        return self.first.recipe

    def run(self, variant: Variant, seed: int) -> Run:
        """Return the run of a variant and a seed."""
        name = "-".join(part for part in (self.first.name, variant.name) if part)
        return replace(
            self.first, fusion=variant.fusion, options=variant.options, seed=seed, name=name
        )

    def make(self, run: Run) -> Callable[[], nn.Module] | None:
        """Return a function that creates a run's model, if the caller passed one."""
        if self.function is None:
            return None
        function, built = self.function, run.built(self.dataset.size)
        asked = {"num_classes": len(self.dataset.classes), "in_chans": 3}

        def make() -> nn.Module:
            model = modelspec.call(function, run.network, asked)
            example = torch.zeros(1, 3, self.dataset.size, self.dataset.size)
            gate, where = built.get("gate"), built.get("where")
            return modelspec.fused(model, run.fusion, gate, where, example)

        return make

    def build(self, variant: Variant) -> nn.Module:
        """Create a variant with the initial weights of seed 0."""
        run = self.run(variant, 0)
        return runs.fresh(run, self.dataset, self.make(run))

    def check_starts(self) -> None:
        """Create every variant once, to find errors before training starts.

        Raises:
            UsageError: A variant cannot be created, or does not start from the baseline's weights.
        """
        base = self.build(self.variants[0]).state_dict()
        for variant in self.variants[1:]:
            own = self.build(variant).state_dict()
            for name in base.keys() & own.keys():
                if not torch.equal(base[name], own[name]):
                    raise UsageError(
                        f"{self.first.network} starts from other weights each time ({name}), even"
                        " after torch.manual_seed: variants cannot be compared"
                    )


def plan(
    model: str | Make,
    data: Any,  # noqa: ANN401
    fusions: Sequence[str],
    *,
    recipe: str | Recipe,
    steps: int | None,
    epochs: float | None,
    gate: str | None,
    where: str | None,
    weights: str | Path | None,
    pretrained: bool,
    size: int | None,
    options: Mapping[str, Any],
    validation: int,
    out: str | Path | None,
    root: str | Path,
    precision: str,
    device: str,
) -> ComparisonPlan:
    """Resolve names, read the data and list the variants; see `compare` for the arguments."""
    function = None if isinstance(model, str) or _importable(model) else model
    start = runs.start(model if isinstance(model, str) else _spec(model), weights)
    shared = {**start.options, **options}
    shared |= {"size": size} if size is not None else {}
    shared |= {"pretrained": True} if pretrained else {}
    variants = _variants(fusions, shared, gate, where)
    base = find_recipe(recipe) if isinstance(recipe, str) else recipe
    is_named = isinstance(data, str | Path)
    first = Run(
        start.network,
        base,
        variants[0].fusion,
        str(data) if is_named else "own",
        options=variants[0].options,
        validation=validation,
        evaluations=5,
        init=start.weights,
        precision=resolve_precision(precision, device),
    )
    dataset = first.load(root) if is_named else _own_data(data, validation)
    named = first.data if is_named else dataset.name
    first = replace(first, data=named, recipe=_lasting(base, steps, epochs, dataset))
    if modelspec.is_function(start.network):
        made = function or modelspec.function(start.network)
        first = replace(first, name=_digest(made, start.network, len(dataset.classes)))
    place = f"runs/compare-{Path(dataset.name).name}-{first.id.split('/')[1]}"
    return ComparisonPlan(
        variants, first, function, dataset, is_named, Path(out or place), Path(root), device
    )


def _variants(
    fusions: Sequence[str], options: Mapping[str, Any], gate: str | None, where: str | None
) -> tuple[Variant, ...]:
    if isinstance(fusions, str) or len(fusions) < 2:
        raise UsageError("a comparison needs two fusions or more: --fusion sum sort")
    found: list[Variant] = []
    for fusion in fusions:
        with user_input():
            second = set(parse(fusion)) & set(SECOND_ORDER)
        own = dict(options)
        own |= {"gate": gate} if gate is not None and second else {}
        own |= {"where": where} if where is not None and fusion != "sum" else {}
        count = 1 + sum(other.fusion == fusion for other in found)
        again = "" if count == 1 else str(count)
        found.append(Variant(fusion + (f" ({again})" if again else ""), fusion, own, again))
    return tuple(found)


def _lasting(recipe: Recipe, steps: int | None, epochs: float | None, dataset: Dataset) -> Recipe:
    if steps is not None and epochs is not None:
        raise UsageError("--steps and --epochs exclude each other; give one of them")
    if epochs is not None:
        limits.check(epochs=epochs)
        steps = max(1, math.ceil(epochs * len(dataset.train) / recipe.batch))
    return recipe if steps is None else recipe.with_steps(steps)


def _own_data(data: Any, validation: int) -> Dataset:  # noqa: ANN401
    """Convert a pair of PyTorch datasets to a `Dataset`."""
    if isinstance(data, Dataset):
        return data
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise UsageError(
            f"data is a {type(data).__name__}: give a name, a folder, or a pair of PyTorch"
            " datasets (train, test)"
        )
    if validation:
        raise UsageError("validation images cannot be held out of a pair of datasets")
    return from_torch(*data)


# Functions passed by the caller


def _importable(function: Make) -> str | None:
    """Return the name under which a function can be imported; None if there is none."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    spec = f"{module}:{name}"
    if module == "__main__" or not modelspec.PATTERN.fullmatch(spec):
        return None
    try:
        return spec if modelspec.function(spec) is function else None
    except UsageError:
        return None


def _spec(function: Make) -> str:
    """Return a function's name as ``module:function``; a local one cannot be imported by it."""
    if isinstance(function, nn.Module) or not callable(function):
        raise UsageError(
            f"the model is a {type(function).__name__}: give a name, or a function that returns a"
            " new model"
        )
    module = getattr(function, "__module__", None) or "local"
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return _importable(function) or ":".join(
        re.sub(r"[^\w.]+", "", part) or "model" for part in (module, name)
    )


def _digest(function: Make, name: str, classes: int) -> str:
    """Return a digest that changes when the function does, to separate their runs.

    Raises:
        UsageError: The function returns other weights each time, so that no run could be resumed.
    """
    marks = []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = modelspec.call(function, name, {"num_classes": classes})
        weights = model.state_dict()
        parts = [repr(model), *(f"{n} {x.flatten()[:64].tolist()}" for n, x in weights.items())]
        content = re.sub(r"0x[0-9a-f]+", "", "\n".join(parts))  # an address in memory
        marks.append(files.digest(content.encode())[:8])
    if marks[0] != marks[1]:
        raise UsageError(
            f"{name} starts from other weights each time, even after torch.manual_seed: variants"
            " cannot be compared"
        )
    return marks[0]
