"""Model cards of the networks that come with the package, from their config.json."""

import torch
from torch import nn

from sortnet import pretrained
from sortnet.lab.report import tables
from sortnet.lab.runs import Run
from sortnet.pretrained import Config

NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def markdown(name: str) -> str:
    """Return the model card of a network.

    Arguments:
        name: Its name, as passed to `sortnet.load`.
    """
    network, config = pretrained.load(name)
    run, test = Run.from_json(config.trained["run"]), config.trained["test"]
    parameters = sum(p.numel() for p in network.parameters())
    data = NAMES.get(run.data, run.data)
    rows = {
        "network": f"{config.title}; {parameters:,} parameters",
        **_gates(network),
        "input": f"RGB images of {config.size} x {config.size}; {_prepared(config)}",
        "classes": ", ".join(config.classes),
        "test error": f"{test['error']:.2f} %, top-5 {test['error5']:.2f} %, of the"
        f" {test['images']:,} test images of {data}, evaluated once, after the last step",
        "trained on": f"the training images of {data}{_held(run)}, seed {run.seed}",
        "recipe": _recipe(run),
        "machine": tables.machine(config.trained["machine"]),
    }
    lines = [f"# {name}", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in rows.items()]
    return "\n".join([*lines, "", *_use(name, run, data)]) + "\n"


def _gates(network: nn.Module) -> dict[str, str]:
    """Describe the gates on the second-order terms, if there are any."""
    found = [p.detach() for key, p in network.named_parameters() if key.endswith(".gate")]
    if not found:
        return {}
    every = torch.cat(found)
    negative = 100 * float((every < 0).float().mean())
    text = f"initialized to zero; now {every.mean():+.2f} on average, {every.min():+.2f} to"
    return {"gates": f"{text} {every.max():+.2f}, {negative:.0f} % of them negative"}


def _prepared(config: Config) -> str:
    mean, std = (", ".join(f"{v:.3f}" for v in values) for values in (config.mean, config.std))
    return f"values in 0 to 1, minus {mean}, divided by {std}"


def _held(run: Run) -> str:
    return f" but the last {run.validation:,}" if run.validation else ""


def _recipe(run: Run) -> str:
    recipe = run.recipe
    sections = ", ".join(f"{s.steps:,} steps at {s.rate:g}" for s in recipe.sections)
    nesterov = "Nesterov's " if recipe.nesterov else ""
    augmented = [f"crops after a padding of {recipe.pad}"] if recipe.pad else []
    augmented += ["flips"] if recipe.flip else []
    return (
        f"`{recipe.name}`, {recipe.scale:g} of the paper's schedule: {sections}; batches of"
        f" {recipe.batch}, {nesterov}momentum {recipe.momentum:g}, weight decay"
        f" {recipe.decay:g}; {' and '.join(augmented)}"
    )


def _use(name: str, run: Run, data: str) -> list[str]:
    scale = "" if run.recipe.scale == 1 else f" --scale {run.recipe.scale:g}"
    held = f" --validation {run.validation}" if run.validation else ""
    named = f" --recipe {run.recipe.name}" if run.recipe.gate else ""
    command = f"sortnet train {run.network} --fusion {run.fusion} --data {run.data}"
    return [
        "```",
        f"sortnet predict {name} photo.jpg",
        f"sortnet eval {name} --root data     # the error above",
        f"{command}{named}{scale}{held} --precision {run.precision} --seed {run.seed} --threads 1"
        "     # trains it",
        "```",
        "",
        f"It was trained on {data} only: a photograph is cropped to its middle square and resized,"
        " and anything else is given one of these classes as well. It is meant for trying things"
        " out; a full schedule gives a lower error.",
    ]


def write() -> None:
    """Write the cards of all networks that come with the package."""
    for name in pretrained.names():
        directory = pretrained.place(name)
        (directory / "README.md").write_text(markdown(name))
