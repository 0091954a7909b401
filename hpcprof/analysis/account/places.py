"""Places, by their paths, and the number that stands for none."""

NONE = -1
"""Stands for no row, no thread and no place."""

OUTSIDE = "code outside all ranges"
"""The place of events outside all ranges, in programs that have ranges."""

WHOLE_STEP = ""
"""The place that everything lies in."""


def is_inside(place: str, other: str) -> bool:
    """Return whether a place is another one or lies in it; everything lies in the place without a name."""
    return not other or place == other or place.startswith(f"{other}/")
