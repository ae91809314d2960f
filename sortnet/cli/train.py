"""Commands that train networks and use them: train, eval, predict, data, doctor, export."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sortnet import limits
from sortnet.cli.flags import Chosen, Device, Directory, Kept, Scheduled, tune
from sortnet.errors import UsageError

if TYPE_CHECKING:
    from sortnet.lab.training import Callback

SHIPPED = "resnet20-sort-cifar10"
"""The network that comes with sortnet and is used where none is named."""


def train(
    choice: Chosen,
    schedule: Scheduled,
    keeping: Kept,
    data: str = "digits",
    seed: int = 0,
    validation: int = 0,
    evaluations: int = 20,
    preprocess: str | None = None,
    freeze: tuple[str, ...] = (),
    name: str = "",
) -> None:
    """Train a network; the same command goes on with a run that was stopped.

    $ sortnet train lenet --branched --fusion sort --scale 0.01
    $ sortnet train resnet20 --fusion sort --data cifar10 --scale 0.1 --validation 5000
    $ sortnet train torchvision:resnet18 --fusion sort --data path/to/images --size 64
    $ sortnet train runs/pets/resnet18/seed0 --data path/to/images --rate 0.01
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
        freeze: Patterns of the weights that are not trained, such as 'layer[12].*'.
        name: Tells this run from others of the same network, data and seed.
    """
    from sortnet.lab import runs
    from sortnet.lab.training import TrainerOptions, resolve_precision

    limits.check_given(threads=keeping.threads)
    if choice.classes is not None:
        raise UsageError("--classes is not for training: the data say how many there are")
    start = choice.start()
    run = runs.Run(
        start.network,
        schedule.build(start.network),
        choice.fusion,
        data,
        seed,
        choice.options(),
        validation,
        evaluations,
        preprocess,
        start.weights,
        freeze,
        resolve_precision(schedule.precision, keeping.device),
        name,
    )
    habits = TrainerOptions(
        keeping.save_every,
        keeping.keep,
        keeping.on_nonfinite == "rollback",
        keeping.anyway,
        keeping.compile,
        keeping.device,
        keeping.resume_from,
    )
    tune(keeping.threads)
    directory = keeping.out / run.id
    known = _finished(directory)
    callbacks = [] if known else _callbacks(directory, keeping.tensorboard)
    result = runs.train(run, keeping.out, keeping.root, habits=habits, callbacks=callbacks)
    if result.ended == "diverged":
        raise UsageError(
            f"{directory} diverged at step {result.steps}, in {result.where}; it would do so"
            " again: go on with --on-nonfinite rollback, or choose another --name and --warm-up,"
            " --clip or --rate"
        )
    print(
        f"{run.title} on {run.data}: test error {result.error:.2f} %, top-5"
        f" {result.test['error5']:.2f} %, after {result.steps:,} steps in"
        f" {result.seconds:.0f} s{', as trained before' if known else ''}"
    )
    print(directory)


def _finished(directory: Path) -> bool:
    """Whether a run has finished; a damaged result is none, and training says so."""
    from sortnet.lab import runs

    try:
        result = runs.result(directory)
    except ValueError:
        return False
    return result is not None and result.ended == "finished"


def _callbacks(directory: Path, tensorboard: bool) -> "list[Callback]":
    from sortnet.lab.training import TensorBoard, Terminal

    callbacks: list[Callback] = [Terminal()]
    if tensorboard:
        callbacks.append(TensorBoard(directory))
    return callbacks


def eval_(
    run: Directory = Path(SHIPPED),
    /,
    data: str | None = None,
    root: Path = Path("data"),
    split: Literal["test", "validation", "train"] = "test",
    device: Device = "auto",
) -> None:
    """Measure the errors of a run's network.

    $ sortnet eval resnet20-cifar10 --root data
    $ sortnet eval runs/cifar10/resnet20-sort/seed0

    Args:
        run: A run's directory, or one with a saved network, or the name of a network that comes
            with sortnet.
        data: On other data with the same classes.
        root: The directory of all data sets.
        split: Which images.
        device: Where the network runs; auto: the accelerator if there is one.
    """
    from sortnet.lab import runs

    tune()
    title, scores = runs.evaluate(run, root, data=data, split=split, device=device)
    print(
        f"{title}: {split} error {scores.error:.2f} %, top-5 {scores.error5:.2f} %,"
        f" loss {scores.loss:.4f}, {scores.images:,} images"
    )


def predict(
    images: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN] IMAGE ...")
    ],
    /,
    top: int = 3,
    device: Device = "auto",
) -> None:
    """Say what is in some pictures, with probabilities.

    $ sortnet predict photo.jpg
    $ sortnet predict runs/cifar10/resnet20-sort/seed0 photo.jpg other.png

    Args:
        images: Ordinary image files; before them, if it is not to be resnet20-sort-cifar10, a
            run's directory, one with a saved network, or a name out of `sortnet list`.
        top: How many classes to name for each.
        device: Where the network runs; auto: the accelerator if there is one.
    """
    from sortnet import pretrained
    from sortnet.lab import runs
    from sortnet.lab.data import read_image
    from sortnet.lab.training import resolve_device

    limits.check(top=top)
    chosen = resolve_device(device)
    run = Path(SHIPPED)
    if images and (images[0].is_dir() or str(images[0]) in pretrained.names()):
        run, *rest = images
        images = tuple(rest)
    if not images:
        raise UsageError("no image given; sortnet predict [RUN] IMAGE ...")
    pictures = [read_image(path) for path in images]
    network, config = runs.load(run)
    rows = pretrained.classify(network.to(chosen), config, pictures)
    for path, row in zip(images, rows, strict=True):
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
        action: get; or check, which lists every bad file.
        name: cifar10, cifar100, svhn or caltech256; for check also imagenet or a path.
        root: The directory of all data sets.
    """
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress

    from sortnet.lab import data as room

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
    from sortnet.lab import runs

    for line in runs.examine(run):
        print(line)


def export(
    choice: Chosen,
    onnx: Path | None = None,
    torch_export: Path | None = None,
    root: Path = Path("data"),
) -> None:
    """Write a model for other programs, after comparing it with PyTorch.

    A run is exported with its own fusion and weights; the model's flags are for other models.

    $ sortnet export runs/cifar10/resnet20-sort/seed0 --onnx resnet20.onnx
    $ sortnet export torchvision:resnet18 --fusion sort --weights tuned.pt --onnx resnet18.onnx

    Args:
        choice: Which model.
        onnx: Where to write one ONNX file, for batches of any size.
        torch_export: Where to write a .pt2 file of torch.export.
        root: The directory of all data sets, for images to compare with.
    """
    from sortnet import export as room
    from sortnet.lab import runs

    if onnx is None and torch_export is None:
        raise UsageError("nothing to write: give --onnx FILE or --torch-export FILE")
    tune()
    is_run = choice.start().weights == choice.network
    network, config = runs.load(choice.network) if is_run else choice.with_config()
    images = runs.sample_images(config, root, room.IMAGES)
    if onnx is not None:
        print(room.to_onnx(network, config, onnx, images))
    if torch_export is not None:
        print(room.to_torch_export(network, config, torch_export, images))
