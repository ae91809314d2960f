"""The report page in a real browser: headless Chromium, driven by Playwright."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

from components import absent
from playwright.sync_api import Page, sync_playwright

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 30.0


class Browser:
    """One page, with the errors, console messages and requests since it was opened."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, url: str) -> None:
        """Open a page at desktop size and wait until it is drawn."""
        self.page.goto("about:blank")
        self.size(1280)
        self.page.emulate_media(color_scheme="light", media="screen")
        self.complaints.clear()
        self.requests.clear()
        self.page.goto(url)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def size(self, width: int, height: int = 900) -> None:
        """Resize the window."""
        self.page.set_viewport_size({"width": width, "height": height})

    def run(self, script: str) -> Any:  # noqa: ANN401
        """Evaluate an expression in the page."""
        return self.page.evaluate(script)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "timed out"
            self.page.wait_for_timeout(20)

    def drag(self, start: float, end: float, y: float) -> None:
        """Drag from left to right or back."""
        self.page.mouse.move(start, y)
        self.page.mouse.down()
        self.page.mouse.move(end, y, steps=3)
        self.page.mouse.up()

    def wheel(self, x: float, y: float, delta: float) -> None:
        """Turn the mouse wheel."""
        self.page.mouse.move(x, y)
        self.page.mouse.wheel(0, delta)

    def key(self, key: str) -> None:
        """Press a key, such as ``Shift+Tab``."""
        self.page.keyboard.press(key)


def launch() -> Iterator[Browser]:
    """Yield a browser for the tests of a file; without Chromium they are skipped."""
    if PROGRAM is None:
        absent("chromium is not on the PATH (Debian: apt install chromium)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=PROGRAM, args=["--disable-gpu"], chromium_sandbox=False
        )
        yield Browser(chromium.new_page())
        chromium.close()


def bounding_box(browser: Browser, selector: str) -> tuple[float, float, float, float]:
    """Scroll an element into view and return its left, top, width and height."""
    element = browser.page.locator(selector).first
    element.evaluate("e => e.scrollIntoView({block: 'center', behavior: 'instant'})")
    found = element.bounding_box()
    assert found is not None
    return found["x"], found["y"], found["width"], found["height"]


def click(browser: Browser, selector: str) -> None:
    left, top, width, height = bounding_box(browser, selector)
    browser.page.mouse.click(left + width / 2, top + height / 2)


def texts(browser: Browser, selector: str) -> list[str]:
    text = "all => all.map(e => (e.innerText ?? e.textContent).trim())"  # SVG has no innerText
    found: list[str] = browser.page.locator(selector).evaluate_all(text)
    return found


def drawn_lines(browser: Browser) -> list[str]:
    """Return the identifiers of the curves that are drawn."""
    found: list[str] = browser.page.locator("#chart .line").evaluate_all(
        "all => all.map(e => e.dataset.line)"
    )
    return found


def visible_steps(browser: Browser) -> tuple[int, int]:
    """Return the first and last step that the chart shows, according to its table."""
    browser.run("document.querySelector('#curves details').open = true")
    browser.page.wait_for_timeout(50)
    label = browser.page.locator("#curves .scroll").first.get_attribute("aria-label") or ""
    first, last = re.findall(r"[\d,.]+", label.partition("steps")[2])
    return round(float(first.replace(",", ""))), round(float(last.replace(",", "")))


def assert_no_errors(browser: Browser) -> None:
    """Assert that there were no errors, and no requests except for the page itself."""
    browser.run("0")  # everything before the answer has been reported
    assert browser.complaints == []
    asked = [url for url in browser.requests if not url.startswith("data:")]
    assert asked == [browser.page.url]
