"""The rooms of the package: imports run downwards, and no file imports itself by a detour."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

PACKAGE = Path(__file__).parents[2] / "hpcprof"
ROOMS = (
    *(
        "cli",
        "mcp",
        "serve",
        "report",
        "study",
        "results",
        "analysis",
        "profiles",
        "submit",
        "runs",
        "workloads",
        "node",
        "common",
    ),
)
"""From the top floor down: a room imports only itself and those after it."""

GRAPH = grimp.build_graph("hpcprof", cache_dir=None)
"""Imports inside functions and for type checkers count like all others."""


def room(module: str) -> str:
    """Return the room of a module, empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


OUTSIDE = {"", "__main__", "plugins"}
"""The doors of the house: no room imports them."""


def test_every_module_is_in_a_room() -> None:
    assert {room(module) for module in GRAPH.modules} <= {*OUTSIDE, *ROOMS}


@pytest.mark.parametrize("lower", ROOMS)
def test_a_room_imports_only_rooms_below_it(lower: str) -> None:
    above = ROOMS[: ROOMS.index(lower)]
    found = [
        f"{module} imports {imported}"
        for module in sorted(GRAPH.modules)
        if room(module) == lower
        for imported in sorted(GRAPH.find_modules_directly_imported_by(module))
        if room(imported) in {*above, *OUTSIDE}
    ]
    assert not found


RESULTS = ("api", "history", "across", "ask", "collect", "store")
"""Inside `hpcprof.results`, from the top down."""


def test_the_rooms_of_results_import_only_those_below_them() -> None:
    places = {
        module: RESULTS.index(module.split(".")[2])
        for module in GRAPH.modules
        if module.startswith("hpcprof.results.")
    }
    found = [
        f"{module} imports {imported}"
        for module, place in sorted(places.items())
        for imported in sorted(GRAPH.find_modules_directly_imported_by(module))
        if places.get(imported, place) < place
    ]
    assert not found


def cycles(modules: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield what is left of an import graph once every module without an import in it is taken away."""
    left = {module: set(imported) for module, imported in modules.items()}
    while free := {module for module, imported in left.items() if not imported & left.keys()}:
        left = {module: imported for module, imported in left.items() if module not in free}
    if left:
        yield sorted(left)


def test_no_file_is_in_a_cycle() -> None:
    imports = {module: GRAPH.find_modules_directly_imported_by(module) for module in GRAPH.modules}
    assert not list(cycles(imports))


def test_a_cycle_is_found() -> None:
    assert list(cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()})) == [["a", "b", "c"]]
