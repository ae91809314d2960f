"""The table of attacks for docs/reliability.md."""

from collections.abc import Mapping
from typing import Any


def markdown(result: Mapping[str, Any]) -> str:
    """The table: attempts and failures by kind of attack."""
    total = {key: sum(row[key] for row in result["rows"]) for key in ("attempts", "failed")}
    commit = result["sortnet"][:7] or "unknown"
    lines = [
        f"{total['attempts']:,} attempts in {result['seconds'] / 60:.0f} minutes,"
        f" {total['failed']:,} failed; torch {result['torch']}, commit {commit}.",
        "",
        "| attack | attempts | failed | not tried for lack of time |",
        "| --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        lines.append(f"| {row['attack']} | {row['attempts']} | {row['failed']} | {row['late']} |")
    return "\n".join(lines) + "\n"
