"""A report of hostile, damaged and unfinished runs, and its server."""

import html
import json
import signal
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from browser import Browser, assert_no_errors, bounding_box, click, texts, visible_steps
from made_runs import make, resnet, write_json

from sortnet.lab.report import page, serve
from sortnet.lab.report.serve import Handler, Server

HOSTILE = [
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1>",
    "'\"><script>window.hacked=1</script>",
    "<!--<script>window.hacked=1",
    "]]><script>window.hacked=1</script>",
    "javascript:window.hacked=1",
    "${window.hacked=1}",
    "`+(window.hacked=1)+`",
    "</title><script>window.hacked=1</script>",
    "</style><script>window.hacked=1</script>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'>",
    "<a href=javascript:window.hacked=1>x</a>",
    "<base href=https://example.com/>",
    "<meta http-equiv=refresh content=0;url=https://example.com>",
    "<style>@import 'https://example.com'</style>",
    "\u2028window.hacked=1//",
    "\u202egnp.exe",
    "\ud800 a lone surrogate",
    "__proto__",
]


def test_no_text_of_a_run_is_ever_markup(browser: Browser, tmp_path: Path) -> None:
    run = replace(resnet("sort", 0), data=HOSTILE[1], init=HOSTILE[0], freeze=(HOSTILE[2],))
    root = tmp_path / "<img src=x onerror=window.hacked=1>"
    directory = make(root, replace(run, data="d"), classes=HOSTILE, pictures=20)
    make(root, resnet("sum", 0), classes=HOSTILE)
    stored = json.loads((directory / "run.json").read_text())
    stored["run"] = json.loads(json.dumps(run.as_json()))
    stored["machine"] = {text: text for text in HOSTILE}
    write_json(directory / "run.json", stored)
    (directory / "events.jsonl").write_text(
        "".join(
            json.dumps({"time": 1.0 + i, "event": text, "step": i, text: text}) + "\n"
            for i, text in enumerate(HOSTILE)
        )
    )
    write_json(
        root / "claims.json",
        [{"name": t, "place": t, "text": t, "figures": t, "verdict": "holds"} for t in HOSTILE],
    )
    broken = root / HOSTILE[2]
    broken.mkdir()
    (broken / "run.json").write_text(json.dumps({"run": {HOSTILE[1]: 1}}))
    page.write([root], tmp_path / "report.html", HOSTILE[9])
    browser.open((tmp_path / "report.html").as_uri())
    browser.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    left, top, width, height = bounding_box(browser, "#chart")
    browser.page.mouse.move(left + width / 2, top + height / 2)
    assert_no_errors(browser)
    assert browser.run("window.hacked === undefined")
    assert (
        browser.run("document.querySelectorAll('script, style, iframe, base, meta').length") == 8
    )
    assert browser.run("document.title") == HOSTILE[9]
    assert [html.unescape(t) for t in texts(browser, "h1")] == [HOSTILE[9]]
    classes = browser.run(
        "[...document.querySelectorAll('.confusion tbody th')].map(e => e.textContent)"
    )
    assert classes == HOSTILE


WRONG = [
    json.dumps({"run": {**resnet("sum", 0).as_json(), name: [1]}})
    for name in ("network", "data", "fusion", "seed", "options", "recipe")
]
DAMAGE = {
    "run.json": ["", "[]", "{}", '{"run": []}', *WRONG, "[" * 100_000],
    "metrics.jsonl": ["{\n", "[]\n", '{"step": "1"}\n', "\xff\n", '{"step": 1e999}\n'],
    "events.jsonl": ["nothing\n", '{"event": "start"}\n', '{"time": "now", "event": "a"}\n'],
    "result.json": ["{", "[1]", '{"ended": "finished"}', '{"ended": "finished", "steps": 1, '
                    '"seconds": 1, "test": {"error": "low"}}'],
    "mistakes.json": ["{", "3", '[{"png": "PHN2Zz4="}]'],
}  # fmt: skip


def test_damaged_files_are_listed_and_harm_nothing_else(browser: Browser, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    damaged: list[Path] = []
    make(root, resnet("sort", 99))
    for name, texts_of in DAMAGE.items():
        for text in texts_of:
            directory = make(root, resnet("sum", len(damaged)), every=640)
            (directory / name).write_bytes(text.encode("latin-1"))
            damaged.append(directory / name)
    (root / "claims.json").write_text('[{"name": "a", "verdict": "perhaps"}]')
    (root / "cost.json").write_text('{"measurements": 3}')
    page.write([root], tmp_path / "report.html")
    browser.open((tmp_path / "report.html").as_uri())
    listed = dict(
        zip(texts(browser, "#faults tbody th"), texts(browser, "#faults td"), strict=True)
    )
    expected = [*damaged, root / "claims.json", root / "cost.json"]
    assert set(listed) == {str(path) for path in expected}
    assert all(listed.values())
    whole = len(damaged) - len(DAMAGE["run.json"]) + 1
    assert f"{whole} runs of 2 configurations" in texts(browser, ".lead")[0]
    assert_no_errors(browser)


LARGE = ["Infinity", "-Infinity", "NaN", "1.7976931348623157e308", "-1.7976931348623157e308"]


def test_infinite_numbers_do_not_lose_the_page(browser: Browser, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for seed, text in enumerate([*LARGE, "1e308"]):
        for fusion in ("sum", "sort"):
            directory = make(root, resnet(fusion, seed), every=640)
            with (directory / "metrics.jsonl").open("a") as file:
                for split in ("train", "validation"):
                    row = {"step": 6400, "split": split, **dict.fromkeys(("loss", "error"), 0)}
                    file.write(
                        json.dumps(row).replace("0,", f"{text},").replace("0}", f"{text}}}")
                    )
                    file.write("\n")
            result = json.loads((directory / "result.json").read_text())
            result["test"]["error5"] = result["seconds"] = -12345
            stored = json.dumps(result).replace("-12345", text)
            (directory / "result.json").write_text(stored)
    for name in ("claims.json", "cost.json"):
        (root / name).write_text('[{"name": Infinity}]')
    page.write([root], tmp_path / "report.html")
    browser.open((tmp_path / "report.html").as_uri())
    assert "12 runs of 2 configurations" in texts(browser, ".lead")[0]
    assert_no_errors(browser)


def test_no_runs_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^no runs in .*: a run has a run.json.*$"):
        page.build([tmp_path])
    with pytest.raises(ValueError, match="missing is not a directory"):
        page.build([tmp_path / "missing"])


def test_watching_keeps_up_and_keeps_the_view(browser: Browser, tmp_path: Path) -> None:
    directory = make(tmp_path, resnet("sort", 0), ended=None, part=0.5)
    script = "import sys; from pathlib import Path; from sortnet.lab.report.serve import serve"
    script += "; serve([Path(sys.argv[1])], ready=lambda url: print(url, flush=True))"
    command = [sys.executable, "-c", script, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    browser.open(process.stdout.readline().strip())
    click(browser, "input[value='train loss']")
    left, top, width, height = bounding_box(browser, "#chart")
    browser.drag(left + 0.3 * width, left + 0.5 * width, top + height / 2)
    view = visible_steps(browser)
    row = {"step": 6400, "split": "train", "loss": 0.125, "error": 1.0}
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    browser.until(lambda: "running, 100 %" in "".join(texts(browser, ".bars .who")))
    assert (
        browser.run("document.querySelector('input[name=metric]:checked').value") == "train loss"
    )
    assert visible_steps(browser) == view
    click(browser, "[aria-label='Show all steps']")
    assert visible_steps(browser)[1] == 6400
    assert browser.complaints == []
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=30)
    assert (process.returncode, complaint) == (0, "")
    browser.until(lambda: "the server has stopped" in "".join(texts(browser, "#live")))


def reset(address: tuple[str, int], said: bytes) -> None:
    """Say something and hang up the hard way."""
    with socket.create_connection(address) as connection:
        connection.sendall(said)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_the_server_outlives_silent_many_and_rude_visitors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, resnet("sort", 0))
    monkeypatch.setattr(serve, "CONNECTIONS", 4)
    monkeypatch.setattr(Handler, "timeout", 3.0)
    with Server([tmp_path], 0) as server:
        address = (serve.HOST, server.server_address[1])
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            for said in (b"", b"GET /", b"GET / HTTP/1.0\r\nHost: ", b"GET / HTTP/1.0\r\n\r\n"):
                reset(address, said)
            silent = [socket.create_connection(address) for _ in range(12)]
            for connection in silent:  # those that are too many are told so, the others waited for
                connection.settimeout(30)
            ends = [connection.recv(1000).partition(b"\r\n")[0] for connection in silent]
            assert ends.count(b"HTTP/1.0 503 Service Unavailable") >= 8
            assert set(ends) <= {b"HTTP/1.0 503 Service Unavailable", b""}
            for connection in silent:
                connection.close()
            with urllib.request.urlopen(server.url, timeout=30) as answer:
                assert answer.status == 200
        finally:
            server.shutdown()
            thread.join()
    assert capfd.readouterr() == ("", "")


def test_the_server_answers_only_this_machine(tmp_path: Path) -> None:
    make(tmp_path, resnet("sort", 0))
    with Server([tmp_path], 0) as server:
        address = server.url
        assert address.startswith("http://127.0.0.1:")
        status, _, text = server.answer("/data.json", "")
        stamp = json.loads(text)["stamp"]
        assert (status, server.answer("/data.json", stamp)[0]) == (200, 204)
        for name in ("comparison.json", "claims.json", "cost.json"):
            (tmp_path / name).write_text("{}")
            assert server.stamp() != stamp
            stamp = server.stamp()
        assert server.answer("/../etc/passwd", "")[0] == 404
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            foreign = urllib.request.Request(address, headers={"Host": "example.com"})
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(foreign)
            refused.value.close()
            assert refused.value.code == 403
        finally:
            server.shutdown()
            thread.join()
        with pytest.raises(OSError, match="cannot be used"):
            Server([tmp_path], server.server_address[1])
