"""The parts of README and docs that are generated from `results/`: ``make docs``."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sortnet import files
from sortnet.errors import UsageError
from sortnet.lab.experiments import results
from sortnet.lab.experiments.sizes import size
from sortnet.lab.report import (
    benchmark_tables,
    claims_table,
    figures,
    learning_curves,
    tables,
)
from tools import cards, small_tables, survey_table, terms

ROOT = Path(__file__).resolve().parents[1]
PARTS: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "cost": ("docs/cost.md", "cost.json", benchmark_tables.markdown),
    "cost-compiled": ("docs/cost.md", "cost-compiled.json", benchmark_tables.markdown),
    "cost-bfloat16": ("docs/cost.md", "cost-bfloat16.json", benchmark_tables.markdown),
    **{
        name: ("docs/cost.md", f"{name}.json", benchmark_tables.training_speed)
        for name in ("against-pytorch", "against-pytorch-float32", "against-float32")
    },
    "finetuned": ("docs/compare.md", "finetuned.json", small_tables.comparison),
    "models": ("docs/any-model.md", "models.json", survey_table.markdown),
    "scale": ("docs/scale.md", "scale.json", small_tables.scale),
    "summary": ("README.md", "cost.json", benchmark_tables.summary),
    "accuracy": ("README.md", "recipes", tables.brief),
    "evidence": ("docs/results.md", "evidence", tables.completed),
    "further": ("docs/results.md", "evidence", small_tables.further),
    "terms": ("docs/results.md", "terms.json", terms.table),
    "recipes": ("docs/results.md", "recipes", tables.markdown),
    "table1": ("docs/results.md", "table1", tables.completed),
    "table2": ("docs/results.md", "table2", tables.completed),
    "bilinear": ("docs/results.md", "bilinear", tables.completed),
    "attempts": ("docs/results.md", "attempts", tables.markdown),
    "styles": ("docs/results.md", "styles", tables.completed),
    "depth": ("docs/results.md", "depth", tables.completed),
    "roots": ("docs/results.md", "roots", tables.completed),
    "precision": ("docs/results.md", "precision", tables.markdown),
    "correctness": ("docs/correctness.md", "correctness.json", small_tables.oracle),
    "chaos": ("docs/reliability.md", "chaos.json", small_tables.chaos),
    "claims": ("docs/claims.md", "claims.json", claims_table.markdown),
    "rates": ("docs/deviations.md", "rates", tables.markdown),
}
"""By name: the page, a file in `results/` or an experiment, and the function that renders it."""

FIGURES: dict[str, tuple[str, Callable[[Any, Path], list[Path]]]] = {
    "cost": ("cost.json", benchmark_tables.figure),
    "growth": ("growth.json", figures.growth),
    "curves": ("recipes", learning_curves.curves),
    "evidence": ("evidence", learning_curves.curves),
}
"""By name in `docs/`: the source, and the function that draws it."""


def found(source: str) -> Any:  # noqa: ANN401
    """Read a file of `results/`, or the runs of an experiment at the size they were trained at."""
    if source.endswith(".json"):
        return files.read_json(ROOT / "results" / source)
    if source == "evidence":
        return results.collect(source, size("paper", "bfloat16"), 3, ROOT / "results")
    return results.collect(source, size("mini"), None, ROOT / "results")


def generated(name: str) -> tuple[Path, str]:
    """Return a page with its part generated again."""
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
    cards.write()


if __name__ == "__main__":
    main()
