"""The page of a report as somebody sees it who points, presses keys and reads."""

import json
import re

from browser import Browser


def box(browser: Browser, selector: str) -> tuple[float, float, float, float]:
    script = f"document.querySelector({json.dumps(selector)})"
    browser.run(f"{script}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    rectangle = f"(r => [r.x, r.y, r.width, r.height])({script}.getBoundingClientRect())"
    left, top, width, height = browser.run(rectangle)
    return left, top, width, height


def press(browser: Browser, selector: str) -> None:
    left, top, width, height = box(browser, selector)
    browser.click(left + width / 2, top + height / 2)


def texts(browser: Browser, selector: str) -> list[str]:
    text = "e => (e.innerText ?? e.textContent).trim()"  # what is drawn has no innerText
    script = f"[...document.querySelectorAll({json.dumps(selector)})].map({text})"
    found: list[str] = browser.run(script)
    return found


def lines(browser: Browser) -> list[str]:
    found: list[str] = browser.run(
        "[...document.querySelectorAll('#chart .line')].map(e => e.dataset.line)"
    )
    return found


def stretch(browser: Browser) -> tuple[int, int]:
    """The steps that the chart shows, as its table says."""
    browser.run("document.querySelector('#curves details').open = true")
    label = browser.run(
        "new Promise(done => setTimeout(() => done("
        "document.querySelector('#curves .scroll').getAttribute('aria-label')), 50))"
    )
    first, last = re.findall(r"[\d,.]+", label.partition("steps")[2])
    return round(float(first.replace(",", ""))), round(float(last.replace(",", "")))


def quiet(browser: Browser) -> None:
    """Nothing went wrong, and nothing was asked for but the page itself."""
    told = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert browser.seen(*told) == []
    asked = [event["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:")] == [browser.run("location.href")]
