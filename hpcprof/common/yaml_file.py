"""Read the YAML files that users write."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from hpcprof.common.decode import read_file
from hpcprof.common.errors import UsageError

_MAX_FILE_BYTES, _MAX_VALUES, _MAX_LEVELS = 1_000_000, 100_000, 100
"""Maximum bytes of a file, of its values with its aliases replaced, and of its levels of nesting."""

_TAG = "tag:yaml.org,2002:"
_NUMBERS = frozenset(_TAG + kind for kind in ("int", "float", "timestamp"))

# The C loader is about ten times faster; wheels of PyYAML have it, some source builds do not.
_FASTEST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_FASTEST_LOADER):  # type: ignore[misc]
    """A safe loader that rejects duplicate keys, as the YAML standard requires, and keeps times as texts."""

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        """Return the tag of a node, text for times: YAML 1.1 reads 1:30:00 as the number 5400."""
        tag: str = super().resolve(kind, value, implicit)
        return _TAG + "str" if kind is yaml.ScalarNode and tag in _NUMBERS and ":" in value else tag

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping, or raise an error that names its duplicate key."""
        keys: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                problem = f"the key {key.value!r} is duplicated"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_document(path: Path) -> Any:
    """Return the content of a YAML file; raises OSError, ValueError or yaml.YAMLError if it has none."""
    return _construct(_checked_node(_FASTEST_LOADER, path), _FASTEST_LOADER(""))


def _checked_node(loader: Any, path: Path) -> Any:
    """Parse a file and check its size with aliases replaced; None if the file is empty."""
    text = read_file(path, _MAX_FILE_BYTES).decode("utf-8")
    sizes: dict[str | None, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    count, problem = 0, ""
    event: Any
    for event in yaml.parse(text, loader):
        if isinstance(event, yaml.AliasEvent):
            count += sizes.get(event.anchor, 1)
            if any(event.anchor == anchor for anchor, _ in open_nodes):
                problem = f"the value {event.anchor!r} contains itself"
        elif isinstance(event, yaml.NodeEvent):
            count += 1
            open_nodes.append((event.anchor, count))
        if isinstance(event, yaml.ScalarEvent) and event.tag == f"{_TAG}int" and len(event.value) > 18:
            problem = "a number has more than 18 digits"  # 1:1:1… counts in base 60
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionEndEvent)):
            anchor, before = open_nodes.pop()
            sizes[anchor] = count - before + 1
        if count > _MAX_VALUES or len(open_nodes) > _MAX_LEVELS:
            problem = f"it has more than {_MAX_VALUES} values, or more than {_MAX_LEVELS} levels"
        if problem:
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
    return loader(text).get_single_node()


def _construct(document: Any, loader: Any) -> Any:
    try:
        return None if document is None else loader.construct_document(document)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Such as a text with the tag of a time.
        problem = f"a value does not fit its type ({error})"
        raise yaml.constructor.ConstructorError(None, None, problem, document.start_mark) from None


def read_mapping(
    path: Path, kind: str, may_be_empty: bool = False, text_keys: Collection[str] = ()
) -> dict[str, Any]:
    """Read a file that contains one mapping, or nothing at all if it ``may_be_empty``.

    Numbers and dates below ``text_keys`` stay texts as they are written: YAML reads 010 as 8.
    """
    try:
        document = _checked_node(_Loader, path)
        for key, value in document.value if isinstance(document, yaml.MappingNode) else ():
            if key.value in text_keys:
                _keep_text(value)
        data = _construct(document, _Loader(""))
    except OSError as error:
        raise UsageError(f"cannot read the {kind} {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a {kind}: it is not UTF-8 text.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: not valid YAML: {getattr(error, 'problem', error)}.") from None
    if data is None and may_be_empty:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"{path} is not a {kind}: it must be a mapping of keys to values.")
    return data


def _keep_text(node: yaml.Node) -> None:
    if node.tag in _NUMBERS:
        node.tag = _TAG + "str"
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _keep_text(item)
    elif isinstance(node, yaml.MappingNode):
        for _, item in node.value:
            _keep_text(item)


def key_lines(path: Path) -> dict[str, int]:
    """Return the line of each key of a mapping that `read_mapping` has read, and of inner keys (``a.b``)."""
    lines: dict[str, int] = {}
    document: Any = yaml.compose(path.read_text(encoding="utf-8"), Loader=_FASTEST_LOADER)
    for key, value in document.value:
        lines[str(key.value)] = key.start_mark.line + 1
        for inner, _ in value.value if isinstance(value, yaml.MappingNode) else ():
            lines[f"{key.value}.{inner.value}"] = inner.start_mark.line + 1
    return lines
