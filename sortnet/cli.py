"""The command line: the only file that knows tyro.

Commands import what they need when they run, so that ``sortnet --help`` answers at once.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from sortnet import __version__

if TYPE_CHECKING:
    from sortnet.networks import Network


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

    def build(self, fusion: str | None = None) -> "Network":
        """Build it, if asked for with another fusion and then without a gate."""
        from sortnet.networks import build

        asked = {"branched": self.branched, "norm": self.norm}
        variant: dict[str, Any] = {name: True for name, value in asked.items() if value}
        given = {"style": self.style, "width": self.width}
        variant |= {name: value for name, value in given.items() if value is not None}
        return build(
            self.network,
            self.classes,
            fusion or self.fusion,
            gate=None if fusion else self.gate,
            head=self.head,
            size=self.size,
            **variant,
        )


Chosen = Annotated[Choice, tyro.conf.arg(name="")]


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


COMMANDS: dict[str, Callable[..., None]] = {"list": list_, "info": info, "bench": bench}


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
    except OSError as error:
        print(f"sortnet: {error}", file=sys.stderr)
        return 1
    return 0
