"""Regular expressions of users and agents, matched in linear time."""

from collections.abc import Sequence


def matches(pattern: str, texts: Sequence[str]) -> list[bool]:
    """Return for each text whether a regular expression of RE2 occurs in it.

    RE2 does not backtrack, as Python's own expressions do while all other threads wait. It has no lookaround
    and no references to groups. Raises ValueError with the reason if the expression is not valid.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # With an empty text the expression is checked even if there are no texts.
    expression, *plain = (text.encode("utf-8", "replace").decode() for text in (pattern, "", *texts))
    try:
        hits: list[bool] = pc.match_substring_regex(pa.array(plain), expression).to_pylist()
    except pa.ArrowInvalid as error:
        raise ValueError(str(error).removeprefix("Invalid regular expression: ")[:200]) from None
    return hits[1:]
