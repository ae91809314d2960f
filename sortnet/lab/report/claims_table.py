"""The paper's claims and their verdicts, in Markdown."""

from collections.abc import Mapping, Sequence

from sortnet.lab.claims.finding import FAILS, HOLDS, OPEN


def markdown(claims: Sequence[Mapping[str, str]]) -> str:
    """Return the claims by verdict, each with its measurements.

    Arguments:
        claims: As `sortnet claims --json` writes them.
    """
    groups = {kind: [c for c in claims if c["verdict"] == kind] for kind in (HOLDS, FAILS, OPEN)}
    counts = ", ".join(f"{kind}: {len(found)}" for kind, found in groups.items())
    lines = [f"{len(claims)} claims. {_capital(counts)}."]
    for kind, found in groups.items():
        if found:
            lines += ["", f"## {_capital(kind)}", ""]
        for claim in found:
            text, figures = (claim[name].replace("*", r"\*") for name in ("text", "figures"))
            lines += [f"- **{text}** ({claim['place']})  ", f"  {_capital(figures)}."]
    return "\n".join(lines) + "\n"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
