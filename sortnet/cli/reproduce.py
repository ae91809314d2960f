"""Commands that reproduce the paper: reproduce, claims, transfer, report."""

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sortnet import limits
from sortnet.cli.engines import Grid, Trained, shown
from sortnet.cli.flags import Choice, Device, Model, Precision, tune
from sortnet.errors import UsageError

if TYPE_CHECKING:
    from sortnet.lab.experiments.results import ExperimentResults

Size = Literal["smoke", "mini", "paper"]
SMOKE_COST = ("lenet", "resnet20")
"""The networks that `sortnet reproduce cost` times within a minute."""


def reproduce(
    experiment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT")],
    /,
    size: Size = "smoke",
    seeds: int | None = None,
    data: Path = Path("data"),
    out: Path = Path("runs"),
    only: str = "*",
    results: Path | None = None,
    precision: Precision = "auto",
    device: Device = "auto",
    grid: Trained = Grid(),  # noqa: B008
) -> None:
    """Reproduce a table or figure of the paper.

    Trains the runs it needs and prints their errors next to the paper's.

    $ sortnet reproduce table1
    $ sortnet reproduce table2 --size mini --seeds 3 --data data --results results
    $ sortnet reproduce table1 --size mini --only "cifar10/lenet*"
    $ sortnet reproduce table3 --size paper --on slurm --partition gpu --gpus 8 --cpus 64

    Running the same command again resumes runs that were stopped; on SLURM it attaches to the
    queued jobs.

    Args:
        experiment: table1, table2, table3, table4, figures, bilinear or cost; recipes, attempts,
            depth, roots, styles, rates, precision or evidence, which are ours.
        size: smoke: seconds per run, on scikit-learn's digits. mini: the real data, a shortened
            schedule. paper: the paper's schedule.
        seeds: Number of seeds; default: that of the size.
        data: Directory of all datasets.
        out: Directory of all runs; finished runs are not trained again.
        only: A pattern over the directory names of the runs to train.
        results: Directory with one JSON file per finished run; runs with a file are not trained
            again.
        precision: Dtype of convolutions; auto: bfloat16 if the hardware has it.
        device: Device of the networks; auto: the accelerator if there is one.
        grid: Where to train.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from sortnet.lab.experiments import reproduction
    from sortnet.lab.report import tables

    limits.check_given(seeds=seeds)
    if experiment == "cost":
        if grid.on != "local":
            raise UsageError("cost is measured on this machine; leave out --on")
        from sortnet.cli.models import bench

        brief, rounds = size == "smoke", 5 if size == "smoke" else 36
        json = None if results is None else results / "cost.json"
        bench(
            SMOKE_COST if brief else (),
            rounds=rounds,
            parts=not brief,
            json=json,
            precision=precision,
            device=device,
        )
        return
    todo = reproduction.plan(experiment, size, seeds, data, out, results, only, precision, device)
    if grid.canceled(todo.runs, out):
        return
    engine = grid.engine(out)
    with shown() as show:
        stored = reproduction.reproduce(todo, engine, show)
    Console().print(Markdown(tables.markdown(stored)))
    if experiment == "figures":
        _draw(stored, out / "figures")


def _draw(results: "ExperimentResults", folder: Path) -> None:
    """Draw Figures 1 to 4, and figures for the paper's statements about gradients.

    The measurements behind a figure are written beside it.
    """
    from rich.console import Console

    from sortnet import files
    from sortnet.lab.experiments import figure_data as measured
    from sortnet.lab.report import figures
    from sortnet.lab.report import learning_curves as learning

    tune()
    with Console(file=sys.stderr).status("drawing") as status:
        drawn = [*figures.modules(folder / "modules"), *figures.surfaces(folder / "surfaces")]
        drawn += learning.curves(results, folder / "curves")
        for name in ("correlation", "activity", "growth"):
            status.update(f"measuring for {name}")
            found = getattr(measured, name)()
            files.write_json(folder / f"{name}.json", found)
            drawn += getattr(figures, name)(found, folder / name)
    for path in drawn:
        print(path)


def claims(
    size: Size = "smoke",
    data: Path = Path("data"),
    out: Path = Path("runs"),
    json: Path | None = None,
    only: tuple[str, ...] = (),
) -> None:
    """Test each claim of the paper and say whether it holds.

    $ sortnet claims
    $ sortnet claims --size mini --data data --json claims.json
    $ sortnet claims --only "sort-*" better-later --json claims.json

    Args:
        size: smoke takes minutes; mini and paper time every network.
        data: Directory of all datasets.
        out: Directory of all runs; their results decide the claims about accuracy.
        json: File for the verdicts; `sortnet report` shows a claims.json next to its runs.
        only: Patterns of claims to test; other verdicts in the file are kept.
    """
    from rich.console import Console

    from sortnet.lab import claims as lab_claims

    tune()
    console, errors = Console(), Console(file=sys.stderr)
    verdicts = []
    with errors.status("") as status:

        def show(name: str, done: int, total: int) -> None:
            status.update(f"{done} of {total}: {name}")

        for verdict in lab_claims.claims(size, data, out, show, only=only):
            verdicts.append(verdict)
            claim = verdict.claim
            console.print(f"[bold]{verdict.verdict:14}[/bold] {claim.name} ({claim.place})")
            console.print(f"    {claim.statement}", highlight=False, markup=False)
            console.print(f"    {verdict.figures}", style="dim", highlight=False, markup=False)
    counts = Counter(verdict.verdict for verdict in verdicts)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    if json is not None:
        lab_claims.write(verdicts, json)


def transfer(
    model: Model,
    /,
    data: str = "caltech256",
    layer: tuple[str, ...] = (),
    root: Path = Path("data"),
    per_class: int = 60,
    splits: int = 10,
    probe: bool = False,
    weights: str | None = None,
    pretrained: bool = False,
    size: int | None = None,
    device: Device = "auto",
) -> None:
    """Transfer a network's features to another dataset.

    Section 4.3 of the paper: linear models on the features of its layers.

    $ sortnet transfer runs/imagenet/alexnet-sort/seed0 --layer pool5 fc6 fc7
    $ sortnet transfer runs/cifar10/resnet20/seed0 --data path/to/images --probe
    $ sortnet transfer timm:resnet10t --pretrained --data path/to/images --layer layer4

    Args:
        model: resnet20, torchvision:resnet18, timm:resnet10t, package.module:function, or a run.
        data: Name of a dataset, or path of an image folder.
        layer: Names of activations; default: the last pooling layer and those after it. For models
            that are not from the paper: names of modules; default: the input of the classifier.
        root: Directory of all datasets.
        per_class: Training images per category.
        splits: Number of random splits.
        probe: Fit a linear probe on the dataset's own split instead.
        weights: A safetensors file, a state dict or a run with the model's weights.
        pretrained: Download the weights that torchvision or timm offers.
        size: Side of the images; default: what the model was made for.
        device: Device of the network; auto: the accelerator if there is one.
    """
    from rich.console import Console
    from rich.progress import Progress

    from sortnet.lab import transfer as lab_transfer
    from sortnet.lab.training import resolve_device

    limits.check(per_class=per_class, splits=splits)
    resolve_device(device)
    tune()
    choice = Choice(model, weights=weights, pretrained=pretrained, size=size)
    source: lab_transfer.Model
    if choice.start().weights == model:  # a run, with its own weights
        source = model
    elif weights is None and not pretrained:
        raise UsageError(f"{model} has no trained weights; give --weights FILE or --pretrained")
    else:
        source = choice.with_config()
    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        bar = progress.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            progress.update(bar, description=what, completed=done, total=total or None)

        found: dict[str, lab_transfer.Probe] | dict[str, lab_transfer.Transfer]
        if probe:
            found = lab_transfer.probe(source, data, root, layer, device=device, show=show)
        else:
            found = lab_transfer.transfer(
                source,
                data,
                root,
                layer,
                per_class=per_class,
                splits=splits,
                device=device,
                show=show,
            )
    for name, figures in found.items():
        print(f"{name}: {figures}")


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUNS ...")],
    /,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html"),
    watch: bool = False,
    port: int = 0,
) -> None:
    """Write an HTML page of runs, or serve it while they train.

    $ sortnet report runs -o report.html
    $ sortnet report runs/cifar10 --watch
    $ sortnet report results

    Args:
        runs: Directories; all runs in and below them are shown, also those kept as JSON files by
            `sortnet reproduce --results`.
        output: The page: one self-contained file.
        watch: Serve the page on this machine and keep it up to date until Ctrl-C.
        port: Port of the served page; 0 selects a free one.
    """
    from sortnet.lab.report import page, serve

    limits.check(port=port)
    if watch:
        serve.serve(runs, port, ready=lambda url: print(f"{url}  (Ctrl-C ends)", flush=True))
        return
    page.write(runs, output)
    print(output)
