"""The page of a report, in a real browser: what it shows is what the files say."""

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import (
    Browser,
    assert_no_errors,
    bounding_box,
    click,
    drawn_lines,
    texts,
    visible_steps,
)
from made_runs import make, resnet, write_json

from sortnet.lab.report import page
from sortnet.lab.runs import record


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two configurations of two seeds, one run that diverged and one that is not finished."""
    root = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        make(root, resnet("sum", seed), level=8.3)
        make(root, resnet("sort", seed), level=7.9)
    make(root, resnet("max", 0), ended="diverged", part=0.2)
    halted = make(root, resnet("sort", 2), ended=None, part=0.5)
    events = [("start", 0), ("stop", 1000), ("resume", 1000), ("rollback", 2000)]
    lines = [
        json.dumps({"time": 1.79e9 + 900 * i, "event": name, "step": step})
        for i, (name, step) in enumerate(events)
    ]
    (halted / "events.jsonl").write_text("\n".join(lines) + "\n")
    claim = {"name": "extra-time", "place": "abstract", "text": "Less than 5 % more time."}
    write_json(
        root / "claims.json", [claim | {"verdict": "holds", "figures": "1.04 [1.03, 1.05]"}]
    )
    return root


@pytest.fixture
def shown(root: Path, browser: Browser, tmp_path: Path) -> Browser:
    """The page of these runs, opened."""
    page.write([root], tmp_path / "report.html", "Some runs")
    browser.open((tmp_path / "report.html").as_uri())
    return browser


def rows_of(root: Path, id: str, split: str = "train") -> dict[int, dict[str, Any]]:
    lines = (root / id / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["step"]: row for row in rows if row["split"] == split}


def test_the_page_is_quiet(shown: Browser) -> None:
    assert_no_errors(shown)
    policy = shown.run("document.querySelector('meta[http-equiv]').content")
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_results_are_those_of_the_files(shown: Browser, root: Path) -> None:
    errors, plain = (
        [
            json.loads((root / resnet(fusion, i).id / "result.json").read_text())["test"]["error"]
            for i in range(2)
        ]
        for fusion in ("sort", "sum")
    )
    mean, half = sum(errors) / 2, abs(errors[0] - errors[1]) / 2
    cells = shown.run(
        "[...document.querySelectorAll('#results .group')].map(r => [...r.cells]"
        ".map(c => c.innerText.trim()))"
    )
    (sort,) = [row for row in cells if row[0].startswith("ResNet-20-SORT")]
    assert "2 of 3 seeds ended" in sort[0]
    assert sort[1] == f"{mean:.2f} ± {half * math.sqrt(2):.2f}"
    assert sort[3] == f"\u2212{sum(plain) / 2 - mean:.2f}\n2 seeds"
    assert sort[4].split("\n") == ["7.35 Table 2", "7.14 Table 1"]
    assert sort[5].split("\n") == [f"{mean - 7.35:+.2f}", f"{mean - 7.14:+.2f}"]
    assert sort[7:9] == ["\u00d7 0.1", "6,400"]
    members = texts(shown, "#results .member td:nth-child(2)")
    assert {f"{error:.2f}" for error in errors} <= set(members)
    assert "10 % of the paper" in shown.run("document.querySelector('#results').innerText")
    assert any("diverged at step 1,280 in layer1.0" in row[0] for row in cells)


def test_pointing_at_the_chart_reads_off_the_rows(shown: Browser, root: Path) -> None:
    click(shown, "input[value='train loss']")
    click(shown, "#set-mean")
    left, top, width, height = bounding_box(shown, "#chart")
    shown.page.mouse.move(left + 0.4 * width, top + height / 2)
    title = texts(shown, ".tip p")[0]
    step = int(re.sub(r"\D", "", title))
    assert title.startswith("Train loss at step")
    read = dict(zip(texts(shown, ".tip bdi"), texts(shown, ".tip b"), strict=True))
    expected = {
        f"{run.title}, seed {run.seed}": f"{rows_of(root, run.id)[step]['loss']:.5g}"
        for run in [*(resnet("sum", i) for i in range(2)), *(resnet("sort", i) for i in range(3))]
    }
    assert read == expected


def test_the_table_of_a_curve_is_that_of_the_rows(shown: Browser, root: Path) -> None:
    click(shown, "#set-mean")
    assert visible_steps(shown) == (100, 6300)
    cells = shown.run(
        "[...document.querySelectorAll('#curves tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    column = cells[0].index("ResNet-20, seed 1")
    rows = rows_of(root, resnet("sum", 1).id, "validation")
    told = {int(row[0].replace(",", "")): row[column] for row in cells[1:]}
    exact = {step: text for step, text in told.items() if step in rows}
    assert len(exact) > 5
    assert exact == {step: f"{rows[step]['error']:.5g}" for step in exact}


def test_runs_are_switched_on_and_off(shown: Browser) -> None:
    assert drawn_lines(shown) == ["mean 0", resnet("max", 0).id, "mean 2"]
    assert shown.run("document.querySelectorAll('#chart .band').length") == 2
    click(shown, "#set-mean")
    runs = [resnet("sum", 0).id, resnet("sum", 1).id]
    assert [line for line in drawn_lines(shown) if line in runs] == runs
    click(shown, f".legend [data-run='{runs[1]}']")
    assert runs[0] in drawn_lines(shown)
    assert runs[1] not in drawn_lines(shown)
    assert shown.run("document.querySelector('.legend [data-group=\"0\"]').indeterminate")
    click(shown, ".legend .head button:last-child")
    assert drawn_lines(shown) == []
    assert "No run is selected." in texts(shown, "#curves .quiet")
    click(shown, ".legend .head button:nth-child(2)")
    assert len(drawn_lines(shown)) == 6


def test_zoom_by_drag_wheel_and_button(shown: Browser) -> None:
    whole = visible_steps(shown)
    left, top, width, height = bounding_box(shown, "#chart")
    y = top + height / 2
    shown.drag(left + 0.3 * width, left + 0.5 * width, y)
    near = visible_steps(shown)
    assert whole[0] < near[0] < near[1] < whole[1]
    shown.wheel(left + 0.4 * width, y, -120)
    nearer = visible_steps(shown)
    assert near[0] < nearer[0] < nearer[1] < near[1]
    click(shown, "[aria-label='Zoom out']")
    assert visible_steps(shown)[1] > nearer[1]
    click(shown, "[aria-label='Show all steps']")
    assert visible_steps(shown) == whole
    assert_no_errors(shown)


def test_a_wheel_that_scrolls_past_leaves_the_chart_alone(shown: Browser) -> None:
    left, top, width, height = bounding_box(shown, "#chart")
    whole = visible_steps(shown)
    before = shown.run("scrollY")
    shown.wheel(left + width / 2, top + height / 2, 200)
    shown.until(lambda: shown.run("scrollY") > before)
    assert visible_steps(shown) == whole


def test_everything_works_from_the_keyboard(shown: Browser, root: Path) -> None:
    for _ in range(40):
        shown.key("Tab")
        if shown.run("document.activeElement.id") == "chart":
            break
    assert shown.run("document.activeElement.id") == "chart"
    whole = visible_steps(shown)
    shown.key("End")
    shown.key("ArrowLeft")
    said = shown.run("document.querySelector('.plot [aria-live]').textContent")
    assert re.search(r"Validation error, %, at step [\d,]+", said)
    assert "ResNet-20-SORT" in said
    shown.key("+")
    near = visible_steps(shown)
    assert near[1] - near[0] < whole[1] - whole[0]
    shown.key("Shift+ArrowLeft")
    assert visible_steps(shown)[0] < near[0]
    shown.key("Escape")
    assert visible_steps(shown) == whole
    shown.run("document.querySelector('input[name=metric]:checked').focus()")
    shown.key("ArrowRight")
    assert shown.run("document.querySelector('input[name=metric]:checked').value") == "train loss"
    assert "train loss" in shown.run("document.getElementById('chart').getAttribute('aria-label')")


def test_every_control_and_picture_has_a_name(shown: Browser) -> None:
    nameless = shown.run(
        "[...document.querySelectorAll('input, button, select, img, canvas, [tabindex], table')]"
        ".filter(e => !(e.labels?.[0]?.innerText || e.getAttribute('aria-label') || e.alt"
        " || e.caption?.textContent || e.innerText)).map(e => e.outerHTML)"
    )
    assert nameless == []


def test_smoothing_and_logarithms(shown: Browser) -> None:
    click(shown, "input[value='train error']")
    click(shown, "#set-mean")

    def turns() -> int:
        """How often the first curve turns up or down."""
        path = shown.run("document.querySelector('#chart .line .curve').getAttribute('d')")
        y = [float(point.split()[1]) for point in path[1:].split("L")]
        slopes = [b > a for a, b in pairwise(y) if a != b]
        return sum(a != b for a, b in pairwise(slopes))

    rough = turns()
    shown.run("document.getElementById('smoothing').focus()")
    shown.key("End")
    assert shown.run("document.getElementById('smoothing').value") == "100"
    assert turns() < rough / 2
    linear = texts(shown, "#chart .axes text")
    click(shown, "#set-log")
    assert texts(shown, "#chart .axes text") != linear
    assert_no_errors(shown)


def test_light_dark_phone_and_print(shown: Browser) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = shown.run(background)
    shown.page.emulate_media(color_scheme="dark")
    assert shown.run(background) != light
    shown.page.emulate_media(media="print")
    controls = "getComputedStyle(document.querySelector('.controls')).display"
    assert shown.run(controls) == "none"
    assert shown.run("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
    shown.page.emulate_media(color_scheme="light", media="screen")
    for width in (320, 375, 768):
        shown.size(width)
        shown.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
        shown.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        assert shown.run("document.documentElement.scrollWidth") == width
        assert shown.run("document.getElementById('chart').viewBox.baseVal.width") <= width
    assert_no_errors(shown)


def test_what_went_wrong_is_shown_as_pictures_and_counts(shown: Browser, root: Path) -> None:
    id = resnet("sort", 1).id
    shown.run(
        f"(e => {{ e.value = {json.dumps(id)}; e.dispatchEvent(new Event('change')); }})"
        "(document.getElementById('answers-run'))"
    )
    confusion = json.loads((root / id / "result.json").read_text())["confusion"]
    cells = texts(shown, ".confusion tbody td")
    assert cells == [f"{count}" if count else "·" for line in confusion for count in line]
    mistakes = json.loads((root / id / "mistakes.json").read_text())
    pictures = shown.run(
        "[...document.querySelectorAll('.mistakes img')].map(e => [e.alt, e.src])"
    )
    assert [source.partition(",")[2] for _, source in pictures] == [m["png"] for m in mistakes]
    assert "aeroplane, predicted as car" in pictures[0][0]
    widths = "[...document.querySelectorAll('.mistakes img')].map(e => e.naturalWidth)"
    assert set(shown.run(widths)) == {32}


def test_stops_restarts_claims_and_differences(shown: Browser) -> None:
    halted = resnet("sort", 2).id
    (who,) = [text for text in texts(shown, ".bars .who") if halted in text]
    assert "running, 50 %, resumed once" in who
    marks = shown.run(
        "[...document.querySelectorAll('.bars li')].map(e => [e.innerText, "
        "[...e.querySelectorAll('.mark')].map(m => m.getAttribute('class').slice(5))])"
    )
    (own,) = [classes for text, classes in marks if halted in text]
    assert own == ["start", "stop", "start", "failure"]
    assert texts(shown, "#claims .verdict") == ["✓ holds"]
    assert texts(shown, "#settings thead th")[:2] == ["configuration", "fusion"]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stored records of two datasets; those of SVHN have no validation split."""
    root, results = tmp_path_factory.mktemp("many"), tmp_path_factory.mktemp("results")
    for data, level in (("cifar10", 8.0), ("svhn", 2.0)):
        for network in ("resnet20", "resnet32"):
            for gate in (None, "zero"):
                run = replace(resnet("sort", 0, network=network), data=data)
                run = replace(run, recipe=replace(run.recipe, gate=gate, warm_up=30 * bool(gate)))
                run = replace(run, name="gated" if gate else "", validation=0)
                make(root, run, every=640, level=level + len(network + str(gate)) / 10)
    for source in record.find_all(root):
        found = record.read(source)
        if found.run.data == "svhn":
            found = replace(found, curves={"train": found.curves["train"]})
        record.write(found, results)
    page.write([results], results / "report.html")
    return results


def test_many_stored_runs_are_grouped_and_filtered_by_data_set(
    many: Path, browser: Browser
) -> None:
    browser.open((many / "report.html").as_uri())
    assert texts(browser, "#results h3") == ["cifar10", "svhn"]
    missing = "trained without a validation split, or too short: ResNet-20-SORT"
    assert missing in texts(browser, "#curves .quiet")[0]
    click(browser, "input[name=data][value=svhn]")
    assert "4 runs of 4 configurations" in texts(browser, ".lead")[0]
    errors = [float(text) for text in texts(browser, "#results .group td:nth-child(2)")]
    assert len(errors) == 4
    assert max(errors) < 5
    assert "No run has a validation error" in texts(browser, "#curves .quiet")[0]
    click(browser, "input[name=metric][value='train loss']")
    assert len(drawn_lines(browser)) == 4
    click(browser, "input[name=data][value='']")
    assert len(drawn_lines(browser)) == 8
    assert_no_errors(browser)


def test_tables_are_sorted_by_a_click_and_fit_the_screen(many: Path, browser: Browser) -> None:
    browser.open((many / "report.html").as_uri())
    browser.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") == 1280
    wide = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"
    assert browser.page.locator(".scroll").evaluate_all(wide) == []
    cells = "#results .scroll:first-of-type .group td:nth-child(2)"

    def errors() -> list[float]:
        return [float(text) for text in texts(browser, cells)][:4]

    heading = "#results th:nth-child(2) .sort"
    click(browser, heading)
    assert errors() == sorted(errors())
    assert browser.page.locator("#results th[aria-sort]").count() == 1
    click(browser, heading)
    assert errors() == sorted(errors(), reverse=True)
    assert len(set(errors())) == 4
