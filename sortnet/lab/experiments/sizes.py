"""The sizes of an experiment: seconds per run, hours, or the paper's schedule.

A shortened run differs from the paper's in more than its length; `differences` states how.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sortnet.errors import UsageError
from sortnet.lab.recipes import DEFAULTS
from sortnet.lab.runs import Run
from sortnet.lab.runs.settings import differing, flat
from sortnet.lab.training import resolve_precision

SMOKE_STEPS = {"lenet": 60, "bignet": 16, "wrn28": 24, "resnet56": 16, "resnet50": 12}
SMOKE_BATCH = {"bignet": 10, "resnet18": 10, "resnet34": 10, "resnet50": 10}
MINI_SCALES = {
    "lenet": 0.05,
    "bignet": 0.004,
    "resnet20": 0.1,
    "resnet32": 0.1,
    "resnet56": 0.1,
    "wrn28": 0.05,
}
"""Relative to the paper's schedule; networks for ImageNet have a hundredth of it."""
OWN_PRECISION = "own-precision"
"""The name of a run whose precision is what an experiment compares."""
PRECISION_SCALE = 0.1
"""The length of those runs: long enough for rounding errors to add up."""


@dataclass(frozen=True)
class Size:
    """How much of the paper's schedule is run.

    Attributes:
        name: As `sortnet reproduce --size` takes it.
        about: What it is good for.
        seeds: The default number of seeds.
        change: Turns the paper's run into one of this size.
        environment: Environment variables of the training processes.
        precision: Dtype of convolutions.
    """

    name: str
    about: str
    seeds: int
    change: Callable[[Run], Run]
    environment: Mapping[str, str]
    precision: str = "float32"

    def fit(self, run: Run, seed: int = 0) -> Run:
        """Return the paper's run at this size, with a seed."""
        precision = run.precision if run.name == OWN_PRECISION else self.precision
        fitted = replace(self.change(run), seed=seed, precision=precision)
        return replace(fitted, name="") if fitted.name == OWN_PRECISION else fitted


def _smoke(run: Run) -> Run:
    """Return a few steps on the embedded digits, with a network that fits them."""
    # AlexNet needs images of 67 pixels; BigNet has the same layout, for images of 32.
    network = "bignet" if run.network == "alexnet" else run.network
    options = {**run.options, **({"width": 1} if network == "wrn28" else {})}
    recipe = DEFAULTS[network]
    recipe = recipe.scaled(SMOKE_STEPS.get(network, 24) / recipe.steps)
    # Clipped, networks with products learn something in so few steps, and most do not diverge.
    recipe = replace(recipe, clip=recipe.clip or 1.0, area=None, jitter=False)
    recipe = replace(recipe, batch=SMOKE_BATCH.get(network, 20))
    return Run(
        network,
        recipe,
        run.fusion,
        "digits",
        options=options,
        validation=100,
        evaluations=4,
        name="smoke",
    )


def _mini(run: Run) -> Run:
    """Return the real data and a schedule for a CPU, with images held out for curves."""
    scale = MINI_SCALES.get(run.network, 0.01)
    scale = PRECISION_SCALE if run.name == OWN_PRECISION else scale
    options = {**run.options, **({"width": 2} if run.network == "wrn28" else {})}
    held = 1000 if run.data in ("cifar10", "cifar100") else 0
    if run.name == "curves":  # the same run as the tables'
        run = replace(run, evaluations=20, name="")
    elif run.validation:
        held = run.validation
    recipe = run.recipe.scaled(scale)
    return replace(run, recipe=recipe, options=options, validation=held)


SIZES = {
    size.name: size
    for size in (
        Size(
            "smoke",
            "seconds per run, on the embedded digits: shows that it runs, not how accurate it is",
            1,
            _smoke,
            {"SORTNET_KERNELS": "plain"},  # compiling kernels would take longer than the run
        ),
        Size("mini", "the real data, a shortened schedule: a night on a CPU", 3, _mini, {}),
        Size("paper", "the paper's schedule: GPUs", 3, lambda run: run, {}),
    )
}


def size(name: str, precision: str = "float32", device: str = "auto") -> Size:
    """Return a size by its name, in a precision; ``auto`` selects the device's best one.

    Raises:
        ValueError: There is none.
    """
    if name not in SIZES:
        raise UsageError(f"unknown size {name!r}; there are {', '.join(SIZES)}")
    return replace(SIZES[name], precision=resolve_precision(precision, device))


TEXTS = {
    "network": "{new} for {old}",
    "recipe.scale": "{new} of the schedule",
    "data": "{new} for {old}",
    "recipe.batch": "batch {new}",
    "recipe.clip": "gradient clipped at {new}",
    "options.width": "width {new}",
}
"""How `differences` states a changed setting. Others follow from these or change no outcome."""


def differences(run: Run, original: Run) -> list[str]:
    """Return how a run differs from the paper's.

    Example:
        >>> from sortnet.lab.experiments.definitions import EXPERIMENTS
        >>> wide = EXPERIMENTS["table2"].cells[-1].run
        >>> differences(SIZES["mini"].fit(wide), wide)
        ['0.05 of the schedule', 'width 2']
    """
    new, old = flat(run.as_json()), flat(original.as_json())
    new["recipe.scale"] = f"{run.recipe.scale:.2g}"
    old["recipe.scale"] = "1"  # a definition's own scale is a difference from the paper, too
    changed = differing([new, old])
    return [t.format(new=new[n], old=old.get(n)) for n, t in TEXTS.items() if n in changed]
