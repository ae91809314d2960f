"""The cost benchmark as tables and as a figure."""

from pathlib import Path
from typing import Any

from sortnet.lab.report.style import GREY, OTHERS, canvas, save, styled
from sortnet.lab.report.tables import line
from sortnet.networks import NETWORKS

Row = list[str]


def tables(result: dict[str, Any]) -> dict[str, tuple[Row, list[Row]]]:
    """Return the tables of a benchmark by title: heading and rows.

    Arguments:
        result: As `sortnet bench --json` writes it. Times, bytes saved for backward and peak
            memory are relative to the sum. "Of peak" is the share of the machine's peak: bytes
            per second for the op, multiply-adds per second for networks.
    """
    networks = _of_networks(result)
    parts = [m for m in result["measurements"] if m["level"] in ("op", "block")]
    steps = [m for m in networks if m["what"] == "step"]
    passes = [m for m in networks if m["what"] != "step"]
    heads = [m for m in result["measurements"] if m["level"] == "head" and m["what"] == "step"]
    title = ["", "", "", "time / sum [95 %]"]
    modes = ["mode", "sum"] if any(m["mode"] == "compiled" for m in steps) else []
    shown: dict[str, tuple[Row, list[Row]]] = {
        "Op and block": ([*title, "saved", "of peak"], []),
        "Training step": (
            ["", "", *modes, *title[3:], "saved", "held", "images/s", "of peak"],
            [],
        ),
        "Forward pass, and both passes": (title, []),
        "Heads on BigNet*": ([*title, "saved", "images/s"], []),
        "When compiling pays": (
            ["", "compiled SORT / eager sum", "first step", "pays after"],
            _compiling(steps),
        ),
    }
    op, step, forward, head, _ = (rows for _, rows in shown.values())
    for m in parts:
        op.append(
            [m["name"], m["what"], m["against"], _time(m), _of(m, "saved"), _share(m, "bandwidth")]
        )
    for m in steps:
        step.append([m["name"], m["against"], *([m["mode"], m["base"]] if modes else [])])
        step[-1] += [_time(m), _of(m, "saved"), _of(m, "peak")]
        step[-1] += [f"{m['images']:.0f}", _share(m, "arithmetic")]
    for m in passes:
        forward.append([m["name"], m["what"], m["against"], _time(m)])
    for m in heads:
        head.append([m["name"], m["mode"], m["against"], _time(m), _of(m, "saved")])
        head[-1].append(f"{m['images']:.0f}")
    return {name: table for name, table in shown.items() if table[1]}


def _of_networks(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the measurements of whole networks, in the paper's order."""
    titles = tuple(entry.title for entry in NETWORKS.values())
    found = [m for m in result["measurements"] if m["level"] == "network"]
    return sorted(found, key=lambda m: [not m["name"].startswith(title) for title in titles])


def _compiling(steps: list[dict[str, Any]]) -> list[Row]:
    """Return the gain per compiled step, the compilation time, and the steps until it pays off."""
    rows = []
    for m in (m for m in steps if m["mode"] == "compiled" and m["base"] == "eager"):
        time, pays = m["time"], "cannot tell"  # the interval contains 1
        if time["low"] > 1:
            pays = "never"
        elif time["high"] < 1:
            gained = m["seconds"][0] * (1 - time["median"])
            pays = f"{m['compilation'] / gained:,.0f} steps"
        rows.append([m["name"], _time(m), f"{m['compilation']:.0f} s", pays])
    return rows


def _time(m: dict[str, Any]) -> str:
    time = m["time"]
    return f"{time['median']:.3f} [{time['low']:.3f}, {time['high']:.3f}]"


def _of(m: dict[str, Any], key: str) -> str:
    return f"{m[key][1] / m[key][0]:.3f}" if m[key] else ""


def _share(m: dict[str, Any], key: str) -> str:
    return f"{100 * m[key]:.0f} %" if m[key] else ""


def summary(result: dict[str, Any]) -> str:
    """Return one row per network: SORT and the plain formula relative to the sum, uncompiled."""
    steps = [m for m in _of_networks(result) if m["what"] == "step"]
    eager = {(m["name"], m["against"]): m for m in steps if m["mode"] == "eager"}
    heading = [
        "training step relative to the sum",
        "SORT: time",
        "memory",
        "plain formula: time",
        "memory",
    ]
    lines = [line(heading), line(["---"] * len(heading))]
    for name in dict.fromkeys(name for name, _ in eager):
        cells = [name]
        for against in ("SORT", "naive"):
            m = eager[name, against]
            cells += [f"{m['time']['median']:.2f}", f"{m['saved'][1] / m['saved'][0]:.2f}"]
        lines.append(line(cells))
    return "\n".join(lines) + "\n"


def markdown(result: dict[str, Any]) -> str:
    """Return the tables in Markdown, with the machine they were measured on."""
    machine = result["machine"]
    lines = [
        f"Measured on {machine['processor']}, {machine['threads']} threads, GPU {machine['gpu']}, "
        f"{result['plan'].get('precision', 'float32')}, torch {machine['torch']}, "
        f"{result['plan']['rounds']} rounds in turns, "
        f"{result['seconds'] // 60} minutes; the machine's measured peak is "
        f"{result['peak']['multiply_adds'] / 1e9:.0f} billion multiply-adds and "
        f"{result['peak']['bytes'] / 1e9:.0f} GB a second.",
    ]
    for title, (heading, rows) in tables(result).items():
        lines += ["", f"### {title}", "", line(heading), line(["---"] * len(heading))]
        lines += [line(row) for row in rows]
    return "\n".join(lines) + "\n"


def training_speed(result: dict[str, Any]) -> str:
    """Return the table of `sortnet bench --against pytorch` or ``float32``."""
    machine = result["machine"]
    other = "PyTorch" if result["against"] == "pytorch" else "sortnet"
    heading = ["", "batch", f"sortnet, {result['precision']}", f"{other}, float32"]
    heading += ["times as fast [95 %]", "time of a step, relative"]
    lines = [
        f"Images per second, measured on {machine['processor']}, {machine['threads']} threads, "
        f"{result['workers']} workers, torch {machine['torch']}, {result['rounds']} turns.",
        "",
        line(heading),
        line(["---"] * len(heading)),
    ]
    for one in result["measurements"]:
        ratio = one["speedup"]
        times = f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        rates = [f"{rate:.0f}" for rate in one["images"]]
        step = f"{1 / ratio['median']:.2f}"
        lines.append(line([one["network"], str(one["batch"]), *rates, times, step]))
    return "\n".join(lines) + "\n"


@styled
def figure(result: dict[str, Any], path: Path) -> list[Path]:
    """Draw the ratios of a training step's time and of its saved bytes, network by network."""
    from matplotlib.lines import Line2D

    steps = [m for m in _of_networks(result) if m["what"] == "step"]
    steps = [m for m in steps if m["mode"] == m["base"]]
    kinds = list(dict.fromkeys((m["against"], m["mode"]) for m in steps))
    kinds.sort(key=lambda kind: kind[0] != "SORT")
    names = list(dict.fromkeys(m["name"] for m in steps))
    drawn, axes = canvas(1, 2, 9, 0.5 + 0.45 * len(names))
    time, kept = axes[0]
    handles = []
    for i, (against, mode) in enumerate(kinds):
        style: Any = {"color": OTHERS[i], "marker": "osD^"[i % 4], "markersize": 5}
        handles.append(Line2D([], [], ls="", label=f"{against}, {mode}", **style))
        for m in (m for m in steps if (m["against"], m["mode"]) == (against, mode)):
            y = names.index(m["name"]) + 0.18 * (i - (len(kinds) - 1) / 2)
            t = m["time"]
            spread = [[t["median"] - t["low"]], [t["high"] - t["median"]]]
            time.errorbar(t["median"], y, xerr=spread, capsize=2, **style)
            kept.plot(m["saved"][1] / m["saved"][0], y, **style)
    titles = "time of a training step", "bytes kept for the backward pass"
    for axis, title, ticks in zip(axes[0], titles, (names, [""] * len(names)), strict=True):
        axis.axvline(1, color=GREY, linewidth=1, zorder=0)
        axis.set_title(f"{title}, relative to the sum")
        axis.set_yticks(range(len(names)), ticks)
        axis.set_ylim(len(names) - 0.5, -0.5)
    drawn.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return save(drawn, path)
