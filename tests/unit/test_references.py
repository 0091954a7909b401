"""Names of modules and functions that stand in strings, docstrings and settings exist."""

from __future__ import annotations

import configparser
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click

from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
from hpcprof.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "hpcprof").rglob("*.py"))
REFERENCE = re.compile(r"(?<![\w/.$~-])hpcprof(?:\.[A-Za-z_]\w*)+(?::\w+)?")
"""A dotted name below ``hpcprof``, or ``module:name``."""
IMPORT = re.compile(r"^ *from (hpcprof[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
"""A module, and the names that are imported from it."""
NOT_MODULES = {
    *("hpcprof.db", "hpcprof.def", "hpcprof.yaml", "hpcprof.step", "hpcprof.window"),
    # Entry points.
    *("hpcprof.analyses", "hpcprof.schedulers", "hpcprof.profilers", "hpcprof.readers"),
    *("hpcprof.causes", "hpcprof.kernel_families"),
}
"""Names that look like those of modules and are none."""


def references(source: str) -> set[str]:
    """Return what a module names in strings, docstrings and comments, and what it imports from hpcprof.

    Imports inside functions and for type checkers alone are not reached by importing the module.
    """
    found = {
        f"{module}.{name}"
        for module, names in IMPORT.findall(source)
        for name in re.findall(r"(?:^|,)\s*(\w+)", re.sub("#.*|[()]", "", names))
    }
    return found | ({*REFERENCE.findall(source)} - NOT_MODULES)


def resolves(reference: str) -> bool:
    """Return whether a reference names something that exists."""
    try:
        resolve(reference)
    except (ImportError, AttributeError):
        return False
    return True


def resolve(reference: str) -> object:
    """Import what a reference names, as a module or as an attribute of the longest module before it."""
    path, _, name = reference.partition(":")
    parts = path.split(".")
    found: object = import_module(parts[0])
    for end, part in enumerate(parts[1:], 2):
        if hasattr(found, "__path__") and find_spec(".".join(parts[:end])):
            found = import_module(".".join(parts[:end]))
        else:
            found = getattr(found, part)
    return getattr(found, name) if name else found


def test_every_name_in_a_string_or_an_import_resolves() -> None:
    found = {str(path.relative_to(ROOT)): references(path.read_text(encoding="utf-8")) for path in MODULES}
    missing = {name for name in set().union(*found.values()) if not resolves(name)}
    assert not {path: names & missing for path, names in found.items() if names & missing}


def test_every_analysis_has_its_functions() -> None:
    for one in (*ANALYSES.values(), *ACROSS_RUNS.values()):
        for function in filter(None, (one.function, one.map)):
            assert callable(resolve(function)), function


def test_every_command_has_its_module() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        assert cli.get_command(context, name) is not None


def settings() -> configparser.ConfigParser:
    """Return setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def elsewhere() -> dict[str, str]:
    """Return the folders of the packages that lie beside ``hpcprof``."""
    lines = settings()["options"]["package_dir"].strip().split("\n")
    return dict(re.split(r"\s*=\s*", line, maxsplit=1) for line in lines)


def test_every_package_is_in_the_wheel() -> None:
    listed = set(settings()["options"]["packages"].split())
    shipped = set(elsewhere())
    found = {".".join(p.parent.relative_to(ROOT).parts) for p in MODULES if p.name == "__init__.py"}
    assert listed == found | shipped


def test_every_entry_point_and_data_file_exists() -> None:
    for line in settings()["options.entry_points"]["console_scripts"].split("\n"):
        assert not line or callable(resolve(line.partition("=")[2].strip()))
    folders = {"hpcprof": "hpcprof", **elsewhere()}
    for package, patterns in settings()["options.package_data"].items():
        for pattern in patterns.split():
            assert list((ROOT / folders[package]).glob(pattern)), pattern
