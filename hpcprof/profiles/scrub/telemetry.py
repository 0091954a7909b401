"""Copies the samples of a node without its name, mount points and identities of GPUs."""

import json
import re
from pathlib import Path
from typing import Any

from hpcprof.common.errors import DamagedInput, reading
from hpcprof.node.telemetry import FOLDER
from hpcprof.profiles.readers.declaration import Scrubber
from hpcprof.profiles.scrub.names import Names, hosts_and_users

SAMPLES = Scrubber("hpcprof.profiles.scrub.telemetry:scrub", (), f"the files in {FOLDER}/ of a run")
_MOUNT = re.compile(r"(nfs|lustre):(\S+)(?= )")


def is_samples(path: Path) -> bool:
    """Return whether a file is one of the samples of a run's nodes."""
    return path.suffix == ".jsonl" and path.parent.name == FOLDER


def scrub(path: Path, target: Path, names: Names) -> list[str]:
    """Copy samples to ``target`` without hosts and paths, and return what was left out.

    Lines that cannot be read are left out: they may hold anything.
    """
    names.know(hosts_and_users([path.stem], []))
    with reading(path):
        lines = path.read_bytes().splitlines()
    clean_lines = [clean for line in lines if (clean := _clean_line(line, names))]
    if not clean_lines:
        raise DamagedInput(f"{path} has no samples.")
    target.write_text("".join(f"{line}\n" for line in clean_lines), encoding="utf-8")
    lost = [f"{len(lines) - len(clean_lines)} damaged lines"] if len(clean_lines) < len(lines) else []
    return ["hosts and mount points", *lost]


def _clean_line(line: bytes, names: Names) -> str:
    try:
        value = json.loads(line)
        if isinstance(value, dict):
            value = _clean_header(value, names)
        elif not _is_sample(value):
            return ""
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ""
    return json.dumps(value, separators=(",", ":"))


def _is_sample(value: Any) -> bool:
    time, *lists = value
    all_values = [time, *(item for values in lists for item in values)]
    return all(item is None or isinstance(item, int | float) for item in all_values)


def _clean_header(header: dict[str, Any], names: Names) -> dict[str, Any]:

    def device(name: str) -> str:
        return _MOUNT.sub(lambda match: f"{match[1]}:{names.numbered('mount', match[2])[7:-1]}", name)

    return {
        "node": names.numbered("host", header["node"]),
        "time": float(header["time"]),
        "limits": {str(key): value and float(value) for key, value in header["limits"].items()},
        "gpus": [names.cleaned(gpu) for gpu in header["gpus"]],
        "ranks": {
            str(int(rank)): {
                "cores": [*map(int, place["cores"])],
                "gpus": [*map(int, place["gpus"])],
                "devices": place["devices"] if re.fullmatch(r"[\d,]*", place["devices"]) else "",
            }
            for rank, place in header["ranks"].items()
        },
        "missing": {names.cleaned(key): names.cleaned(reason) for key, reason in header["missing"].items()},
        "fast": [device(name) for name in header["fast"]],
        "slow": [device(name) for name in header["slow"]],
    }
