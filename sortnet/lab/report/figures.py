"""Figures 1 and 2 of the paper, and figures of gradients and second-order terms."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sortnet.blocks import Basic, TwoBranch
from sortnet.fusion import EPS, Fusion, fuse
from sortnet.lab.report.style import COLORS, GREY, OTHERS, canvas, save, styled

SYMBOLS = {
    "sum": "{a} + {b}",
    "max": r"\max({a}, {b})",
    "prod": r"{a} \odot {b}",
    "root": r"\sqrt{{\sigma({a}) \odot \sigma({b}) + \varepsilon}}",
    "square": "{a}^2",
}


def label(module: nn.Module) -> str:
    """Describe a layer in a few words.

    Example:
        >>> label(nn.Conv2d(3, 32, 5))
        '5 x 5 conv, 32'
    """
    if isinstance(module, nn.Conv2d):
        side = module.kernel_size[0]
        return f"{side} x {side} conv, {module.out_channels}"
    return {"BatchNorm2d": "batch norm", "ReLU": "ReLU"}.get(type(module).__name__, str(module))


def formula(fusion: Fusion, a: str, b: str) -> str:
    """Return a fusion's terms as a formula."""
    return "$" + " + ".join(SYMBOLS[term].format(a=a, b=b) for term in fusion.terms) + "$"


@styled
def modules(path: Path) -> list[Path]:
    """Draw Figure 1: the two kinds of block, from the blocks themselves."""
    import matplotlib as mpl

    mpl.rcParams["svg.fonttype"] = "path"  # as text, the root sign and its bar come apart
    figure, axes = canvas(1, 2, 7.2, 3.9)
    two = TwoBranch(32, 32, 5, Fusion("sort"), padding=2)
    residual = Basic(16, 16, 1, Fusion("sort", block="residual"))
    relu = nn.ReLU()
    left = [[*branch, relu] for branch in (two.branch1, two.branch2)]
    right = [[residual.conv1, residual.bn1, relu, residual.conv2, residual.bn2]]
    first, second = r"F_1(x)", r"F_2(x)"
    _block(axes[0, 0], left, (first, second), formula(two.fusion, first, second), "")  # type: ignore[arg-type]
    after = "ReLU" if residual.act2 else ""
    _block(axes[0, 1], [[], *right], ("x", "F(x)"), formula(residual.fusion, "x", "F(x)"), after)  # type: ignore[arg-type]
    axes[0, 0].set_title("two branches in place of one 5 x 5 convolution")
    axes[0, 1].set_title("residual block")
    return save(figure, path)


def _block(
    axis: Any,  # noqa: ANN401
    branches: Sequence[Sequence[nn.Module]],
    names: tuple[str, str],
    fused: str,
    after: str,
) -> None:
    """Draw one block: its input above, a column of boxes for each branch, the fusion below."""
    axis.set(xlim=(-1.25, 1.25), ylim=(-0.02, 1.02))
    axis.axis("off")
    top, bottom = 0.93, 0.27
    arrow = {"arrowstyle": "-|>", "color": "0.25", "lw": 1.0, "shrinkA": 0, "shrinkB": 0}
    box = {"boxstyle": "round,pad=0.32", "fc": "white", "ec": "0.35", "lw": 0.8}
    marked = {**box, "fc": "#FBE3D4", "ec": COLORS["sort"], "lw": 1.2}
    axis.text(0, top + 0.03, "$x$", ha="center", va="bottom", fontsize=11)
    for place, layers, name in zip((-0.62, 0.62), branches, names, strict=True):
        axis.plot([0, place], [top, top - 0.06], color="0.25", lw=1.0)
        axis.annotate("", (place * 0.45, bottom), (place, bottom + 0.09), arrowprops=arrow)
        axis.plot([place, place], [top - 0.06, bottom + 0.09], color="0.25", lw=1.0, zorder=0)
        step = (top - 0.12 - bottom - 0.16) / max(1, len(layers) - 1)
        for i, layer in enumerate(layers):
            y = top - 0.12 - i * step
            axis.text(place, y, label(layer), ha="center", va="center", fontsize=8, bbox=box)
        side = "right" if place < 0 else "left"
        axis.text(place * 1.05, bottom + 0.055, f"${name}$", ha=side, va="center", fontsize=9)
    axis.text(0, bottom - 0.05, fused, ha="center", va="center", fontsize=9, bbox=marked)
    end = 0.02
    axis.annotate("", (0, end), (0, bottom - 0.1), arrowprops=arrow)
    if after:
        axis.text(0, 0.115, after, ha="center", va="center", fontsize=8, bbox=box)
    axis.text(0.06, end, "$y$", ha="left", va="bottom", fontsize=11)


@styled
def surfaces(path: Path) -> list[Path]:
    """Draw Figure 2: the sum of two ReLUs, and the sum with their product, with contour lines."""
    import torch
    from matplotlib.colors import PowerNorm

    figure, axes = canvas(1, 2, 7.2, 3.3)
    grid = torch.linspace(-2, 2, 161, dtype=torch.float64)
    x, y = torch.meshgrid(grid, grid, indexing="xy")
    levels = [0.25 * i for i in range(33)]
    titles = ("$f_1 = x_* + y_*$", r"$f_2 = x_* + y_* + x_* \cdot y_*$")
    for axis, terms, title in zip(axes[0], (("sum",), ("sum", "prod")), titles, strict=True):
        z = fuse(torch.relu(x), torch.relu(y), terms).numpy()
        drawn = axis.contourf(x, y, z, levels=levels, cmap="cividis", norm=PowerNorm(0.7))
        lines = axis.contour(x, y, z, levels=levels[2::2], colors="white", linewidths=0.6)
        axis.clabel(lines, levels=[v for v in (1, 2, 4, 6) if v < z.max()], fontsize=7)
        axis.axhline(0, color="white", lw=0.8, ls=":")
        axis.axvline(0, color="white", lw=0.8, ls=":")
        axis.grid(visible=False)
        axis.set(title=title, xlabel="$x$", ylabel="$y$", aspect="equal")
    figure.colorbar(drawn, ax=axes[0].tolist(), shrink=0.85, ticks=range(0, 9, 2))
    return save(figure, path)


@styled
def correlation(measured: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw the autocorrelation of gradients along a line, by distance and by depth.

    Arguments:
        measured: The result of `sortnet.lab.experiments.figure_data.correlation`.
        path: The figure, without suffix.
    """
    networks = list(dict.fromkeys(series["name"] for series in measured["series"]))
    figure, axes = canvas(1, len(networks) + 1, 2.35 * (len(networks) + 1), 2.6)
    for axis, network in zip(axes[0], networks, strict=False):
        for series in (series for series in measured["series"] if series["name"] == network):
            _band(axis, measured["lags"], series["by_seed"], series["fusion"])
        axis.axhline(0, color=GREY, lw=0.7)
        axis.set(title=network, xlabel="distance on the line (steps)", ylim=(-0.3, 1.0))
        axis.label_outer()
    axes[0, 0].set_ylabel("autocorrelation of gradients")
    axes[0, 0].legend(loc="upper right")
    _by_depth(axes[0, -1], measured, networks)
    return save(figure, path)


def _band(axis: Any, x: Sequence[float], rows: Sequence[Sequence[float]], fusion: str) -> None:  # noqa: ANN401
    import numpy as np

    values = np.asarray(rows)
    mean, color = values.mean(0), COLORS[fusion]
    style = {"sum": "--", "sort": "-"}[fusion]
    axis.plot(x, mean, style, color=color, label={"sum": "sum", "sort": "SORT"}[fusion])
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        axis.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.18, lw=0)


def _by_depth(axis: Any, measured: Mapping[str, Any], networks: Sequence[str]) -> None:  # noqa: ANN401
    import numpy as np

    for fusion, marker in (("sum", "s"), ("sort", "o")):
        found = [s["by_seed"] for s in measured["series"] if s["fusion"] == fusion]
        means = [np.asarray(rows).mean(1) for rows in found]
        deviations = [mean.std(ddof=1) if len(mean) > 1 else 0.0 for mean in means]
        style = {"color": COLORS[fusion], "marker": marker, "capsize": 3, "markersize": 5}
        places = [i + (0.05 if fusion == "sort" else -0.05) for i in range(len(networks))]
        axis.errorbar(
            places, [mean.mean() for mean in means], deviations,
            ls="--" if fusion == "sum" else "-", **style,
        )  # fmt: skip
    axis.set_xticks(range(len(networks)), [name.removeprefix("ResNet-") for name in networks])
    axis.set(title="mean over the distances", xlabel="layers", xlim=(-0.4, len(networks) - 0.6))
    axis.axhline(0, color=GREY, lw=0.7)


@styled
def activity(measured: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw the activity of the second-order term, block by block.

    Arguments:
        measured: The result of `sortnet.lab.experiments.figure_data.activity`.
        path: The figure, without suffix.
    """
    figure, axes = canvas(1, 2, 7.2, 2.7)
    for i, series in enumerate(measured["series"]):
        blocks = range(1, len(series["share"]) + 1)
        depth = [(block - 1) / max(1, len(blocks) - 1) for block in blocks]
        style = {"color": OTHERS[i], "marker": "osD^vP"[i % 6], "markersize": 4}
        style["ls"] = ("-", "--", "-.", ":")[i % 4]
        axes[0, 0].plot(depth, [100 * v for v in series["share"]], label=series["name"], **style)
        axes[0, 1].plot(depth, [100 * v for v in series["active"]], **style)
    axes[0, 0].set_title("the second-order term's part of the output (%)")
    axes[0, 1].set_title("places where both branches respond (%)")
    for axis in axes[0]:
        axis.set_xticks([0, 1], ["first block", "last block"])
        axis.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=4)
    figure.suptitle(f"{measured['about']} (ε = {EPS:g})", fontsize=8.5, color=GREY)
    return save(figure, path)


@styled
def growth(measured: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw how the first steps change loss and weights.

    Arguments:
        measured: The result of `sortnet.lab.experiments.figure_data.growth`.
        path: The figure, without suffix.
    """
    figure, axes = canvas(1, 2, 7.2, 2.7)
    for i, series in enumerate(measured["series"]):
        steps = range(1, len(series["loss"]) + 1)
        style = {"color": OTHERS[i], "ls": ("--", "-", "-.", ":")[i % 4]}
        axes[0, 0].plot(steps, series["loss"], label=series["name"], **style)
        axes[0, 1].plot(steps, series["growth"], **style)
    axes[0, 0].set(title="training loss", xlabel="step", ylim=(0, 6))
    axes[0, 1].set(title="largest growth of a convolution's norm", xlabel="step", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=4)
    figure.suptitle(measured["about"], fontsize=8.5, color=GREY)
    return save(figure, path)
