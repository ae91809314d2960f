"""Learning curves of a few runs, as one picture."""

from collections.abc import Sequence
from pathlib import Path

from sortnet import runs

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which colour-blind people can tell apart; line styles tell the splits apart."""


def draw(directories: Sequence[str | Path], path: Path) -> None:
    """Draw the errors of runs against their steps: training dashed, validation solid.

    Arguments:
        directories: Of the runs.
        path: The picture, .png, .svg or .pdf.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "sortnet", "font.size": 9}):
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.subplots()
        for i, directory in enumerate(directories):
            colour, title = COLOURS[i % len(COLOURS)], runs.read(directory).title
            rows = runs.rows(directory)
            for split, style in (("train", "--"), ("validation", "-")):
                points = [(row["step"], row["error"]) for row in rows if row["split"] == split]
                if points:
                    label = f"{title}, {split}"
                    axes.plot(*zip(*points, strict=True), style, color=colour, label=label, lw=1.3)
        axes.set(xlabel="step", ylabel="error in %", ylim=(0, None))
        axes.grid(alpha=0.3, lw=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)
