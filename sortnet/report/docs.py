"""The parts of README and docs that are generated from `results/`: ``make docs``."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sortnet.report import any_model, card, cost, figures, learning, scale, tables

ROOT = Path(__file__).resolve().parents[2]
RECIPES = "results/recipes-mini.json"
PARTS: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "cost": ("docs/cost.md", "results/cost.json", cost.markdown),
    "models": ("docs/any-model.md", "results/models.json", any_model.markdown),
    "scale": ("docs/scale.md", "results/scale.json", scale.markdown),
    "summary": ("README.md", "results/cost.json", cost.summary),
    "accuracy": ("README.md", RECIPES, tables.brief),
    "recipes": ("docs/results.md", RECIPES, tables.markdown),
    "attempts": ("docs/results.md", "results/attempts-mini.json", tables.markdown),
}
"""By name: the page, the results, and what makes the one's part of the other."""


def generated(name: str) -> tuple[Path, str]:
    """A page as it should be, with its part made anew."""
    page, source, make = PARTS[name]
    text = (ROOT / page).read_text()
    part = make(json.loads((ROOT / source).read_text()))
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{page} has no place for {name}: it needs {begin} and {end}")
    return ROOT / page, pattern.sub(lambda _: f"{begin}\n{part}{end}", text)


def main() -> None:
    """Bring every page and figure up to date."""
    for name in PARTS:
        page, text = generated(name)
        page.write_text(text)
    cost.figure(json.loads((ROOT / "results/cost.json").read_text()), ROOT / "docs/cost.svg")
    figures.growth(json.loads((ROOT / "results/growth.json").read_text()), ROOT / "docs/growth")
    figures.modules(ROOT / "docs/modules")
    learning.curves(json.loads((ROOT / RECIPES).read_text()), ROOT / "docs/curves")
    card.write()


if __name__ == "__main__":
    main()
