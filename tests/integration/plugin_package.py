"""A package that adds something to hpcprof, as pip would install it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install(folder: Path, sources: Mapping[str, str], entry_points: Mapping[str, Mapping[str, str]]) -> None:
    """Write the modules of a package and the metadata that names its entry points.

    Parameters
    ----------
    folder : Path
        Becomes a folder for the search path of modules.
    sources : mapping
        The source of each module by its name.
    entry_points : mapping
        By group, the objects (``module:object``) by the names that they get in hpcprof.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for module, source in sources.items():
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
    metadata = folder / "extras-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: extras\nVersion: 1.0\n", encoding="utf-8"
    )
    lines = []
    for group, objects in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in objects.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def search_path(folder: Path) -> str:
    """Return a value of PYTHONPATH with which hpcprof finds the package."""
    return os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
