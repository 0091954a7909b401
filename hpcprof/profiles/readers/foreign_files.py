"""Files of other tools, which are no profiles for hpcprof: their kinds are in ``foreign_files.yaml``."""

import codecs
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.gzip_file import content_of

_HEAD_BYTES = 1 << 18
_COMPRESSED = re.compile(r"\.(?:gz|xz|zst)$", re.IGNORECASE)
_TEXT_SUFFIX = re.compile(r"(?:\.(?:csv|log|out|txt|db|data|trace|prof|\d+))?")
_OTHER_TRACE = "a Chrome trace, but none of PyTorch's profiler or unitrace: Perfetto shows it"
_SUBSTITUTES = {
    r"\Aversion https://git-lfs\.": "a pointer of Git LFS: git lfs pull brings the file itself",
    r"(?i)\A\s*<(?:!doctype html|html)": "a web page: download the file itself (its raw address)",
}
"""Kinds of files that a download leaves in place of a profile, by how they begin."""
_CHROME_EVENTS = r'\A\s*\[\s*\{[^{}]*"ph"\s*:'


def foreign_kind(path: Path) -> str:
    """Return the kind of a file that no reader takes, and what to do instead; empty if unknown."""
    suffix = Path(_COMPRESSED.sub("", path.name)).suffix.lower()
    if suffix != ".json" or not path.is_file():
        has_text = _TEXT_SUFFIX.fullmatch(suffix) and path.is_file()
        other = {_CHROME_EVENTS: _OTHER_TRACE}
        by_text = _kind_of_head(path, other | _patterns("texts"), re.MULTILINE) if has_text else ""
        by_ending = (row["is"] for row in _kinds()["endings"] if suffix in row["endings"])
        return by_text or next(by_ending, "") or (foreign_trace(path) if path.is_file() else "")
    if path.stat().st_size == 0:
        return "empty: its writer was cut off, or the disk was full"
    return foreign_trace(path, _OTHER_TRACE)


def substitute_kind(path: Path) -> str:
    """Return the kind of a file that a download left for a profile, and what to do; empty for others."""
    return _kind_of_head(path, _SUBSTITUTES) if path.is_file() else ""


def foreign_trace(path: Path, other: str = "") -> str:
    """Return the program whose trace a JSON file is, by its beginning; ``other`` for an unknown program."""
    return _kind_of_head(path, _patterns("traces") | {_CHROME_EVENTS: other, '"traceEvents"': other})


def _kind_of_head(path: Path, kinds: dict[str, str], flags: re.RegexFlag = re.DOTALL) -> str:
    with suppress(DamagedInput):
        head = content_of(path, _HEAD_BYTES).removeprefix(codecs.BOM_UTF8)
        return next((kind for pattern, kind in kinds.items() if re.search(pattern.encode(), head, flags)), "")
    return ""


def _patterns(section: str) -> dict[str, str]:
    return {row["pattern"]: row["is"] for row in _kinds()[section]}


@cache
def _kinds() -> Any:
    # Most files are profiles, for which YAML is not imported.
    from hpcprof.common.yaml_file import read_document

    return read_document(Path(__file__).with_name("foreign_files.yaml"))
