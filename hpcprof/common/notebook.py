"""Objects that notebooks show as HTML. The modules that make the HTML are on a floor above them."""

from collections.abc import Callable

_renderers: list[Callable[[object], "str | None"]] = []


def provide(renderer: Callable[[object], str | None]) -> None:
    """Have a function return the HTML of objects, None for those that it does not know."""
    _renderers[:] = [renderer]


class InNotebooks:
    """An object that a notebook shows as HTML, once a renderer is provided."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return _renderers[0](self) if _renderers else None
