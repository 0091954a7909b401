"""Changes one value in a file with personal defaults, and leaves its comments where they are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import unknown, writing
from hpcprof.common.yaml_file import read_mapping
from hpcprof.runs.config import HOST_KEYS, check_config, check_no_host, local_file, split_key
from hpcprof.submit.jobs.checks import site_options
from hpcprof.submit.notify import check_target
from hpcprof.submit.remote.request import check_host
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.sites.files import load_site, site_files


def set_value(path: Path, key: str, value: str) -> bool:
    """Set a value in a file, or remove it if empty; return whether the rest of the file kept its comments."""
    keys = split_key(key)
    _check_value(keys, value)
    if path == local_file():
        check_no_host([key], f"--local {path}")
    # A link to a file elsewhere, as in a repository of settings, remains one.
    path = path.resolve()
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    old = read_mapping(path, "configuration", may_be_empty=True) if text else {}
    wanted = _change_mapping(old, keys, value)
    check_config(wanted, str(path))
    new = _remove_lines(text, keys) if not value else _edit_text(text, keys, value)
    kept_comments = new is not None and _same(new, wanted)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        text_now = new if new is not None and kept_comments else msgspec.yaml.encode(wanted).decode()
        write_atomically(path, text_now, 0o600 if "notify" in wanted else None)
    return kept_comments or "#" not in text


def _check_value(keys: Sequence[str], value: str) -> None:
    if keys == ["site"] and value not in ("", *site_files()):
        raise unknown("site", value, site_files())
    if keys[0] == "notify" and value:
        check_target(value, ".".join(keys))
    if keys[0] != "sites" or not value:
        return
    site = load_site(keys[1])
    if keys[2] in HOST_KEYS:
        check_host(**{"host": "host", "user": "", "runs_dir": "", keys[2]: value}, where=".".join(keys))
    if keys[2] == "options":
        site_options(site, {keys[3]: value})
    accepted = not site.queues or value in site.queues
    if keys[2] == "queue" and not accepted and not find_scheduler(site.scheduler).accepts_queue(value):
        raise unknown("queue", value, site.queues, f" of site {site.name}")


def _change_mapping(data: Mapping[str, Any], keys: Sequence[str], value: str) -> dict[str, Any]:
    """Return nested mappings with another value; without one, mappings that become empty are left out."""
    first, *inner_keys = keys
    below = data.get(first)
    new: Any = value
    if inner_keys:
        new = _change_mapping(below if isinstance(below, Mapping) else {}, inner_keys, value)
    changed = {**data, first: new}
    return {key: settings for key, settings in changed.items() if key != first or settings}


def _same(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return (yaml.safe_load(text) or {}) == wanted
    except yaml.YAMLError:
        return False


def _edit_text(text: str, keys: Sequence[str], value: str) -> str | None:
    """Return a text with another value, None if this takes more than a new value or new lines."""
    scalar = msgspec.yaml.encode(value).decode().strip()
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None:
        return _end_line(text) + _lines(keys, scalar, 0)
    for depth, key in enumerate(keys):
        if not isinstance(node, yaml.MappingNode):
            return None
        inner = next((below for name, below in node.value if name.value == key), None)
        if inner is None:
            if node.flow_style:
                return None
            column = int(node.value[0][0].start_mark.column)
            return _insert_lines(text, node, _lines(keys[depth:], scalar, column))
        node = inner
    return text[: node.start_mark.index] + scalar + text[node.end_mark.index :]


def _remove_lines(text: str, keys: Sequence[str]) -> str | None:
    node = yaml.compose(text, Loader=yaml.SafeLoader) if text else None
    line = None
    for key in keys:
        if not isinstance(node, yaml.MappingNode) or node.flow_style:
            return None
        line, node = next(
            ((name.start_mark.line, below) for name, below in node.value if name.value == key), (None, None)
        )
    lines = text.splitlines(keepends=True)
    return text if line is None else "".join(lines[:line] + lines[line + 1 :])


def _insert_lines(text: str, mapping: yaml.MappingNode, lines: str) -> str:
    last: Any = mapping
    while isinstance(last, yaml.MappingNode) and not last.flow_style:
        last = last.value[-1][1]
    end = text.find("\n", last.end_mark.index)
    return _end_line(text) + lines if end < 0 else text[: end + 1] + lines + text[end + 1 :]


def _lines(keys: Sequence[str], scalar: str, column: int) -> str:
    parts = [f"{' ' * (column + 2 * depth)}{key}:" for depth, key in enumerate(keys)]
    return "\n".join(parts) + f" {scalar}\n"


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
