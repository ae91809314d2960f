"""Modules import only from modules earlier in the order below; the library never from the lab."""

import ast
from pathlib import Path

import pytest

import sortnet

LIBRARY = ["errors", "limits", "files", "patterns", "fusion", "blocks", "heads", "networks"]
LIBRARY += ["surgery", "modelspec", "pretrained", "export", "timm"]
LAB = ["paper", "statistics", "sequential", "data", "recipes", "training", "runs", "transfer"]
LAB += ["measure", "compare", "sweep", "experiments", "claims", "report"]
ORDER = [*LIBRARY, *(f"lab.{name}" for name in LAB), "cli"]
PACKAGE = Path(sortnet.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def named(parts: tuple[str, ...]) -> str:
    """Return the entry of `ORDER` for a dotted name: its first part, or two parts in the lab."""
    return ".".join(parts[:2]) if parts[0] == "lab" else parts[0]


def entry(path: Path) -> str:
    return named(path.relative_to(PACKAGE).with_suffix("").parts)


def imported(path: Path) -> set[str]:
    """Return the entries of `ORDER` that a file imports, at the top or inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            module = node.module or ""
            names |= {f"{module}.{alias.name}" for alias in node.names}
    parts = [tuple(name.split(".")) for name in names]
    return {named(p[1:]) for p in parts if p[0] == "sortnet" and len(p) > 1} & set(ORDER)


def test_every_file_is_in_the_order() -> None:
    outside = {"__init__", "__main__", "lab.__init__"}
    assert {entry(path) for path in FILES} - outside == set(ORDER)


@pytest.mark.parametrize("path", [p for p in FILES if entry(p) in ORDER], ids=lambda p: p.stem)
def test_imports_only_from_above(path: Path) -> None:
    above = set(ORDER[: ORDER.index(entry(path)) + 1])
    assert imported(path) <= above


def test_only_the_command_line_imports_tyro() -> None:
    users = {entry(path) for path in FILES if "import tyro" in path.read_text()}
    assert users == {"cli"}
