"""Commands about networks and models: list, info, bench, sortify."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sortnet import limits
from sortnet.cli.flags import Choice, Chosen, Device, Model, Precision, tune
from sortnet.errors import user_input

if TYPE_CHECKING:
    from torch import nn


def list_() -> None:
    """List networks, fusion terms, heads and trained weights."""
    from rich.console import Console
    from rich.table import Table

    from sortnet import pretrained
    from sortnet.fusion import TERMS
    from sortnet.heads import HEADS
    from sortnet.networks import NETWORKS

    table = Table("network", "in the paper", "images", "classes", "variants", box=None)
    for name, entry in NETWORKS.items():
        size = f"{entry.size} x {entry.size}"
        table.add_row(name, entry.title, size, str(entry.num_classes), ", ".join(entry.variants))
    console = Console()
    console.print(table)
    console.print(f"\nfusion  terms joined by +: {', '.join(TERMS)}; or sort, the paper's choice")
    console.print(f"head    {', '.join(HEADS)}; or the network's own")
    console.print(f"trained {', '.join(pretrained.names())}")


def info(choice: Chosen) -> None:
    """Show a network's stages and what its fusion adds.

    $ sortnet info resnet56 --fusion sort
    $ sortnet info lenet --branched --fusion sum+max+prod
    $ sortnet info wrn28 --width 4
    """
    from rich.console import Console
    from rich.table import Table

    from sortnet.lab import measure
    from sortnet.networks import Network, display

    network, plain = choice.build(), choice.build(fusion="sum")
    if not isinstance(network, Network):
        _summary(choice, network, plain)
        return
    table = Table(box=None, title_justify="left")
    table.title = display(choice.start().network, choice.fusion, branched=choice.branched)
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
        added = parameters - measure.parameters(plain)
        console.print(
            f"\n{choice.fusion} adds to sum: {added:,} parameters,"
            f" {keys} state-dict entries, {fused:,} multiply-adds"
            f" ({100 * fused / (total - fused):.2g} %)"
        )


def _summary(choice: Choice, network: "nn.Module", plain: "nn.Module") -> None:
    """Print the size and the sites of a model that is not one of the paper's."""
    import torch

    from sortnet import modelspec, surgery
    from sortnet.lab import measure

    spec = choice.start().network
    side = choice.size or modelspec.image_size(spec)
    image = torch.empty(1, 3, side, side)
    with user_input():
        found = surgery.sites(network, image)
    total = measure.work(network, image)
    print(f"{modelspec.title(spec, choice.fusion)}, {side}x{side} image")
    print(f"{measure.parameters(network):,} parameters, {total.total:,} multiply-adds")
    fused = sum(site.fusion != "sum" for site in found)
    print(f"{len(found)} sites where two branches meet, {fused} of them with another fusion")
    if choice.fusion != "sum":
        added = measure.parameters(network) - measure.parameters(plain)
        print(f"{choice.fusion} adds to sum: {added:,} parameters, {total.fusion:,} multiply-adds")


def bench(
    models: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL ...]")
    ] = (),
    /,
    rounds: int = 36,
    compiled: bool = False,
    against: Literal["sum", "naive", "pytorch", "float32"] = "sum",
    parts: bool = True,
    json: Path | None = None,
    figure: Path | None = None,
    precision: Precision = "auto",
    device: Device = "auto",
) -> None:
    """Measure time and memory of SORT relative to the sum.

    Time of a training step, bytes saved for backward and peak memory, all variants in turns.

    $ sortnet bench
    $ sortnet bench resnet20 --against naive --no-parts
    $ sortnet bench --against naive --json results/cost.json
    $ sortnet bench torchvision:resnet18 timm:resnet10t --no-parts --rounds 12
    $ sortnet bench --compiled --json results/cost-compiled.json
    $ sortnet bench resnet20 lenet --against pytorch
    $ sortnet bench resnet20 lenet --against float32 --precision bfloat16

    Args:
        models: resnet20, torchvision:resnet18, timm:resnet10t, package.module:function, or a run;
            the default is all networks of the paper.
        rounds: Number of measurements; the variants take turns.
        compiled: Measure networks under torch.compile, relative to the sum both compiled and
            eager. Compilation takes minutes.
        against: naive also measures the plain formula in eager mode. pytorch measures training
            with the sum, data loading included, against the usual PyTorch program; float32
            measures it in --precision against float32, with the sum and with SORT.
        parts: Whether to measure the op, the blocks and the bilinear heads, too (eager only).
        json: File for all measurements.
        figure: Figure of the networks' ratios, as .svg and .png.
        precision: Dtype of convolutions; auto: bfloat16 if the hardware has it.
        device: Device to measure; auto: the accelerator if there is one.
    """
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from sortnet.lab.experiments import benchmark
    from sortnet.lab.report import benchmark_tables as report
    from sortnet.lab.training import resolve_precision

    limits.check(rounds=rounds)
    tune()
    if against in ("pytorch", "float32"):
        _compare_loops(against, models or ("resnet20", "lenet"), rounds, precision, json)
        return
    plan = benchmark.BenchmarkPlan(
        models or tuple(benchmark.CASES),
        rounds,
        compiled,
        against == "naive",
        parts,
        resolve_precision(precision, device),
        device,
    )
    console = Console()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("")

        def show(name: str, done: int, total: int) -> None:
            progress.update(bar, description=name, completed=done, total=total)

        for result in benchmark.bench(
            plan, show
        ):  # written after each part: an interruption loses one part
            if json is not None:
                benchmark.write(result, json)
    for title, (heading, rows) in report.tables(result).items():
        table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
        for column in heading:
            table.add_column(column, no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table, "")
    if figure is not None:
        report.figure(result, figure)


def _compare_loops(
    other: str, networks: tuple[str, ...], rounds: int, precision: str, json: Path | None
) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    from sortnet import files
    from sortnet.lab.experiments.training_speed import compare_loops
    from sortnet.lab.report import benchmark_tables as report
    from sortnet.lab.training import resolve_precision

    with Console(stderr=True).status("") as status:
        found = compare_loops(
            other,
            networks,
            rounds,
            resolve_precision(precision),
            lambda name, done, total: status.update(f"{name}: {done} of {total} done"),
        )
    if json is not None:
        files.write_json(json, found)
    Console().print(Markdown(report.training_speed(found)))


def sortify(
    model: Model,
    /,
    where: str | None = None,
    fusion: str = "sort",
    gate: Literal["zero", "one"] | None = None,
    weights: str | None = None,
    pretrained: bool = False,
    skip_unchangeable: bool = False,
    dry_run: bool = False,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("sortified.safetensors"),
) -> None:
    """Put SORT into any model.

    The additions of two branches become fusions. Weights and state-dict keys are kept.

    $ sortnet sortify torchvision:resnet50 --dry-run
    $ sortnet sortify timm:convnext_tiny --where 'stages.3.*' --gate zero
    $ sortnet sortify timm:mvitv2_tiny --skip-unchangeable
    $ sortnet sortify resnet18 -o start.safetensors
    $ sortnet train resnet18 --fusion sort --data path/to/images --weights start.safetensors

    Args:
        model: resnet20, torchvision:resnet18, timm:resnet10t, package.module:function, or a run.
        where: A pattern over the names of the sites to change; default: all sites.
        fusion: Terms joined by + (sum max prod root square), or sort.
        gate: Multiply the second-order term by a learnable number per channel; its initial value.
        weights: A safetensors file, a state dict or a run with the model's weights; default: new
            weights.
        pretrained: Download the weights that torchvision or timm offers.
        skip_unchangeable: Keep the addition at sites that cannot be changed.
        dry_run: Only print the sites that would be changed.
        output: The file to write the weights of the converted model to.
    """
    from rich.console import Console
    from rich.table import Table
    from safetensors.torch import save

    from sortnet import files, surgery

    original = Choice(model, weights=weights, pretrained=pretrained).build()
    with user_input():
        sites = surgery.sites(original)
    if dry_run and sites:  # without sites, sortify says why
        with user_input():
            selected = surgery.select(sites, where)
        table = Table("site", "shortcut", "branch", "then", "shape", "", box=None)
        for site in selected:
            shape = "x".join(map(str, site.shape[1:]))
            state = "skipped: " if skip_unchangeable else "cannot be changed: "
            problem = state + site.problem if site.problem else ""
            table.add_row(site.name, site.shortcut, site.branch, site.follows, shape, problem)
        Console().print(table)
        failed = sum(site.problem is not None for site in selected)
        rest = f", {failed} of them cannot be changed" if failed else ""
        print(f"{len(selected)} of {len(sites)} sites{rest}")
        return
    with user_input():
        changed = surgery.sortify(
            original, where, fusion, gate=gate, skip_unchangeable=skip_unchangeable
        )
    tensors = {name: x.contiguous() for name, x in changed.state_dict().items()}
    output.parent.mkdir(parents=True, exist_ok=True)
    files.write(output, save(tensors))
    sites = surgery.sites(changed)
    count = sum(site.fusion != "sum" for site in sites)
    skipped = [site for site in surgery.select(sites, where) if site.problem]
    print(f"{output}: {model} with {fusion} in {count} of {len(sites)} sites")
    if skipped:
        print(f"{len(skipped)} sites skipped: {surgery.join_names(skipped)}")
