"""Commands that compare fusions: compare, and demo, which is a small comparison."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sortnet import limits
from sortnet.cli.engines import Grid, Trained, shown
from sortnet.cli.flags import Device, Model, Precision, tune
from sortnet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sortnet.lab.compare import Answer
    from sortnet.lab.recipes import Recipe
    from sortnet.lab.runs import Run


def compare(
    model: Model,
    /,
    data: str,
    fusion: tuple[str, ...] = ("sum", "sort"),
    gate: Literal["zero", "one"] | None = None,
    where: str | None = None,
    seeds: int = 3,
    until: Literal["seeds", "decided"] = "seeds",
    max_seeds: int = 10,
    recipe: str = "scratch",
    steps: int | None = None,
    epochs: float | None = None,
    optimizer: Literal["sgd", "adamw"] = "sgd",
    rate: float | None = None,
    batch: int | None = None,
    weights: Path | None = None,
    pretrained: bool = False,
    size: int | None = None,
    branched: bool = False,
    validation: int = 0,
    cost: bool = True,
    out: Path | None = None,
    root: Path = Path("data"),
    json: Path | None = None,
    precision: Precision = "auto",
    device: Device = "auto",
    threads: int | None = None,
    grid: Trained = Grid(),  # noqa: B008
) -> None:
    """Say whether a fusion helps a model on some data.

    Every variant is trained on the same seeds. The answer has an interval, the cost and a verdict.
    Running the same command again resumes a comparison that was stopped.

    $ sortnet compare torchvision:resnet18 --data path/to/images --size 64 --steps 1000
    $ sortnet compare timm:resnet10t --data path/to/images --epochs 20 --gate zero
    $ sortnet compare mypackage.models:make --data cifar10 --until decided --max-seeds 10
    $ sortnet compare resnet20-cifar10 --data cifar10 --recipe finetune --epochs 3 --seeds 5
    $ sortnet compare timm:resnet10t --data cifar10 --on slurm --gpus 1 --partition gpu

    Args:
        model: resnet20, torchvision:resnet18, timm:resnet10t, package.module:function, or a run.
        data: Name of a dataset, or path of an image folder.
        fusion: The variants; the first one is the baseline.
        gate: Multiply second-order terms by a learnable number per channel; its initial value.
        where: A pattern over the sites to fuse; default: all sites.
        seeds: Number of seeds; fewer than three decide nothing.
        until: decided adds seeds until the interval decides, up to the largest number.
        max_seeds: Largest number of seeds with --until decided.
        recipe: scratch or finetune, or a recipe of the paper.
        steps: Steps of each run; default: those of the recipe.
        epochs: Epochs of each run, instead of steps.
        optimizer: adamw uses a fiftieth of the recipe's rate, and a weight decay of 0.05.
        rate: Learning rate after the warm-up.
        batch: Images per step.
        weights: Weights to start from: a run, a safetensors file or a state dict.
        pretrained: Start from the weights that torchvision or timm offers for download.
        size: Side to which the images of a folder are resized.
        branched: The two-branch form of lenet, bignet or alexnet.
        validation: Number of training images to hold out for learning curves.
        cost: Whether to measure step time, inference time and bytes saved for backward.
        out: Directory of the comparison; default: runs/compare-DATA-MODEL.
        root: Directory of all datasets.
        json: Another file for the answer.
        precision: Dtype of convolutions; auto: bfloat16 if the hardware has it.
        device: Device to train on; auto: the accelerator if there is one.
        threads: CPU threads; default: one per core. With --on or --processes each run has one.
        grid: Where runs are trained; default: in this process, one after the other.
    """
    limits.check_given(rate=rate, batch=batch, threads=threads, steps=steps, epochs=epochs)
    limits.check_given(seeds=seeds, max_seeds=max_seeds)
    if seeds == 1:
        raise UsageError("--seeds is 1, which gives no interval; at least 3 are needed to decide")
    if json is not None and not json.parent.is_dir():
        raise UsageError(f"cannot write {json}: there is no directory {json.parent}")
    tune(threads)

    def train_all(runs: "Sequence[Run]", out: Path, root: Path) -> "Mapping[str, Any]":
        from sortnet.lab.sweep.grid import train_all

        if grid.canceled(runs, out):
            raise SystemExit(0)
        with shown() as show:
            return train_all(runs, out, root, engine=grid.engine(out), device=device, show=show)

    elsewhere = grid.on != "local" or grid.processes is not None
    answer = _compare_with_progress(
        model=model,
        data=data,
        fusions=fusion,
        seeds=max_seeds if grid.cancel else seeds,
        recipe=_recipe(recipe, optimizer, rate, batch),
        steps=steps,
        epochs=epochs,
        gate=gate,
        where=where,
        weights=weights,
        pretrained=pretrained,
        size=size,
        options={"branched": True} if branched else {},
        validation=validation,
        until_decided=until == "decided" and not grid.cancel,
        max_seeds=max_seeds,
        out=out,
        root=root,
        precision=precision,
        device=device,
        cost=cost,
        train_all=train_all if elsewhere else None,
    )
    _report(answer, json)


def _recipe(name: str, optimizer: str, rate: float | None, batch: int | None) -> "Recipe":
    from sortnet.lab.recipes import recipe

    found = recipe(name)
    if optimizer == "adamw":
        found = found.with_adamw()
    if batch is not None:
        found = replace(found, batch=batch)
    return found if rate is None else found.with_learning_rate(rate)


def _compare_with_progress(**arguments: Any) -> "Answer":  # noqa: ANN401
    """Compare, with one progress bar for all runs; in a file, with a line for each."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from sortnet.lab.compare import compare as run

    if arguments.get("train_all") is not None:  # it shows its own progress
        return run(**arguments)
    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[steps]}"),
        TimeRemainingColumn(),
    )
    on = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not on) as progress:
        bar = progress.add_task("", total=None, steps="")
        last = ""

        def show(title: str, done: int, total: int) -> None:
            nonlocal last
            steps = f"{done:,}/{total:,} steps" if total else ""
            progress.update(
                bar, description=title, completed=done, total=total or None, steps=steps
            )
            if title != last and not on:
                console.print(title, highlight=False, markup=False, soft_wrap=True)
            last = title

        return run(**arguments, show=show)


def _report(answer: "Answer", json: Path | None) -> None:
    """Print the answer, draw the curves and write the page."""
    from sortnet import files
    from sortnet.lab.compare import FILE
    from sortnet.lab.report import comparison, page

    out = Path(answer.directory)
    print(answer)
    _, picture = comparison.curves(answer, out / "curves")
    page.write([out], out / "report.html")
    if json is not None:
        files.write_json(json, answer.as_json())
    print(f"\n{out / 'report.html'}, {picture.name}, {FILE}")


def demo(out: Path = Path("runs/demo")) -> None:
    """Compare LeNet* with and without SORT on a few digits.

    Args:
        out: Directory of the runs; a second demo reuses them.
    """
    from sortnet.lab.recipes import LENET

    tune()
    answer = _compare_with_progress(  # the paper's recipe, shortened; not tuned for the outcome
        model="lenet",
        data="digits",
        recipe=replace(LENET, batch=50),
        steps=100,
        gate="zero",
        options={"branched": True},
        out=out,
    )
    _report(answer, None)
    print("100 steps on digits, with a gate from zero, show how it works, not whether SORT helps.")
    print("Your own model:")
    print("sortnet compare torchvision:resnet18 --data path/to/images")
