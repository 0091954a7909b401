"""Reading the YAML files that users write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hpcprof.common.errors import UsageError

# The C loader is about ten times faster; PyYAML wheels have it, some source builds do not.
_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_FASTEST):  # type: ignore[misc]
    """A safe loader to which a key that stands twice is no YAML, as the standard says."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping, or say which of its keys is there twice."""
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {key.value!r} stands there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_mapping(path: Path, kind: str) -> dict[str, Any]:
    """Read a file that holds one mapping.

    Parameters
    ----------
    path : Path
        The file.
    kind : str
        What it is to the user, ``"site file"``.

    Raises
    ------
    UsageError
        If it cannot be read, is not YAML, or holds something else.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 (a safe loader)
    except OSError as error:
        raise UsageError(f"cannot read the {kind} {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a {kind}: it is not UTF-8 text.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: not valid YAML: {getattr(error, 'problem', error)}.") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} is not a {kind}: it holds no mapping of keys to values.")
    return data
