"""Runs as one self-contained HTML page: nothing is fetched and no other script runs.

Everything that comes from a run is data: it is embedded as JSON that cannot close its element, and
the script inserts it as text. A content security policy allows only the page's own script and
style, by their hashes, and images that are part of the page.
"""

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from sortnet import files
from sortnet.lab.report.contents import gather

TITLE = "sortnet report"
WEB = Path(__file__).parent / "web"
SCRIPTS = (
    "dom",
    "series",
    "chart",
    "pointing",
    "curves",
    "results",
    "comparison",
    "timeline",
    "answers",
    "main",
)
"""The parts of the script, in order."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript><p>The tables and curves of this page are drawn by a script that it contains, and
scripts are switched off.</p></noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def build(directories: Sequence[Path], title: str = TITLE) -> str:
    """Return the page of all runs in and below directories, as HTML.

    Arguments:
        directories: Where the runs are; see `sortnet.lab.report.contents.gather`.
        title: The page's heading.

    Raises:
        ValueError: There is no run.
    """
    return render(gather(directories), title)


def write(directories: Sequence[Path], output: Path, title: str = TITLE) -> None:
    """Write the page to a file, atomically."""
    page = build(directories, title)
    output.parent.mkdir(parents=True, exist_ok=True)
    files.write(output, page)


def render(content: dict[str, Any], title: str, *, live: bool = False) -> str:
    """Return contents as HTML.

    Arguments:
        content: The result of `gather`.
        title: The page's heading.
        live: Whether the page asks its server for new data.
    """
    style, script = parts()
    return PAGE.format(
        policy=policy(live),
        title=escape(title),
        style=style,
        script=script,
        data=embedded(content | {"title": title, "live": live}),
    )


@cache
def parts() -> tuple[str, str]:
    """Return the page's style sheet and script."""
    script = "\n".join((WEB / f"{name}.js").read_text() for name in SCRIPTS)
    return (WEB / "page.css").read_text(), f'\n"use strict";\n(() => {{\n{script}}})();\n'


def policy(live: bool = False) -> str:
    """Return the page's content security policy."""
    style, script = (f"'sha256-{_hash(text)}'" for text in parts())
    allowed = ["default-src 'none'", f"script-src {script}", f"style-src {style}"]
    allowed += ["img-src data:", "base-uri 'none'", "form-action 'none'"]
    return "; ".join(allowed + (["connect-src 'self'"] if live else []))


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def embedded(value: object) -> str:
    r"""Return a value as JSON for an HTML page: no text in it can be parsed as markup.

    Example:
        >>> print(embedded("</script>"))
        "\u003c/script\u003e"
    """
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # JSON has no infinite numbers
        text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(value: Any) -> Any:  # noqa: ANN401
    """Replace numbers that are not finite by None."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
