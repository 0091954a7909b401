"""The table of causes in the documentation, from their declarations."""

from __future__ import annotations

from pathlib import Path

from hpcprof.analysis.explain.cause import Cause, find_cause

DOCUMENT = Path(__file__).parents[2] / "docs/explain.md"
_HEAD = "| cause | what it means | remedy |\n|---|---|---|\n"


def with_table(text: str) -> str:
    """Return a document with the table that the declarations have now."""
    before, head, rest = text.partition(_HEAD)
    causes = map(find_cause, Cause)
    remedies = ((cause, cause.remedy.format(where="the place", ranks="the rank")) for cause in causes)
    rows = "".join(
        f"| `{cause.name}` | {cause.about or cause.meaning} | {text} |\n" for cause, text in remedies
    )
    return f"{before}{head}{rows}\n{rest.partition(chr(10) * 2)[2]}"
