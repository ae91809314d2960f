"""The command line: the only file that knows tyro.

Commands import what they need when they run, so that ``sortnet --help`` answers at once.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from sortnet import __version__

if TYPE_CHECKING:
    from sortnet.networks import Network
    from sortnet.recipes import Recipe
    from sortnet.training import Watcher


@dataclass(frozen=True)
class Choice:
    """Which network: what `sortnet.build` takes, as flags."""

    network: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NETWORK")]
    """Its name, as in `sortnet list`."""
    fusion: str = "sum"
    """Terms joined by + (sum max prod root square), or sort, the paper's choice."""
    classes: int | None = None
    """How many classes; as many as in the paper without it."""
    branched: bool = False
    """The two-branch form of lenet, bignet or alexnet."""
    norm: bool = False
    """Batch normalisation in lenet, bignet or alexnet."""
    style: Literal["he", "xu"] | None = None
    """Of resnet20, resnet32 or resnet56."""
    width: int | None = None
    """Of wrn28."""
    gate: Literal["zero", "one"] | None = None
    """Weight the second-order term by a learnable number per channel, from zero or one."""
    head: str | None = None
    """average, bilinear or compact, in place of the network's own."""
    size: int | None = None
    """The images' side."""

    def options(self) -> dict[str, Any]:
        """What else `sortnet.build` is to be given: what was asked for."""
        asked: dict[str, Any] = {"branched": self.branched or None, "norm": self.norm or None}
        asked |= {"style": self.style, "width": self.width, "gate": self.gate}
        asked |= {"head": self.head, "size": self.size}
        return {name: value for name, value in asked.items() if value is not None}

    def build(self, fusion: str | None = None) -> "Network":
        """Build it, if asked for with another fusion and then without a gate."""
        from sortnet.networks import build

        options = self.options()
        if fusion is not None:
            options.pop("gate", None)
        return build(self.network, self.classes, fusion or self.fusion, **options)


@dataclass(frozen=True)
class Schedule:
    """How it is trained: a recipe, and what is to be different from it."""

    recipe: str | None = None
    """lenet, bignet, resnet, xu, wrn, alexnet, bvlc or imagenet-resnet; the network's own
    without it."""
    scale: float = 1.0
    """How long, relative to the paper's schedule: 0.1 is a tenth of each section."""
    rate: float | None = None
    """The first section's learning rate; the others keep their ratio to it."""
    batch: int | None = None
    """Images in a step, over all processes."""
    decay: float | None = None
    """Weight decay."""
    warm_up: int | None = None
    """Steps over which the learning rate rises from zero."""
    clip: float | None = None
    """The largest norm of the gradient."""

    def build(self, network: str) -> "Recipe":
        """The recipe that is asked for."""
        from sortnet.recipes import recipe

        base = recipe(self.recipe or network)
        given: dict[str, Any] = {"batch": self.batch, "decay": self.decay}
        given |= {"warm_up": self.warm_up, "clip": self.clip}
        base = replace(base, **{name: v for name, v in given.items() if v is not None})
        if self.rate is not None:
            base = base.rated(self.rate)
        return base if self.scale == 1 else base.scaled(self.scale)


@dataclass(frozen=True)
class Keeping:
    """How a run is kept and watched."""

    out: Path = Path("runs")
    """The directory of all runs."""
    root: Path = Path("data")
    """The directory of all data sets."""
    save_every: int | None = None
    """Steps between two checkpoints."""
    keep: int = 2
    """How many of the newest checkpoints are kept; the best one is kept as well."""
    on_nonfinite: Literal["stop", "rollback"] = "stop"
    """What is done about a loss or gradient that is not finite."""
    anyway: bool = False
    """Resume even where threads, versions, processes or data have changed."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the network; auto does so on a GPU where it pays."""
    threads: int | None = None
    """How many cores to use; as many as there are without it."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard, too."""


Chosen = Annotated[Choice, tyro.conf.arg(name="")]
Scheduled = Annotated[Schedule, tyro.conf.arg(name="")]
Kept = Annotated[Keeping, tyro.conf.arg(name="")]
Directory = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


def list_() -> None:
    """List the networks, fusion terms and heads there are."""
    from rich.console import Console
    from rich.table import Table

    from sortnet.fusion import TERMS
    from sortnet.heads import HEADS
    from sortnet.networks import NETWORKS

    table = Table("network", "in the paper", "images", "classes", "variants", box=None)
    for name, entry in NETWORKS.items():
        size = f"{entry.size} x {entry.size}"
        table.add_row(name, entry.title, size, str(entry.classes), ", ".join(entry.variants))
    console = Console()
    console.print(table)
    console.print(f"\nfusion  terms joined by +: {', '.join(TERMS)}; or sort, the paper's choice")
    console.print(f"head    {', '.join(HEADS)}; or the network's own")


def info(choice: Chosen) -> None:
    """Show a network's stages and what its fusion adds to the plain network.

    $ sortnet info resnet56 --fusion sort
    $ sortnet info lenet --branched --fusion sum+max+prod
    $ sortnet info wrn28 --width 4
    """
    from rich.console import Console
    from rich.table import Table

    from sortnet import measure
    from sortnet.networks import display

    network, plain = choice.build(), choice.build(fusion="sum")
    table = Table(box=None, title_justify="left")
    table.title = display(choice.network, choice.fusion, branched=choice.branched)
    for heading in ("stage", "layers"):
        table.add_column(heading, no_wrap=True)
    for heading in ("response", "parameters", "multiply-adds", "receptive\nfield"):
        table.add_column(heading, justify="right")
    stages = measure.stages(network)
    for stage in stages:
        table.add_row(
            stage.name,
            stage.kind,
            "x".join(map(str, stage.shape)),
            f"{stage.parameters:,}" if stage.parameters else "",
            f"{stage.work.total:,}" if stage.work.total else "",
            "" if stage.receptive_field is None else str(stage.receptive_field),
        )
    parameters = sum(stage.parameters for stage in stages)
    total = sum(stage.work.total for stage in stages)
    table.add_section()
    table.add_row(
        "all", f"{network.size}x{network.size} image", "", f"{parameters:,}", f"{total:,}"
    )
    console = Console()
    console.print(table)
    if choice.fusion != "sum":
        fused = sum(stage.work.fusion for stage in stages)
        keys = len(network.state_dict()) - len(plain.state_dict())
        learnt = parameters - measure.parameters(plain)
        console.print(
            f"\n{choice.fusion} adds to sum: {learnt:,} parameters,"
            f" {keys} entries of the state dict, {fused:,} multiply-adds"
            f" ({100 * fused / (total - fused):.2g} %)"
        )


def bench(
    networks: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NETWORK ...]")
    ] = (),
    /,
    rounds: int = 31,
    compiled: bool = False,
    against: Literal["sum", "naive"] = "sum",
    parts: bool = True,
    json: Path | None = None,
    figure: Path | None = None,
) -> None:
    """Measure what SORT costs beside the linear sum: time in turns, bytes kept, peak memory.

    $ sortnet bench
    $ sortnet bench resnet20 --against naive --no-parts
    $ sortnet bench --compiled --against naive --json results/cost.json

    Args:
        networks: Which networks, as in `sortnet list`; all without any.
        rounds: How many times each thing is measured.
        compiled: Measure training steps compiled by torch.compile, too; takes minutes to compile.
        against: naive also measures what the plain formula would cost.
        parts: Measure the op, the blocks and the bilinear heads, too.
        json: Where to write all figures.
        figure: Where to draw the networks' figures, as .png, .svg or .pdf.
    """
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from sortnet.experiments import cost
    from sortnet.report import cost as report
    from sortnet.training import tune

    tune()
    plan = cost.Plan(networks or tuple(cost.CASES), rounds, compiled, against == "naive", parts)
    console = Console()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("")

        def show(name: str, done: int, total: int) -> None:
            progress.update(bar, description=name, completed=done, total=total)

        for result in cost.bench(plan, show):  # what was measured is safe if the rest is not
            if json is not None:
                cost.write(result, json)
    for title, (heading, rows) in report.tables(result).items():
        table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
        for column in heading:
            table.add_column(column, no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table, "")
    if figure is not None:
        report.figure(result, figure)


def train(
    choice: Chosen,
    schedule: Scheduled,
    keeping: Kept,
    data: str = "digits",
    seed: int = 0,
    validation: int = 0,
    evaluations: int = 20,
    preprocess: str | None = None,
    init: str | None = None,
    freeze: tuple[str, ...] = (),
    name: str = "",
) -> None:
    """Train a network; the same command goes on with a run that was stopped.

    $ sortnet train lenet --branched --fusion sort --scale 0.01
    $ sortnet train resnet20 --fusion sort --data cifar10 --scale 0.1 --validation 5000
    $ sortnet train resnet18 --data path/to/images --init runs/pets/resnet18/seed0 --rate 0.01
    $ torchrun --nproc-per-node=8 -m sortnet train resnet50 --data imagenet

    Args:
        choice: Which network.
        schedule: How it is trained.
        keeping: How the run is kept.
        data: A data set's name (digits needs no download), or the path of an image folder.
        seed: Of weights, order, augmentation and dropout.
        validation: How many training images are held out, to look at in between.
        evaluations: How many times they are looked at.
        preprocess: Of svhn: lcn, lcn-pylearn2 or none.
        init: A run, a directory or a safetensors file whose weights are the first ones.
        freeze: Patterns of the weights that are not trained, such as 'layer[12].*'.
        name: Tells this run from others of the same network, data and seed.
    """
    from sortnet import runs
    from sortnet.training import Habits

    if choice.classes is not None:
        raise ValueError("--classes is not for training: the data say how many there are")
    run = runs.Run(
        choice.network,
        schedule.build(choice.network),
        choice.fusion,
        data,
        seed,
        choice.options(),
        validation,
        evaluations,
        preprocess,
        init,
        freeze,
        name,
    )
    habits = Habits(
        keeping.save_every,
        keeping.keep,
        keeping.on_nonfinite == "rollback",
        keeping.anyway,
        keeping.compile,
    )
    _tune(keeping.threads)
    directory = keeping.out / run.id
    known = runs.result(directory)
    watchers = [] if known else _watchers(directory, keeping.tensorboard)
    result = runs.train(run, keeping.out, keeping.root, habits=habits, watchers=watchers)
    if known and known.ended == "diverged":
        raise ValueError(
            f"{directory} diverged at step {known.steps}, in {known.where}; it would do so again:"
            " choose another --name and --warm-up, --clip or --rate"
        )
    print(
        f"{run.title} on {run.data}: test error {result.error:.2f} %, top-5"
        f" {result.test['error5']:.2f} %, after {result.steps:,} steps in"
        f" {result.seconds:.0f} s{', as trained before' if known else ''}"
    )
    print(directory)


def _tune(threads: int | None) -> None:
    import torch

    from sortnet.training import tune

    tune()
    if threads is not None:
        torch.set_num_threads(threads)


def _watchers(directory: Path, tensorboard: bool) -> "list[Watcher]":
    from sortnet.training import TensorBoard, Terminal

    watchers: list[Watcher] = [Terminal()]
    if tensorboard:
        watchers.append(TensorBoard(directory))
    return watchers


def eval_(
    run: Directory,
    /,
    data: str | None = None,
    root: Path = Path("data"),
    split: Literal["test", "validation", "train"] = "test",
) -> None:
    """Measure the errors of a run's network.

    $ sortnet eval runs/cifar10/resnet20-sort/seed0 --root data

    Args:
        run: A run's directory, or one with a saved network.
        data: On other data with the same classes.
        root: The directory of all data sets.
        split: Which images.
    """
    from sortnet import runs

    _tune(None)
    title, scores = runs.evaluate(run, root, data=data, split=split)
    print(
        f"{title}: {split} error {scores.error:.2f} %, top-5 {scores.error5:.2f} %,"
        f" loss {scores.loss:.4f}, {scores.images:,} images"
    )


def predict(
    run: Directory,
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE ...")],
    /,
    top: int = 3,
) -> None:
    """Say what is in some pictures, with probabilities.

    $ sortnet predict runs/cifar10/resnet20-sort/seed0 photo.jpg

    Args:
        run: A run's directory, or one with a saved network.
        images: Ordinary image files.
        top: How many classes to name for each.
    """
    from sortnet import pretrained, runs
    from sortnet.data import read_image

    if not images:
        raise ValueError("no image given; sortnet predict RUN IMAGE ...")
    pictures = [read_image(path) for path in images]
    network, config = runs.load(run)
    for path, row in zip(images, pretrained.classify(network, config, pictures), strict=True):
        values, indices = row.topk(min(top, len(config.classes)))
        named = [
            f"{config.classes[i]} {100 * p:.1f} %"
            for p, i in zip(values.tolist(), indices.tolist(), strict=True)
        ]
        print(f"{path}: {', '.join(named)}")


def data(
    action: Annotated[Literal["get", "check"], tyro.conf.Positional],
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    /,
    root: Path = Path("data"),
) -> None:
    """Download a data set from its official source, or verify one.

    $ sortnet data get cifar10
    $ sortnet data check cifar10
    $ sortnet data check path/to/images

    Args:
        action: get or check.
        name: cifar10, cifar100, svhn or caltech256; for check also imagenet or a path.
        root: The directory of all data sets.
    """
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress

    from sortnet import data as room

    unit = [DownloadColumn()] if action == "get" else []
    columns = [*Progress.get_default_columns(), *unit]
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        bar = progress.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            progress.update(bar, description=what, completed=done, total=total or None)

        if action == "get":
            where = room.get(name, root, show=show)
        else:
            problems = room.check(name, root, show=show)
    if action == "get":
        print(f"{name} is in {where}")
    elif problems:
        for problem in problems:
            print(f"{problem.path}: {problem.reason}")
        raise OSError(f"{name}: {len(problems)} bad files")
    else:
        print(f"{name} is complete and intact")


def doctor(run: Directory, /) -> None:
    """Say what of a run is intact, and where it would go on.

    $ sortnet doctor runs/cifar10/resnet20-sort/seed0

    Args:
        run: Its directory.
    """
    from sortnet import runs

    for line in runs.examine(run):
        print(line)


def demo(out: Path = Path("runs/demo"), figure: Path | None = None) -> None:
    """Train LeNet, LeNet* and LeNet*-SORT on scikit-learn's digits, and compare them.

    Args:
        out: The directory of the runs; a second demo finds them there.
        figure: Where to draw the learning curves; curves.png beside the runs without it.
    """
    from rich.console import Console
    from rich.table import Table

    from sortnet import measure, runs
    from sortnet.experiments.demo import RUNS
    from sortnet.report.drawing import draw

    _tune(None)
    table = Table("network", "parameters", "test error", "seconds a step", box=None)
    results = []
    for run in RUNS:
        known = runs.result(out / run.id)
        result = runs.train(run, out, watchers=[] if known else _watchers(out / run.id, False))
        results.append(result)
        parameters = measure.parameters(runs.load(result.directory)[0])
        pace = f"{result.seconds / result.steps:.3f}"
        table.add_row(run.title, f"{parameters:,}", f"{result.error:.2f} %", pace)
    Console().print(table)
    picture = figure or out / "curves.png"
    draw([result.directory for result in results], picture)
    print(f"one seed and {RUNS[0].recipe.steps} steps each, which shows that they train, and not")
    print(f"which is better; curves: {picture}")


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "list": list_,
    "info": info,
    "train": train,
    "eval": eval_,
    "predict": predict,
    "data": data,
    "doctor": doctor,
    "bench": bench,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake is one line and exit code 2, a failure one line and 1."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"sortnet {__version__}")
        return 0
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="sortnet",
            description="Second-order response fusion for PyTorch: the SORT paper as a tool.",
            args=arguments or ["--help"],
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except ValueError as error:
        print(f"sortnet: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, head or less, has seen enough
        sys.stdout = None
        return 0
    except (OSError, ArithmeticError) as error:
        print(f"sortnet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        from sortnet.training import Interrupted

        if not isinstance(error, Interrupted):
            raise
        print(f"sortnet: {error}", file=sys.stderr)
        return 128 + error.number
    return 0
