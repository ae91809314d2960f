"""Numbers that make no sense: one line that names the flag, exit code 2, and nothing written."""

import math
from dataclasses import fields
from pathlib import Path

import pytest

from sortnet import limits
from sortnet.cli import main
from sortnet.errors import UsageError
from sortnet.lab.recipes import LENET, Recipe, Section
from sortnet.lab.runs import Run
from sortnet.lab.training import TrainerOptions

WHOLE = ["-1", "-5", "1" + "0" * 30]
REAL = ["-1", "nan", "inf", "-inf", "1e300"]
ZERO = ["0"]
TRAIN = ["train", "lenet", "--precision", "float32"]
IMAGE = Path(__file__).parents[1] / "docs" / "op.md"  # numbers are checked before files
FLAGS = [
    (["info", "lenet"], "--num-classes", WHOLE + ZERO),
    (["info", "lenet"], "--size", WHOLE + ZERO),
    (["info", "wrn28"], "--width", WHOLE + ZERO),
    (TRAIN, "--size", WHOLE + ZERO),
    (["train", "wrn28"], "--width", WHOLE + ZERO),
    (TRAIN, "--scale", REAL + ZERO),
    (TRAIN, "--steps", WHOLE + ZERO),
    (TRAIN, "--epochs", REAL + ZERO),
    (TRAIN, "--rate", REAL + ZERO),
    (TRAIN, "--batch", WHOLE + ZERO),
    (TRAIN, "--decay", REAL),
    (TRAIN, "--warm-up", WHOLE),
    (TRAIN, "--clip", REAL + ZERO),
    (TRAIN, "--save-every", WHOLE + ZERO),
    (TRAIN, "--resume-from", WHOLE + ZERO),
    (TRAIN, "--keep", WHOLE + ZERO),
    (TRAIN, "--threads", [*WHOLE, "0", "100000"]),
    (TRAIN, "--seed", WHOLE),
    (TRAIN, "--validation", WHOLE),
    (TRAIN, "--evaluations", WHOLE),
    (["predict", str(IMAGE)], "--top", WHOLE + ZERO),
    (["transfer", "resnet20-cifar10"], "--per-class", WHOLE + ZERO),
    (["transfer", "resnet20-cifar10"], "--splits", WHOLE + ZERO),
    (["reproduce", "table1"], "--seeds", WHOLE + ZERO),
    (["compare", "lenet", "--data", "digits"], "--seeds", WHOLE + ZERO),
    (["compare", "lenet", "--data", "digits"], "--max-seeds", [*WHOLE, "0", "2"]),
    (["reproduce", "table1"], "--processes", WHOLE + ZERO),
    (["reproduce", "table1"], "--gpus", WHOLE + ZERO),
    (["reproduce", "table1"], "--cpus", WHOLE + ZERO),
    (["bench", "lenet"], "--rounds", WHOLE + ZERO),
    (["report", "."], "--port", [*WHOLE, "65536"]),
]


@pytest.mark.parametrize(("command", "flag", "values"), FLAGS)
def test_a_number_out_of_its_limits_is_one_line(
    command: list[str],
    flag: str,
    values: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in values:
        assert main([*command, flag, value]) == 2, value
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"sortnet: {flag} is "), captured.err
        assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_every_numeric_flag_is_in_the_table() -> None:
    """One that is added is added to the table and to the test above, too."""
    from sortnet.cli import COMMANDS, engines, flags

    numeric = {
        name
        for command in COMMANDS.values()
        for name, kind in command.__annotations__.items()
        if kind in (int, float, int | None, float | None)
    }
    for group in (flags.Choice, flags.Schedule, flags.Keeping, engines.Grid):
        numeric |= {
            f.name for f in fields(group) if f.type in (int, float, int | None, float | None)
        }
    tested = {flag.removeprefix("--") for _, flag, _ in FLAGS}
    assert {name.replace("_", "-") for name in numeric} == tested
    assert tested <= limits.LIMITS.keys()


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, "1", None, [1], 10**400, 1j])
def test_libraries_are_refused_the_same_numbers(value: object) -> None:
    for make in (
        lambda: Section(value, 1),  # type: ignore[arg-type]
        lambda: Section(0.1, value),  # type: ignore[arg-type]
        lambda: Recipe("r", LENET.sections, batch=value),  # type: ignore[arg-type]
        lambda: Recipe("r", LENET.sections, momentum=value),  # type: ignore[arg-type]
        lambda: TrainerOptions(keep=value),  # type: ignore[arg-type]
        lambda: Run("lenet", LENET, seed=value),  # type: ignore[arg-type]
        lambda: Run("resnet20", LENET, options={"eps": value}),
    ):
        with pytest.raises(UsageError, match=r"^--") as caught:
            make()
        assert "\n" not in str(caught.value)
