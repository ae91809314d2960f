"""The parts of README and docs that are generated from `results/`: ``make docs``."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sortnet import files
from sortnet.errors import UsageError
from sortnet.lab.experiments import results
from sortnet.lab.experiments.sizes import size
from sortnet.lab.report import benchmark_tables as cost
from sortnet.lab.report import claims_table as verdicts
from sortnet.lab.report import figures, tables
from sortnet.lab.report import learning_curves as learning
from tools import cards as card
from tools import chaos_table as chaos
from tools import oracle_table as correctness
from tools import scale_table as scale
from tools import survey_table as any_model

ROOT = Path(__file__).resolve().parents[1]
PARTS: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "cost": ("docs/cost.md", "cost.json", cost.markdown),
    "cost-compiled": ("docs/cost.md", "cost-compiled.json", cost.markdown),
    "models": ("docs/any-model.md", "models.json", any_model.markdown),
    "scale": ("docs/scale.md", "scale.json", scale.markdown),
    "summary": ("README.md", "cost.json", cost.summary),
    "accuracy": ("README.md", "recipes", tables.brief),
    "recipes": ("docs/results.md", "recipes", tables.markdown),
    "table1": ("docs/results.md", "table1", tables.so_far),
    "table2": ("docs/results.md", "table2", tables.so_far),
    "bilinear": ("docs/results.md", "bilinear", tables.so_far),
    "attempts": ("docs/results.md", "attempts", tables.markdown),
    "styles": ("docs/results.md", "styles", tables.so_far),
    "depth": ("docs/results.md", "depth", tables.so_far),
    "roots": ("docs/results.md", "roots", tables.so_far),
    "correctness": ("docs/correctness.md", "correctness.json", correctness.markdown),
    "chaos": ("docs/reliability.md", "chaos.json", chaos.markdown),
    "claims": ("docs/claims.md", "claims.json", verdicts.markdown),
    "rates": ("docs/deviations.md", "rates", tables.markdown),
}
"""By name: the page, a file in `results/` or an experiment, and what makes the one's part of the
other."""

FIGURES: dict[str, tuple[str, Callable[[Any, Path], list[Path]]]] = {
    "cost": ("cost.json", cost.figure),
    "growth": ("growth.json", figures.growth),
    "curves": ("recipes", learning.curves),
}
"""By name in `docs/`: what is drawn, and what draws it."""


def found(source: str) -> Any:  # noqa: ANN401
    """What `results/` has: a file, or the runs of an experiment at size mini."""
    if source.endswith(".json"):
        return files.read_json(ROOT / "results" / source)
    return results.collect(source, size("mini"), None, ROOT / "results")


def generated(name: str) -> tuple[Path, str]:
    """A page as it should be, with its part made anew."""
    page, source, make = PARTS[name]
    text = (ROOT / page).read_text()
    part = make(found(source))
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise UsageError(f"{page} has no place for {name}: it needs {begin} and {end}")
    return ROOT / page, pattern.sub(lambda _: f"{begin}\n{part}{end}", text)


def draw(name: str, path: Path) -> list[Path]:
    """Draw a figure of the docs, as SVG and as PNG."""
    source, drawing = FIGURES[name]
    return drawing(found(source), path)


def main() -> None:
    """Bring every page and figure up to date."""
    for name in PARTS:
        page, text = generated(name)
        page.write_text(text)
    for name in FIGURES:
        draw(name, ROOT / "docs" / name)
    figures.modules(ROOT / "docs/modules")
    card.write()


if __name__ == "__main__":
    main()
