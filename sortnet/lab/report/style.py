"""The style of all figures: distinguishable in gray and with color blindness."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {"sum": "#0072B2", "sort": "#D55E00"}
"""Blue and vermilion of Okabe and Ito's palette, which also differ in lightness."""
OTHERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
GREY = "0.45"

SETTINGS: Any = {  # matplotlib's own type lists every key
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",  # text stays text, for search and screen readers
    "svg.hashsalt": "sortnet",  # the same figure gives the same file
}


Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


def styled(draw: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """Make a function draw with these settings; matplotlib's own are restored afterwards."""

    @wraps(draw)
    def within(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
        import matplotlib as mpl

        with mpl.rc_context(SETTINGS):
            return draw(*args, **kwargs)

    return within


def canvas(rows: int, columns: int, width: float, height: float) -> tuple["Figure", Any]:
    """Return a figure, sized in inches, and its axes, without using pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def save(figure: "Figure", path: Path) -> list[Path]:
    """Write a figure as SVG and as PNG, whatever the path's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, metadata in ((".svg", {"Date": None}), (".png", None)):
        written.append(path.with_suffix(suffix))
        figure.savefig(written[-1], dpi=160, metadata=metadata)
    return written
