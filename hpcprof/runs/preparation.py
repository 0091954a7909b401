"""Preparation of the ranks, from their notes: the staging of an environment, and Pythons that are too old."""

import msgspec

from hpcprof.common.decode import from_json, read_file
from hpcprof.common.units import counted, format_bytes, format_ns, named_ranks
from hpcprof.node.stage_environment import FAILED, NOTES, PACKED
from hpcprof.runs.directory import Run


class _Note(msgspec.Struct):
    seconds: float = 0.0
    bytes: int = 0
    reason: str = ""


def describe_staging(run: Run) -> str:
    """Return the times of packing and unpacking, or the reason why that failed; empty without staging."""
    notes: dict[str, _Note] = {}
    for path in sorted((run.path / NOTES).glob("*.json")):
        try:
            notes[path.name] = from_json(read_file(path), _Note)
        except (OSError, msgspec.DecodeError):
            continue
    if failed := notes.get(FAILED):
        return f"not staged, the ranks used it where it is: {failed.reason}"
    packed = notes.pop(PACKED, None)
    if packed is None:
        return ""
    staged = f"{format_bytes(packed.bytes)}, packed in {format_ns(packed.seconds * 1e9)}"
    if notes:
        slowest = max(note.seconds for note in notes.values())
        staged += f", unpacked on {counted(len(notes), 'node')} in at most {format_ns(slowest * 1e9)}"
    return staged


def describe_old_pythons(run: Run) -> str:
    """Return the ranks that ran under a Python before 3.8, and its version; empty without one."""
    notes = {rank: version[:20] for rank, version in run.rank_notes("python").items() if version}
    if not notes:
        return ""
    versions = " and ".join(sorted(set(notes.values())))
    return f"{versions} on {named_ranks(list(notes))}: steps and exceptions are noted from Python 3.8 on"
