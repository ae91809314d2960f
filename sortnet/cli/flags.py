"""Flags that several commands share: the model, its training, and the run's files and device."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from sortnet import limits
from sortnet.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from sortnet.lab.recipes import Recipe
    from sortnet.lab.runs import Start
    from sortnet.pretrained import Config


Precision = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda", "mps", "xpu"]


@dataclass(frozen=True)
class Choice:
    """The model: the arguments of `sortnet.modelspec.create` as flags."""

    network: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """resnet20, torchvision:resnet18, timm:resnet10t, package.module:function, or a run: its
    network and weights, but not its fusion, gate and image size."""
    fusion: str = "sum"
    """Terms joined by + (sum max prod root square), or sort, the paper's choice."""
    num_classes: int | None = None
    """Number of classes; by default as in the paper."""
    branched: bool = False
    """The two-branch form of lenet, bignet or alexnet."""
    norm: bool = False
    """Batch normalization in lenet, bignet or alexnet."""
    style: Literal["he", "xu"] | None = None
    """Style of resnet20, resnet32 or resnet56."""
    width: int | None = None
    """Width of wrn28."""
    gate: Literal["zero", "one"] | None = None
    """Multiply the second-order term by a learnable number per channel; its initial value."""
    head: str | None = None
    """Head that replaces the network's own: average, bilinear or compact."""
    size: int | None = None
    """Side of the images."""
    where: str | None = None
    """A pattern over the sites to fuse; by default all sites."""
    weights: str | None = None
    """Weights to start from: a run, a safetensors file or a state dict."""
    pretrained: bool = False
    """Start from the weights that torchvision or timm offers for download."""

    def __post_init__(self) -> None:
        limits.check_given(num_classes=self.num_classes, width=self.width, size=self.size)

    def start(self) -> "Start":
        """Return the model's name, options and initial weights; a run has its own weights."""
        from sortnet.lab import runs

        return runs.start(self.network, self.weights)

    def options(self) -> dict[str, Any]:
        """Return further arguments of `sortnet.modelspec.create`."""
        asked: dict[str, Any] = {"branched": self.branched or None, "norm": self.norm or None}
        asked |= {"style": self.style, "width": self.width, "gate": self.gate}
        asked |= {"head": self.head, "size": self.size, "where": self.where}
        asked |= {"pretrained": self.pretrained or None}
        given = {name: value for name, value in asked.items() if value is not None}
        return {**self.start().options, **given}

    def build(self, fusion: str | None = None) -> "nn.Module":
        """Create the model; a given fusion replaces its own and has no gate."""
        from sortnet import modelspec, pretrained
        from sortnet.lab.runs.execute import first_weights

        options, start = self.options(), self.start()
        if fusion is not None:
            options.pop("gate", None)
        network = modelspec.create(
            start.network, self.num_classes, fusion=fusion or self.fusion, **options
        )
        if start.weights is not None:
            pretrained.fit(network, first_weights(start.weights), loose=True)
        return network

    def with_config(self) -> "tuple[nn.Module, Config]":
        """Create the model in evaluation mode, and its configuration; classes are numbered."""
        import torch

        from sortnet import modelspec
        from sortnet.pretrained import Config

        spec, network = self.start().network, self.build().eval()
        size = self.size or modelspec.image_size(spec)
        with torch.no_grad():
            count = network(torch.zeros(1, 3, size, size)).shape[-1]
        names = tuple(str(i) for i in range(count))
        mean, std = modelspec.normalization(spec)
        return network, Config(spec, names, self.fusion, self.options(), size, mean, std)


@dataclass(frozen=True)
class Schedule:
    """A recipe, and changes to it."""

    recipe: str | None = None
    """lenet, bignet, resnet, gated, xu, wrn, alexnet, bvlc, imagenet-resnet, scratch or finetune;
    by default the network's own."""
    scale: float = 1.0
    """Length of training relative to the paper's schedule: 0.1 is a tenth of it."""
    steps: int | None = None
    """Length of training in steps."""
    epochs: float | None = None
    """Length of training in epochs."""
    rate: float | None = None
    """Initial learning rate; later ones keep their ratio to it."""
    batch: int | None = None
    """Images per step, over all processes."""
    decay: float | None = None
    """Weight decay."""
    warm_up: int | None = None
    """Steps over which the learning rate rises from zero."""
    clip: float | None = None
    """Largest norm of the gradient."""
    precision: Precision = "auto"
    """Dtype of convolutions; auto: bfloat16 if the hardware has it, else float32."""

    def __post_init__(self) -> None:
        limits.check_given(steps=self.steps, epochs=self.epochs)
        if (self.scale != 1) + (self.steps is not None) + (self.epochs is not None) > 1:
            raise UsageError("--scale, --steps and --epochs exclude each other: give one of them")

    def build(self, network: str) -> "Recipe":
        """Return the recipe; `for_epochs` applies ``--epochs`` once the data are known."""
        from sortnet.lab.recipes import default_recipe, recipe

        base = recipe(self.recipe) if self.recipe else default_recipe(network)
        given: dict[str, Any] = {"batch": self.batch, "decay": self.decay}
        given |= {"warm_up": self.warm_up, "clip": self.clip}
        base = replace(base, **{name: v for name, v in given.items() if v is not None})
        if self.rate is not None:
            base = base.with_learning_rate(self.rate)
        if self.steps is not None:
            return base.with_steps(self.steps)
        return base if self.scale == 1 else base.scaled(self.scale)

    def for_epochs(self, recipe: "Recipe", images: int) -> "Recipe":
        """Return the recipe with the length that ``--epochs`` gives on so many images."""
        assert self.epochs is not None
        return recipe.with_steps(max(1, round(self.epochs * images / recipe.batch)))


@dataclass(frozen=True)
class Keeping:
    """Directories, checkpoints and device of a run."""

    out: Path = Path("runs")
    """Directory of all runs."""
    root: Path = Path("data")
    """Directory of all datasets."""
    save_every: int | None = None
    """Steps between checkpoints."""
    keep: int = 2
    """Number of recent checkpoints to keep, besides the best one."""
    on_nonfinite: Literal["stop", "rollback"] = "stop"
    """What to do when loss or gradient become NaN or Inf."""
    allow_mismatch: bool = False
    """Resume even if threads, versions, processes or data have changed."""
    resume_from: int | None = None
    """Resume from the checkpoint of this step; newer ones are set aside."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the network; auto: on a GPU, for long runs."""
    device: Device = "auto"
    """Device to train on; auto: the accelerator if there is one, else the CPU."""
    threads: int | None = None
    """CPU threads; by default one per core."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard."""


Chosen = Annotated[Choice, tyro.conf.arg(name="")]
Scheduled = Annotated[Schedule, tyro.conf.arg(name="")]
Kept = Annotated[Keeping, tyro.conf.arg(name="")]
Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
Directory = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


def tune(threads: int | None = None) -> None:
    """Set the process up for speed.

    Arguments:
        threads: Number of CPU threads; by default one per core.
    """
    import torch

    from sortnet.lab.training import tune as tune_process

    tune_process()
    if threads is not None:
        limits.check(threads=threads)
        torch.set_num_threads(threads)
