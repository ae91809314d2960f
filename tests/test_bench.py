"""The benchmark as a command: what it measures, writes, draws and refuses."""

import json
import re
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from sortnet.cli import main
from sortnet.lab.experiments.benchmark import CASES, BenchmarkVariant, time_in_turns
from sortnet.lab.measure import machine_peak, peak_bytes, ratio, saved_bytes, side_by_side
from sortnet.lab.report.benchmark_tables import tables
from sortnet.networks import NETWORKS


def test_every_network_of_the_paper_is_measured() -> None:
    assert set(CASES) == set(NETWORKS)


def test_bench_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, drawn = tmp_path / "new" / "cost.json", tmp_path / "cost.png"
    flags = ["--rounds", "2", "--no-parts", "--against", "naive", "--precision", "float32"]
    assert main(["bench", "lenet", *flags, "--json", str(written), "--figure", str(drawn)]) == 0
    result = json.loads(written.read_text())
    steps = {m["against"]: m for m in result["measurements"] if m["what"] == "step"}
    assert set(steps) == {"SORT", "naive"}
    assert steps["SORT"]["saved"][0] >= steps["SORT"]["saved"][1] > 1e6
    assert 0 < steps["SORT"]["arithmetic"] < 2
    assert f"{steps['SORT']['time']['median']:.3f}" in capsys.readouterr().out
    assert result["machine"]["torch"] == torch.__version__
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert list(written.parent.iterdir()) == [written]


def test_compiling_pays_where_the_interval_says_so() -> None:
    stored = json.loads((Path(__file__).parents[1] / "results/cost-compiled.json").read_text())
    for name, times, _, pays in tables(stored)["When compiling pays"][1]:
        _, low, high = map(float, re.findall(r"[\d.]+", times))
        assert pays.endswith("steps") == (high < 1), name
        assert (pays == "never") == (low > 1), name


def test_a_users_model_is_measured_like_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = """
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem, self.conv = nn.Conv2d(3, 4, 3, 8), nn.Conv2d(4, 4, 3, padding=1)
                self.fc = nn.Linear(4, 3)

            def forward(self, x):
                x = self.stem(x)
                return self.fc((x + self.conv(x)).mean((2, 3)))
    """
    (tmp_path / "benched_model.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    written = tmp_path / "cost.json"
    flags = ["--rounds", "1", "--no-parts", "--json", str(written)]
    assert main(["bench", "benched_model:Net", *flags]) == 0
    steps = [m for m in json.loads(written.read_text())["measurements"] if m["what"] == "step"]
    assert [(m["name"], m["against"]) for m in steps] == [("benched_model:Net", "SORT")]
    assert steps[0]["saved"][1] > 0
    assert "benched_model:Net" in capsys.readouterr().out


def test_turns_find_what_is_twice_as_slow() -> None:
    slow, fast = side_by_side([lambda: time.sleep(0.02), lambda: time.sleep(0.01)], 11)
    found = ratio(slow, fast)
    assert found.low <= found.median <= found.high
    assert 1.5 < found.median < 2.5


def test_what_is_compiled_stands_beside_both_sums() -> None:
    naps = {"sum, compiled": 0.02, "sum": 0.01, "SORT": 0.01}
    contestants = [BenchmarkVariant(name, torch.add) for name in naps]
    found = time_in_turns(contestants, lambda c: time.sleep(naps[c.name]), 9, bases=2)
    ratios = {each.base.name: each.time.median for each in found}
    assert {each.variant.name for each in found} == {"SORT"}
    assert ratios["sum, compiled"] < 0.75 < ratios["sum"]


def test_bytes_are_counted_once() -> None:
    """A linear layer keeps its input, ReLU its output, which is the next layer's input."""
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    assert saved_bytes(model, torch.randn(7, 10)) == 4 * 7 * (10 + 20)


def test_peak_is_the_most_held_at_once() -> None:
    def function() -> None:
        for _ in range(3):
            torch.zeros(1000) + torch.ones(1000)  # the two and their sum

    assert 12_000 <= peak_bytes(function) < 13_000


def test_the_machine_has_a_peak() -> None:
    peak = machine_peak(torch.device("cpu"), repeats=1)
    assert peak.multiply_adds > 1e8
    assert peak.bytes > 1e8


def test_an_accelerator_is_waited_for_and_asked_for_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Through `torch.accelerator`, for any kind of device; not for functions on the CPU."""
    calls: list[str] = []
    values = {"is_available": True, "memory_allocated": 10, "max_memory_allocated": 35}

    def answer(name: str, *_device: object) -> int | None:
        calls.append(name)
        return values.get(name)

    for name in ("synchronize", "reset_peak_memory_stats", *values):
        monkeypatch.setattr(torch.accelerator, name, partial(answer, name))
    assert peak_bytes(lambda: calls.append("run"), "xpu") == 25
    memory = ["reset_peak_memory_stats", "memory_allocated", "run", "max_memory_allocated"]
    assert calls == memory
    calls.clear()
    side_by_side([lambda: calls.append("run")], 2)
    assert calls == ["run", "is_available", "synchronize"] * 2


@pytest.mark.parametrize(("other", "rows"), [("pytorch", 1), ("float32", 2)])
def test_another_way_to_train(
    other: str, rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "speed.json"
    flags = ["--against", other, "--rounds", "2", "--json", str(written)]
    flags += ["--precision", "bfloat16"]
    assert main(["bench", "lenet", *flags]) == 0
    found = json.loads(written.read_text())["measurements"]
    assert [one["network"] for one in found] == ["LeNet*", "LeNet*-SORT"][:rows]
    for one in found:
        assert min(one["images"]) > 0
        low, median, high = (one["speedup"][key] for key in ("low", "median", "high"))
        assert 0 < low <= median <= high
    assert "LeNet*" in capsys.readouterr().out
    assert main(["bench", "resnet18", *flags]) == 2
    assert "32 x 32" in capsys.readouterr().err


def test_float32_against_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "lenet", "--against", "float32", "--precision", "float32"]) == 2
    assert "float32 against float32" in capsys.readouterr().err
