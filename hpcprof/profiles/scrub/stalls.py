"""Copies the evidence of a stall: stacks, dumps of collectives and the state of processes."""

import json
import re
from pathlib import Path
from typing import Any

from hpcprof.common.errors import DamagedInput, reading
from hpcprof.profiles.readers.declaration import Scrubber
from hpcprof.profiles.readers.flight_recorder import plain_values
from hpcprof.profiles.scrub.names import Names

EVIDENCE = Scrubber("hpcprof.profiles.scrub.stalls:scrub", (), "the files in stall/ of a run")
_NAME = re.compile(r"rank\d{5,9}\.(?:json|flight\.(?:json|pickle)|stack|process|native(?:\.\d+)?)$")
_MAX_FILE_BYTES = 64 << 20
# Paths of one part, which the general rule leaves alone.
_SHORT_PATH = re.compile(r"(?<![\w./>-])/[\w.+@-]+(?=[\":]|$)")
_IDENTITY = re.compile(r"\((?=[^()\n]*\) [A-Za-z] \d)[^()\n]*\)")


def is_evidence(path: Path) -> bool:
    """Return whether a file has the name of evidence of a stall."""
    return _NAME.fullmatch(path.name) is not None


def scrub(path: Path, target: Path, names: Names) -> list[str]:
    """Copy a file of evidence to ``target`` without paths, hosts and users, and return what was left out.

    A pickle becomes JSON.
    """
    with reading(path), path.open("rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise DamagedInput(f"{path} has more than {_MAX_FILE_BYTES >> 20} MB.")
    text = data.decode(errors="replace")
    if path.suffix in (".json", ".pickle"):
        try:
            copy = json.dumps(_clean_value(plain_values(data), names))
        except ValueError as error:
            raise DamagedInput(f"{path}: {error}.") from None
    else:
        copy = "\n".join(_line(line, names) for line in text.split("\n"))
    target.write_text(copy, encoding="utf-8")
    return [] if copy == text else ["paths, hosts and users"]


def _clean_value(values: Any, names: Names) -> Any:
    if isinstance(values, dict):
        return {_line(key, names): _clean_value(value, names) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_clean_value(value, names) for value in values]
    return _line(values, names) if isinstance(values, str) else values


def _line(text: str, names: Names) -> str:
    # The kernel's line of a process has its program in brackets.
    text = _IDENTITY.sub("(program)", text)
    return _SHORT_PATH.sub(lambda match: names.numbered("path", match[0]), names.cleaned(text))
