"""Finding and loading sites: one YAML file a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcprof.decode import decode
from hpcprof.errors import UsageError, unknown
from hpcprof.paths import packaged, user_config
from hpcprof.site_model import Site
from hpcprof.yaml_file import read_mapping


def search_path() -> list[Path]:
    """Return the folders that hold sites, first found first taken."""
    return [Path("site_configs"), user_config() / "sites", packaged("site_configs")]


def site_files() -> dict[str, Path]:
    """Return every site's name and file, in the order of the search path."""
    files: dict[str, Path] = {}
    for folder in search_path():
        for path in sorted(folder.glob("*.yaml")):
            files.setdefault(path.stem, path)
    return files


def load_site(name: str) -> Site:
    """Load the site called ``name`` from the search path.

    Raises
    ------
    UsageError
        If there is no such site (with the close matches), or its file is wrong.
    """
    files = site_files()
    if name not in files:
        raise unknown("site", name, files)
    return load_site_file(files[name])


def load_site_file(path: Path) -> Site:
    """Load one site file; what it ``extends`` is looked for beside it, then on the search path."""
    merged: dict[str, Any] = {}
    for data in reversed(list(_chain(path))):
        merged = _merge(merged, data)
    return decode(Site, {**merged, "name": path.stem}, str(path))


def _chain(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a site's mapping, then that of the site it extends, and so on."""
    seen: list[Path] = []
    while True:
        if path in seen:
            raise UsageError(f"{path}: 'extends' leads back to itself: {' -> '.join(map(str, seen))}.")
        seen.append(path)
        data = _read_yaml(path)
        parent = data.pop("extends", None)
        yield data
        if parent is None:
            return
        beside = path.with_name(f"{parent}.yaml")
        files = site_files()
        if not beside.is_file() and parent not in files:
            raise unknown("site", str(parent), files, f" in {path}, under extends")
        path = beside if beside.is_file() else files[parent]


def _read_yaml(path: Path) -> dict[str, Any]:
    data = read_mapping(path, "site file")
    if "name" in data:
        raise UsageError(f"{path}: name = {data['name']!r}: a site is named by its file; remove the key.")
    return data


def _merge(parent: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``parent`` with ``child`` over it; mappings merge, anything else is replaced."""
    merged = dict(parent)
    for key, value in child.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return merged
