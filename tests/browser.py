"""A Chromium without a window, driven over a pair of pipes with the DevTools protocol."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from components import absent

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
PATIENCE = 30.0
# The browser reads commands from descriptor 3 and answers on 4.
LAUNCH = (
    "import os, sys; r, w = int(sys.argv[1]), int(sys.argv[2]);"
    " os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Escape": 27, "Tab": 9, " ": 32}

Json = dict[str, Any]


class Browser:
    """One page in a browser of its own.

    Arguments:
        profile: An empty directory for whatever it writes.
    """

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        read, self.write = _pipe()
        self.read, write = _pipe()
        command = [sys.executable, "-c", LAUNCH, str(read), str(write), PROGRAM, *FLAGS]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self.buffer, self.count, self.session = b"", 0, ""
        self.events: list[Json] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self.session = ""
        self.call("Browser.close")
        self.process.wait(PATIENCE)
        os.close(self.read)
        os.close(self.write)

    # The protocol

    def call(self, method: str, **params: Any) -> Json:  # noqa: ANN401
        """Send a command and wait for its answer."""
        self.count += 1
        message: Json = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.count:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: Json = answer["result"]
        return result

    def _next(self) -> Json:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], PATIENCE)
            assert ready, "the browser does not answer"
            received = os.read(self.read, 1 << 20)
            assert received, "the browser has ended"
            self.buffer += received
        message, _, self.buffer = self.buffer.partition(b"\0")
        parsed: Json = json.loads(message)
        return parsed

    def seen(self, *methods: str) -> list[Json]:
        """What the browser told of by itself, under these names, since the page was opened."""
        self.run("0")  # everything that was told before the answer has come
        return [event["params"] for event in self.events if event.get("method") in methods]

    # The page

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a page and wait until it is there."""
        self.call("Page.navigate", url="about:blank")
        self.size(width, height)
        self.scheme(dark)
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.until(lambda: bool(self.run("document.readyState === 'complete'")))
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def size(self, width: int, height: int = 900) -> None:
        """Give the window another size; narrow ones are those of a phone."""
        phone = width < 500
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def scheme(self, dark: bool, media: str = "") -> None:
        """Prefer dark or light, on a screen or in print."""
        value = "dark" if dark else "light"
        feature = {"name": "prefers-color-scheme", "value": value}
        self.call("Emulation.setEmulatedMedia", media=media, features=[feature])

    def run(self, script: str) -> Any:  # noqa: ANN401
        """Evaluate an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Wait for something."""
        end = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.02)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:  # noqa: ANN401
        """Move, press or release the mouse, or turn its wheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Press and release the left button."""
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def drag(self, start: float, end: float, y: float) -> None:
        """Drag from left to right or back."""
        self.mouse("mouseMoved", start, y)
        self.mouse("mousePressed", start, y, button="left", clickCount=1)
        for part in (0.3, 0.7, 1.0):
            self.mouse("mouseMoved", start + part * (end - start), y, button="left", buttons=1)
        self.mouse("mouseReleased", end, y, button="left", clickCount=1)

    def key(self, key: str, modifiers: int = 0) -> None:
        """Press a key; modifiers 8 is Shift."""
        code = KEYS.get(key, ord(key[0]))
        given = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **given, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def screenshot(self, path: Path) -> None:
        """The whole page as a picture."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


def started(profile: Path) -> Iterator[Browser]:
    """A browser for the tests of a file, which are skipped where there is none."""
    if PROGRAM is None:
        absent("chromium is not on the PATH (Debian: apt install chromium)")
    browser = Browser(profile)
    yield browser
    browser.close()


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are not among the first descriptors, which the browser's will replace."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
