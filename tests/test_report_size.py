"""A report of many long runs is small and quickly made, and shows every spike."""

import json
import re
import time
from pathlib import Path

from browser import Browser, assert_no_errors, drawn_lines
from hypothesis import given
from hypothesis import strategies as st
from made_runs import make, resnet

from sortnet.lab.report import page
from sortnet.lab.runs.curves import extremes


def test_fifty_runs_are_small_and_quick(browser: Browser, tmp_path: Path) -> None:
    root, names = tmp_path / "runs", [f"a class of number {i}" for i in range(100)]
    for seed in range(25):
        for fusion in ("sum", "sort"):
            run = resnet(fusion, seed, scale=1.0)
            make(root, run, classes=names, pictures=24)
    start = time.process_time()
    text = page.build([root])
    assert time.process_time() - start < 10
    assert len(text) < 5_000_000
    (tmp_path / "report.html").write_text(text)
    start = time.monotonic()
    browser.open((tmp_path / "report.html").as_uri())
    assert time.monotonic() - start < 10
    assert len(drawn_lines(browser)) == 2
    assert_no_errors(browser)


def test_a_row_for_every_step_keeps_its_spike(tmp_path: Path) -> None:
    directory = make(tmp_path, resnet("sum", 0, scale=1.0), every=1)
    path = directory / "metrics.jsonl"
    row = {"step": 64001, "split": "train", "loss": 4242.0, "error": 1.0}
    path.write_text(
        path.read_text().replace(
            '"step": 31415, "split": "train", "loss": ',
            '"step": 31415, "split": "train", "loss": 777',
        )
    )
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n" + '{"step": 64002, "spl')
    text = page.build([tmp_path])
    assert len(text) < 500_000
    content = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])
    gaps, losses = content["runs"][0]["curves"]["train loss"]
    assert max(losses[:-1]) > 7770
    assert losses[-1] == 4242
    assert sum(gaps) == 64001
    assert sum(gaps[: losses.index(max(losses[:-1])) + 1]) == 31415


numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200)


@given(numbers, st.integers(4, 40))
def test_thinning_keeps_ends_and_extremes(values: list[float], limit: int) -> None:
    steps = list(range(7, 7 + len(values)))
    kept, thinned = extremes(steps, values, limit)
    assert len(kept) <= limit
    assert kept == sorted(set(kept))
    assert [values[step - 7] for step in kept] == thinned
    assert (kept[0], kept[-1]) == (steps[0], steps[-1])
    assert (min(thinned), max(thinned)) == (min(values), max(values))
