"""Objects that notebooks show as HTML; the report, which makes the HTML, registers itself here."""

from collections.abc import Callable

_renderers: list[Callable[[object], "str | None"]] = []


def register_renderer(renderer: Callable[[object], str | None]) -> None:
    """Set the function that returns the HTML of an object, or None for objects that it cannot render."""
    _renderers[:] = [renderer]


class InNotebooks:
    """An object that a notebook shows as HTML once a renderer is registered."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return _renderers[0](self) if _renderers else None
