"""The oracle's table for docs/correctness.md."""

from collections.abc import Mapping
from typing import Any

MODES = {
    "kernels": "eager, with kernels",
    "formulas": "eager, without kernels",
    "inductor": "`torch.compile` (Inductor)",
    "export": "`torch.export`",
    "checkpoint": "`torch.utils.checkpoint`",
    "ddp": "DistributedDataParallel",
    "frozen": "frozen statistics",
    "cumulative": "cumulative statistics",
    "double": "gradients of gradients",
}
PRECISIONS = {
    "bfloat16": "autocast to bfloat16",
    "float16": "autocast to float16",
    "half": "a bfloat16 module",
}


def markdown(result: Mapping[str, Any]) -> str:
    """The table: cases, failures and the largest errors, by what was compared and how."""
    lines = [
        f"{result['cases']:,} cases, torch {result['torch']}.",
        "",
        "| subject | mode | precision | cases | failed | largest error | plain composition's |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        mode = MODES[row["mode"]]
        precision = PRECISIONS.get(row["precision"], row["precision"])
        lines.append(
            f"| {row['subject']} | {mode} | {precision} | {row['cases']} | {row['failed']} |"
            f" {row['error']:.1e} | {row['plain']:.1e} |"
        )
    return "\n".join(lines) + "\n"
