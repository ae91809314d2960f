"""Recipes: the learning-rate schedule, batch size, optimizer and augmentation of each network.

The paper gives sections of constant learning rate and the batch size (sections 4.1.1 and 4.2.1).
Everything else is ours, taken from the network's source if there is one; `Recipe.ours` lists it.
`SCRATCH` and `FINETUNE` are for any model.
"""

import math
from dataclasses import dataclass, fields, replace

from sortnet import limits
from sortnet.errors import UsageError

GIVEN = ("name", "sections", "batch", "scale")
"""Fields that the paper gives, or that do not concern it."""
OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True)
class Section:
    """A part of training at a constant learning rate."""

    rate: float
    steps: int

    def __post_init__(self) -> None:
        limits.check(rate=self.rate, steps=self.steps)


@dataclass(frozen=True)
class Recipe:
    """Everything about training except the network and the data.

    Attributes:
        name: Name of the recipe.
        sections: Learning rates, and for how many steps each is used.
        batch: Images per step.
        momentum: Momentum of SGD.
        nesterov: Use Nesterov momentum.
        decay: Weight decay.
        norm_decay: Weight decay of normalization layers, if different.
        pad: Padding in pixels before a random crop of the original size; 0 for no crop.
        reflect: Pad by reflection instead of zeros.
        flip: Mirror half of the images, if the dataset's classes allow it.
        jitter: Change brightness, contrast and saturation.
        area: For large images: smallest and largest fraction of the area that a crop covers.
            Without it, a crop at the original scale.
        warm_up: Steps over which the learning rate rises from zero.
        clip: Largest norm of the gradient.
        gate: Initial value of the gates of second-order terms, ``zero`` or ``one``; no gates
            without it.
        scale: Length relative to the paper's schedule.
        cosine: After the warm-up the learning rate falls to zero by half a cosine.
        optimizer: ``sgd`` or ``adamw``.

    Example:
        >>> short = RESNET.scaled(0.1)
        >>> short.steps, short.learning_rate(3199), short.learning_rate(3200)
        (6400, 0.1, 0.01)
    """

    name: str
    sections: tuple[Section, ...]
    batch: int = 100
    momentum: float = 0.9
    nesterov: bool = False
    decay: float = 5e-4
    norm_decay: float | None = None
    pad: int = 4
    reflect: bool = False
    flip: bool = True
    jitter: bool = False
    area: tuple[float, float] | None = None
    warm_up: int = 0
    clip: float | None = None
    gate: str | None = None
    scale: float = 1.0
    cosine: bool = False
    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        names = ("batch", "momentum", "decay", "pad", "warm_up", "scale")
        limits.check(**{name: getattr(self, name) for name in names})
        limits.check_given(norm_decay=self.norm_decay, clip=self.clip)
        if self.optimizer not in OPTIMIZERS:
            raise UsageError(
                f"unknown optimizer {self.optimizer!r}; there are {', '.join(OPTIMIZERS)}"
            )
        if not self.sections:
            raise UsageError(f"the recipe {self.name} has no sections")

    @property
    def steps(self) -> int:
        """Total number of steps."""
        return sum(section.steps for section in self.sections)

    @property
    def ours(self) -> dict[str, object]:
        """Values that the paper does not give."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in GIVEN}

    @property
    def length(self) -> str:
        """The length as part of a run's name: ``x0.1``, ``500steps``; empty at full length.

        Example:
            >>> LENET.length, LENET.scaled(0.1).length, LENET.with_steps(500).length
            ('', 'x0.1', '500steps')
        """
        if self.scale == 1:
            return ""
        factor = f"x{self.scale:g}"
        return factor if len(factor) <= 8 else f"{self.steps}steps"

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0; it depends on nothing else."""
        if not 0 <= step < self.steps:
            raise UsageError(f"{self.name} has steps 0 to {self.steps - 1}, not {step}")
        if self.cosine:
            return self._cosine(step)
        end = 0
        for section in self.sections:
            end += section.steps
            if step < end:
                break
        return section.rate * min(1.0, (step + 1) / self.warm_up if self.warm_up else 1.0)

    def _cosine(self, step: int) -> float:
        if step < self.warm_up:
            return self.sections[0].rate * (step + 1) / self.warm_up
        part = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.sections[0].rate * 0.5 * (1 + math.cos(math.pi * part))

    def with_learning_rate(self, rate: float) -> "Recipe":
        """Return the recipe with another initial learning rate, falling by the same factors."""
        limits.check(rate=rate)
        factor = rate / self.sections[0].rate
        sections = tuple(replace(s, rate=s.rate * factor) for s in self.sections)
        return replace(self, sections=sections)

    def scaled(self, factor: float) -> "Recipe":
        """Return the recipe with all sections scaled in length, each at least one step."""
        limits.check(scale=factor)
        if self.cosine:
            return self.with_steps(max(1, round(self.steps * factor)))
        sections = tuple(
            replace(section, steps=max(1, round(section.steps * factor)))
            for section in self.sections
        )
        return replace(self, sections=sections, scale=self.scale * factor)

    def with_steps(self, steps: int) -> "Recipe":
        """Return the recipe with exactly `steps` steps, divided as before.

        With fewer steps than sections, the last sections are dropped.
        """
        limits.check(steps=steps)
        ends = [0]
        for section in self.sections:
            ends.append(ends[-1] + section.steps)
        ends = [round(end * steps / self.steps) for end in ends]
        sections = tuple(
            replace(section, steps=end - begin)
            for section, begin, end in zip(self.sections, ends, ends[1:], strict=False)
            if end > begin
        )
        factor = steps / self.steps
        warm_up = round(self.warm_up * factor)
        return replace(self, sections=sections, warm_up=warm_up, scale=self.scale * factor)

    def with_adamw(self) -> "Recipe":
        """Return the same schedule with AdamW, at its usual learning rate and weight decay."""
        decayed = replace(self, optimizer="adamw", decay=0.05, nesterov=False)
        return decayed.with_learning_rate(self.sections[0].rate / 50)


def _sections(*rates_and_steps: tuple[float, int]) -> tuple[Section, ...]:
    return tuple(Section(rate, steps) for rate, steps in rates_and_steps)


LENET = Recipe("lenet", _sections((1e-2, 60_000), (1e-3, 5_000), (1e-4, 5_000)))

BIGNET = Recipe(
    "bignet",
    _sections((1e-1, 60_000), (1e-2, 30_000), (1e-3, 20_000), (1e-4, 10_000)),
    clip=0.1,  # no initialization was found that trains at 0.1 without it: docs/deviations.md
)

RESNET = Recipe(
    "resnet",
    _sections((1e-1, 32_000), (1e-2, 16_000), (1e-3, 16_000)),
    nesterov=True,
    decay=1e-4,
)

GATED = replace(  # without gates the first steps at 0.1 blow up the weights: docs/results.md
    RESNET, name="gated", gate="zero"
)

XU = replace(  # the implementation the paper most likely follows
    RESNET, name="xu", decay=1e-3, norm_decay=5e-4, pad=2, jitter=True
)

WRN = replace(RESNET, name="wrn", decay=5e-4, reflect=True)

ALEXNET = Recipe(
    "alexnet",
    _sections((1e-1, 100_000), (1e-2, 100_000), (1e-3, 100_000), (1e-4, 100_000), (1e-5, 50_000)),
    batch=256,
    clip=0.1,  # as for BigNet
)

BVLC = replace(  # Caffe's own rate for this network; the paper's is probably a misprint
    ALEXNET,
    name="bvlc",
    clip=None,
    sections=tuple(replace(section, rate=section.rate / 10) for section in ALEXNET.sections),
)

IMAGENET_RESNET = Recipe(
    "imagenet-resnet",
    _sections((1e-1, 150_000), (1e-2, 150_000), (1e-3, 150_000), (1e-4, 150_000)),
    batch=256,
    decay=1e-4,
    jitter=True,
    area=(0.08, 1.0),
)

SCRATCH = Recipe(  # for any model and any data: what `sortnet compare` trains with
    "scratch",
    _sections((0.05, 2_000)),
    batch=64,
    nesterov=True,
    warm_up=200,
    clip=5.0,
    cosine=True,
)

FINETUNE = replace(  # for a model that is trained: a low rate, and gates that start closed
    SCRATCH,
    name="finetune",
    sections=_sections((0.005, 1_000)),
    decay=1e-4,
    warm_up=50,
    gate="zero",
)

GENERAL = {recipe.name: recipe for recipe in (SCRATCH, FINETUNE)}
"""Recipes for any model; the paper has none of them."""

RECIPES = {
    recipe.name: recipe
    for recipe in (LENET, BIGNET, RESNET, GATED, XU, WRN, ALEXNET, BVLC, IMAGENET_RESNET)
}

DEFAULTS = {
    "lenet": LENET,
    "bignet": BIGNET,
    "alexnet": ALEXNET,
    "resnet20": RESNET,
    "resnet32": RESNET,
    "resnet56": RESNET,
    "wrn28": WRN,
    "resnet18": IMAGENET_RESNET,
    "resnet34": IMAGENET_RESNET,
    "resnet50": IMAGENET_RESNET,
}
"""Default recipe of each network."""


def recipe(name: str) -> Recipe:
    """Return a recipe by its name or its network's; ``scratch`` for models not in the paper."""
    known = GENERAL | DEFAULTS | RECIPES
    if ":" in name:
        return SCRATCH
    if name not in known:
        there = ", ".join(RECIPES | GENERAL)
        raise UsageError(f"unknown recipe {name!r}; there are {there}")
    return known[name]


def default_recipe(network: str) -> Recipe:
    """Return the default recipe of a network; ``scratch`` for models not in the paper."""
    if ":" in network:
        return SCRATCH
    if network not in DEFAULTS:
        raise UsageError(f"unknown network {network!r}; there are {', '.join(DEFAULTS)}")
    return DEFAULTS[network]
