"""The docs are correct: their code runs, and their tables are those of `results/`."""

import functools
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

from sortnet import cli
from sortnet.lab.experiments.results import CellResults, collect
from sortnet.lab.experiments.sizes import size
from sortnet.lab.runs import RunRecord
from sortnet.lab.runs.curves import Curve
from tools import small_tables
from tools.docs import FIGURES, PARTS, ROOT, draw, found, generated


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


def commands(page: Path) -> Iterator[str]:
    """Return the commands of a page, whole lines and inline code with flags, or of a docstring."""
    text = page.read_text()
    if page.suffix == ".py":
        lines = re.findall(r"^ *\$ (.*)$", text, re.MULTILINE)
    else:
        blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        lines = "".join(blocks).replace("\\\n", " ").split("\n")
        lines += re.findall(r"^\| `(sortnet [a-z][^`]*)`", text, re.MULTILINE)
        lines += re.findall(r"`(sortnet [a-z][^`]* --[^`]*)`", re.sub(r"\s+", " ", text))
        lines = [line for line in lines if line.startswith(("sortnet ", "torchrun "))]
    for line in lines:
        if match := re.search(r"\b(sortnet [a-z].*)", line.split(" && ")[0]):
            yield match[1]


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("sortnet/weights/*/*.md")]
PAGES += [
    *ROOT.glob("unfinished/*.md"),
    *ROOT.glob("sortnet/cli/*.py"),
    *ROOT.glob("examples/*.py"),
]
COMMANDS = [(page.name, line) for page in PAGES for line in sorted(set(commands(page)))]


def test_every_command_is_in_the_docs() -> None:
    assert {line.split()[1] for _, line in COMMANDS} == cli.COMMANDS.keys()


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_in_the_docs_have_these_arguments(
    page: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parse the command, but do not run it."""
    called: list[str] = []
    for name, command in cli.COMMANDS.items():

        @functools.wraps(command)
        def record(*_: object, command: str = name, **__: object) -> None:
            called.append(command)

        monkeypatch.setitem(cli.COMMANDS, name, record)
    arguments = shlex.split(line, comments=True)[1:]
    assert cli.main(arguments) == 0
    assert called == arguments[:1]


TABLES = [(p, line) for p, line in COMMANDS if p.endswith(".md") and "--results results" in line]


@pytest.mark.parametrize(("page", "line"), TABLES)
def test_reproduce_finds_the_runs_of_the_table(page: str, line: str) -> None:
    """Also on a processor with bfloat16, where ``--precision auto`` would train other runs."""
    experiment, *flags = shlex.split(line, comments=True)[2:]
    values = dict(zip(flags[::2], flags[1::2], strict=True))
    chosen = size(values["--size"], values.get("--precision", "bfloat16"))
    records = collect(experiment, chosen, None, ROOT / "results").records
    assert {each.run.id for each in records} == {each.run.id for each in found(experiment).records}


def test_further_measures_by_hand() -> None:
    """With SORT top-5 error is lower by 2, 3 and 4, training error higher by 1, 2 and 3."""
    results = collect("evidence", size("paper", "bfloat16"), 3)

    def record(cell: CellResults, seed: int) -> RunRecord:
        run, second = cell.run, "SORT" in cell.cell.row
        first = run.recipe.steps - run.recipe.sections[-1].steps  # still at the rate before
        train: Curve = {"step": [first, first + 1], "error": [90.0, 20.0 + second * (1 + seed)]}
        test = {"error": 40.0, "error5": 10.0 - second * (2 + seed), "loss": 1.0 + seed}
        return RunRecord(
            run,
            ROOT,
            ended="finished",
            steps=run.recipe.steps,
            test=test,
            curves={"train": train},
        )

    cells = tuple(
        replace(cell, records={seed: record(cell, seed) for seed in range(3)})
        for cell in results.cells
        if cell.cell.row in ("LeNet*", "LeNet*-SORT") and cell.cell.column == "CIFAR-100"
    )
    text = small_tables.further(replace(results, cells=cells))
    assert [row.strip("| ").split(" | ")[2:] for row in text.splitlines()[2:]] == [
        ["top-5 error, test (%)", "10.00", "7.00", "-3.00 [-5.48, -0.52]", "0.035", "0.07"],
        ["error, training (%)", "20.00", "22.00", "+2.00 [-0.48, +4.48]", "0.074", "0.074"],
    ]
