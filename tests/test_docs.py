"""The docs are correct: their code runs, and their tables are those of `results/`."""

import re
from pathlib import Path

import matplotlib
import pytest

from tools.docs import FIGURES, PARTS, ROOT, draw, generated


@pytest.mark.parametrize("name", PARTS)
def test_pages_are_up_to_date(name: str) -> None:
    page, text = generated(name)
    assert page.read_text() == text, "run `make docs`"


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_up_to_date(name: str, tmp_path: Path) -> None:
    kept = (ROOT / "docs" / f"{name}.svg").read_text()
    if f"Matplotlib v{matplotlib.__version__}," not in kept:
        pytest.skip("another version of matplotlib draws the same figure in other bytes")
    drawn, _ = draw(name, tmp_path / name)
    assert drawn.read_text() == kept, "run `make docs`"


@pytest.mark.parametrize("page", ["README.md", "docs/op.md", "docs/any-model.md"])
def test_code_in_the_docs_runs(page: str) -> None:
    """Run all code blocks of a page, one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
