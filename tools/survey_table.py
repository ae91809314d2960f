"""The models that SORT was put into, as a table."""

from typing import Any

HEADING = ["model", "places", "which are", "same with the sum", "trains with SORT", "memory"]


def markdown(result: dict[str, Any]) -> str:
    """One line a model: places found, what became of them.

    Arguments:
        result: As `tools.survey` writes it.
    """
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = [f"{len(result['models'])} models, {versions}."]
    for source in dict.fromkeys(m["name"].partition(":")[0] for m in result["models"]):
        found = [m for m in result["models"] if m["name"].startswith(f"{source}:")]
        lines += ["", f"### {source}", "", _line(HEADING), _line(["---"] * len(HEADING))]
        lines += [_row(model) for model in found]
    return "\n".join(lines) + "\n"


def _row(model: dict[str, Any]) -> str:
    name = model["name"].partition(":")[2]
    places = str(model["places"])
    if model["places"] != model["expected"]:
        places += f" of {model['expected']}"
    if not model["places"]:
        return _line([name, places, model["why"], "", "", ""])
    why = model["why"]
    if problems := list(model["problems"].items()):
        place, problem = problems[0]
        why += f"; {len(problems)} of them cannot be changed, as {place}: {problem}"
    kept = f"{model['kept']:.2f}"
    return _line([name, places, why, _yes(model["equal"]), _yes(model["trained"]), kept])


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
