"""Commands that train networks and use them: train, eval, predict, data, doctor, export."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sortnet import limits
from sortnet.cli.flags import Chosen, Device, Directory, Kept, Scheduled, tune
from sortnet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sortnet.lab.training import Callback

SHIPPED = "resnet20-sort-cifar10"
"""The shipped network, used if none is given."""
PREDICT_BATCH = 64
"""Images per batch in `predict`."""


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
    """Train a network, or resume a run that was stopped.

    $ sortnet train lenet --branched --fusion sort --scale 0.01
    $ sortnet train resnet20 --fusion sort --data cifar10 --epochs 13 --validation 5000
    $ sortnet train torchvision:resnet18 --fusion sort --data path/to/images --size 64
    $ sortnet train runs/pets/resnet18/seed0 --data path/to/images --rate 0.01
    $ torchrun --nproc-per-node=8 -m sortnet train resnet50 --data imagenet

    Args:
        choice: The network.
        schedule: The recipe, and changes to it.
        keeping: Directories, checkpoints and device.
        data: Name of a dataset (digits needs no download), or path of an image folder.
        seed: Seed of weights, image order, augmentation and dropout.
        validation: Number of training images to hold out for validation.
        evaluations: Number of evaluations on the validation images.
        preprocess: For svhn: lcn, lcn-pylearn2 or none.
        freeze: Weights not to train: globs or regular expressions, such as 'layer[12].*'.
        name: Suffix of the run's directory, to distinguish it from similar runs.
    """
    from sortnet.lab import runs
    from sortnet.lab.training import TrainerOptions, resolve_precision

    limits.check_given(threads=keeping.threads)
    if choice.num_classes is not None:
        raise UsageError(
            "--num-classes is not for training: the dataset has its number of classes"
        )
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
    if schedule.epochs is not None:
        images = len(run.load(keeping.root).train)
        run = replace(run, recipe=schedule.for_epochs(run.recipe, images))
    options = TrainerOptions(
        keeping.save_every,
        keeping.keep,
        keeping.on_nonfinite == "rollback",
        keeping.allow_mismatch,
        keeping.compile,
        keeping.device,
        keeping.resume_from,
    )
    tune(keeping.threads)
    directory = keeping.out / run.id
    known = _is_finished(directory)
    callbacks = [] if known else _callbacks(directory, keeping.tensorboard)
    result = runs.train(run, keeping.out, keeping.root, options=options, callbacks=callbacks)
    if result.ended == "diverged":
        raise UsageError(
            f"{directory} diverged at step {result.steps}, in {result.where}; the same command"
            " would diverge again: add --on-nonfinite rollback, or choose another --name with"
            " --warm-up, --clip or a smaller --rate"
        )
    before = ", as trained before" if known else ""
    print(
        f"{run.title} on {Path(run.data).name}: test {_errors(result.test)}, after"
        f" {result.steps:,} steps in {result.seconds:.0f} s{before}"
    )
    print(directory)


def _errors(figures: "Mapping[str, float]") -> str:
    """Format the errors of an evaluation; top-5 is missing with five classes or fewer."""
    top5 = f", top-5 {figures['error5']:.2f} %" if "error5" in figures else ""
    return f"error {figures['error']:.2f} %{top5}"


def _is_finished(directory: Path) -> bool:
    """Return True if a run has an intact result; training reports a damaged one."""
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
    """Evaluate the network of a run.

    $ sortnet eval resnet20-cifar10 --root data
    $ sortnet eval runs/cifar10/resnet20-sort/seed0

    Args:
        run: Directory of a run or of a saved network, or the name of a shipped network.
        data: Another dataset with the same classes.
        root: Directory of all datasets.
        split: Split to evaluate on.
        device: Device of the network; auto: the accelerator if there is one.
    """
    from sortnet.lab import runs

    tune()
    title, scores = runs.evaluate(run, root, data=data, split=split, device=device)
    print(
        f"{title}: {split} {_errors(scores.errors())}, loss {scores.loss:.4f},"
        f" {scores.images:,} images"
    )


def predict(
    images: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN] IMAGE|FOLDER ...")
    ],
    /,
    top: int = 3,
    device: Device = "auto",
) -> None:
    """Classify images.

    $ sortnet predict photo.jpg
    $ sortnet predict runs/cifar10/resnet20-sort/seed0 photo.jpg folder/of/images

    Args:
        images: Image files, or folders of them. A run, a saved network or a name from `sortnet
            list` may come first; the default is resnet20-sort-cifar10.
        top: Number of classes to print for each image.
        device: Device of the network; auto: the accelerator if there is one.
    """
    from sortnet import pretrained
    from sortnet.lab import runs
    from sortnet.lab.data import find_images, read_image
    from sortnet.lab.training import resolve_device

    limits.check(top=top)
    target = resolve_device(device)
    run = Path(SHIPPED)
    if images and _is_network(images[0]):
        run, *rest = images
        images = tuple(rest)
    paths = [path for given in images for path in find_images(given)]
    if not paths:
        raise UsageError("no image given; sortnet predict [RUN] IMAGE|FOLDER ...")
    network, config = runs.load(run)
    network = network.to(target)
    for begin in range(0, len(paths), PREDICT_BATCH):
        some = paths[begin : begin + PREDICT_BATCH]
        rows = pretrained.classify(network, config, [read_image(path) for path in some])
        for path, row in zip(some, rows, strict=True):
            values, indices = row.topk(min(top, len(config.classes)))
            pairs = zip(values.tolist(), indices.tolist(), strict=True)
            print(f"{path}: {', '.join(f'{config.classes[i]} {100 * p:.1f} %' for p, i in pairs)}")


def _is_network(path: Path) -> bool:
    """Return True for a run, a saved network or the name of a shipped one."""
    from sortnet import pretrained

    files = ("run.json", pretrained.CONFIG)
    return str(path) in pretrained.names() or any((path / name).is_file() for name in files)


def data(
    action: Annotated[Literal["get", "check"], tyro.conf.Positional],
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    /,
    root: Path = Path("data"),
) -> None:
    """Download a dataset from its official source, or check one.

    $ sortnet data get cifar10
    $ sortnet data check cifar10
    $ sortnet data check path/to/images

    Args:
        action: get, or check, which lists every bad file.
        name: cifar10, cifar100, svhn or caltech256; for check also imagenet or a path.
        root: Directory of all datasets.
    """
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress

    from sortnet.lab import data as datasets

    unit = [DownloadColumn()] if action == "get" else []
    columns = [*Progress.get_default_columns(), *unit]
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        bar = progress.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            progress.update(bar, description=what, completed=done, total=total or None)

        if action == "get":
            where = datasets.get(name, root, on_progress=show)
        else:
            problems = datasets.check(name, root, on_progress=show)
    if action == "get":
        print(f"{name} is in {where}")
    elif problems:
        for problem in problems:
            print(f"{problem.path}: {problem.reason}")
        raise OSError(f"{name}: {len(problems)} problem{'s' * (len(problems) != 1)}")
    else:
        print(f"{name} is complete and intact")


def doctor(run: Directory, /) -> None:
    """Check the files of a run, and say where it would resume.

    $ sortnet doctor runs/cifar10/resnet20-sort/seed0

    Args:
        run: Directory of the run.
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
    """Export a model to ONNX or torch.export, and check it.

    The exported model is compared with PyTorch's outputs.
    A run is exported with its own fusion and weights; the model's flags are for other models.

    $ sortnet export runs/cifar10/resnet20-sort/seed0 --onnx resnet20.onnx
    $ sortnet export torchvision:resnet18 --fusion sort --weights tuned.pt --onnx resnet18.onnx

    Args:
        choice: The model.
        onnx: The ONNX file to write, for any batch size.
        torch_export: The .pt2 file of torch.export to write.
        root: Directory of all datasets, for images to compare with.
    """
    from sortnet import export as exporter
    from sortnet.lab import runs

    if onnx is None and torch_export is None:
        raise UsageError("nothing to write: give --onnx FILE or --torch-export FILE")
    tune()
    is_run = choice.start().weights == choice.network
    network, config = runs.load(choice.network) if is_run else choice.with_config()
    images = runs.sample_images(config, root, exporter.IMAGES)
    if onnx is not None:
        print(exporter.to_onnx(network, config, onnx, images))
    if torch_export is not None:
        print(exporter.to_torch_export(network, config, torch_export, images))
