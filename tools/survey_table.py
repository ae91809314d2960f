"""The table of models that have been converted."""

from typing import Any

HEADING = ["model", "sites", "which are", "same with the sum", "trains with SORT", "memory"]
LIBRARIES = {"transformers": "Hugging Face transformers"}


def markdown(result: dict[str, Any]) -> str:
    """Return a table for each library, one line per model.

    Arguments:
        result: What `tools.survey` writes.
    """
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = [f"{len(result['models'])} models, {versions}."]
    for source in dict.fromkeys(m["name"].partition(":")[0] for m in result["models"]):
        found = [m for m in result["models"] if m["name"].startswith(f"{source}:")]
        lines += ["", f"### {LIBRARIES.get(source, source)}", ""]
        lines += [_line(HEADING), _line(["---"] * len(HEADING))]
        lines += [_row(model) for model in found]
    return "\n".join(lines) + "\n"


def _row(model: dict[str, Any]) -> str:
    name = model["name"].partition(":")[2]
    sites = str(model["sites"])
    if model["sites"] != model["expected"]:
        sites += f" of {model['expected']}"
    why = model["why"]
    if problems := list(model["problems"].items()):
        site, problem = problems[0]
        why += f"; {len(problems)} of them cannot be changed, such as {site}: {problem}"
    if model["saved_ratio"] is None:
        return _line([name, sites, why, "", "", ""])
    ratio = f"{model['saved_ratio']:.2f}"
    return _line([name, sites, why, _yes(model["equal"]), _yes(model["trained"]), ratio])


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
