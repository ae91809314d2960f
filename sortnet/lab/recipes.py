"""How each network of the paper is trained: its sections of constant learning rate, and the rest.

The paper gives the sections and the batch (sections 4.1.1 and 4.2.1). Everything else in a recipe
is ours, taken from the source of the network where there is one, and `Recipe.ours` lists it.
`SCRATCH` and `FINETUNE` are for any model.
"""

import math
from dataclasses import dataclass, fields, replace

from sortnet import limits
from sortnet.errors import UsageError

GIVEN = ("name", "sections", "batch", "scale")
"""What of a recipe the paper says, or is none of its business."""
OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True)
class Section:
    """A stretch of training at a constant learning rate."""

    rate: float
    steps: int

    def __post_init__(self) -> None:
        limits.check(rate=self.rate, steps=self.steps)


@dataclass(frozen=True)
class Recipe:
    """Everything about training but the network and the data.

    Attributes:
        name: What it is called.
        sections: Learning rates and how long they last, in steps.
        batch: Images in a step.
        momentum: Of SGD.
        nesterov: Whether the momentum is Nesterov's.
        decay: Weight decay.
        norm_decay: Weight decay of batch normalisation's parameters, where it differs.
        pad: By how many pixels images are padded before a crop of the original size; 0: no crop.
        reflect: Whether the padding mirrors the image, and is not zero.
        flip: Whether images are mirrored half of the time, where the data's classes allow it.
        jitter: Whether brightness, contrast and saturation are changed.
        area: Of large images: the least and the largest part of one that a crop shows; a crop of
            the original scale without it.
        warm_up: Over how many steps the learning rate rises from zero.
        clip: The largest norm of the gradient.
        gate: The first value of the gates that second-order terms are given; none without it.
        scale: How long this is, relative to the paper's schedule.
        cosine: Whether the rate falls from the first section's to zero by half a cosine, after the
            warm-up, and is not constant in each section.
        optimizer: ``sgd``, or ``adamw``, which uses neither momentum nor Nesterov's.

    Example:
        >>> short = RESNET.scaled(0.1)
        >>> short.steps, short.rate(3199), short.rate(3200)
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
            raise UsageError(f"the recipe {self.name} has no sections: there is nothing to learn")

    @property
    def steps(self) -> int:
        """How many steps there are in all."""
        return sum(section.steps for section in self.sections)

    @property
    def ours(self) -> dict[str, object]:
        """The values that the paper does not give."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in GIVEN}

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0: a function of the step alone."""
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

    def rated(self, rate: float) -> "Recipe":
        """The same sections from another first learning rate, falling by the same factors."""
        limits.check(rate=rate)
        factor = rate / self.sections[0].rate
        sections = tuple(replace(s, rate=s.rate * factor) for s in self.sections)
        return replace(self, sections=sections)

    def scaled(self, factor: float) -> "Recipe":
        """The same sections, shorter or longer, each of at least one step."""
        limits.check(scale=factor)
        if self.cosine:
            return self.lasting(max(1, round(self.steps * factor)))
        sections = tuple(
            replace(section, steps=max(1, round(section.steps * factor)))
            for section in self.sections
        )
        return replace(self, sections=sections, scale=self.scale * factor)

    def lasting(self, steps: int) -> "Recipe":
        """The same schedule over so many steps; sections and warm-up keep their shares.

        Example:
            >>> short = RESNET.lasting(10)
            >>> [section.steps for section in short.sections]
            [5, 2, 3]
        """
        limits.check(steps=steps)
        if steps < len(self.sections):
            raise UsageError(f"{self.name} has {len(self.sections)} sections: --steps {steps}")
        factor = steps / self.steps
        lengths = [max(1, int(section.steps * factor)) for section in self.sections[:-1]]
        lengths.append(steps - sum(lengths))
        sections = tuple(replace(s, steps=n) for s, n in zip(self.sections, lengths, strict=True))
        warm_up = round(self.warm_up * factor)
        return replace(self, sections=sections, warm_up=warm_up, scale=self.scale * factor)

    def by_adamw(self) -> "Recipe":
        """The same schedule with AdamW, whose usual rate and weight decay are others."""
        decayed = replace(self, optimizer="adamw", decay=0.05, nesterov=False)
        return decayed.rated(self.sections[0].rate / 50)


def _sections(*rates_and_steps: tuple[float, int]) -> tuple[Section, ...]:
    return tuple(Section(rate, steps) for rate, steps in rates_and_steps)


LENET = Recipe("lenet", _sections((1e-2, 60_000), (1e-3, 5_000), (1e-4, 5_000)))

BIGNET = Recipe(
    "bignet",
    _sections((1e-1, 60_000), (1e-2, 30_000), (1e-3, 20_000), (1e-4, 10_000)),
    clip=0.1,  # no initialisation was found that trains at 0.1 without: docs/deviations.md
)

RESNET = Recipe(
    "resnet",
    _sections((1e-1, 32_000), (1e-2, 16_000), (1e-3, 16_000)),
    nesterov=True,
    decay=1e-4,
)

GATED = replace(  # without a gate SORT's first steps at 0.1 blow up the weights: docs/results.md
    RESNET, name="gated", gate="zero"
)

XU = replace(  # the implementation that the paper most likely follows
    RESNET, name="xu", decay=1e-3, norm_decay=5e-4, pad=2, jitter=True
)

WRN = replace(RESNET, name="wrn", decay=5e-4, reflect=True)

ALEXNET = Recipe(
    "alexnet",
    _sections((1e-1, 100_000), (1e-2, 100_000), (1e-3, 100_000), (1e-4, 100_000), (1e-5, 50_000)),
    batch=256,
    clip=0.1,  # as for BigNet
)

BVLC = replace(  # Caffe's own rate for this network: the paper's is probably a misprint
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
"""The recipe of each network."""


def recipe(name: str) -> Recipe:
    """A recipe by its own name or its network's; that of a model of another library is scratch."""
    known = GENERAL | DEFAULTS | RECIPES
    if ":" in name:
        return SCRATCH
    if name not in known:
        there = ", ".join(RECIPES | GENERAL)
        raise UsageError(f"unknown recipe {name!r}; there are {there}")
    return known[name]
