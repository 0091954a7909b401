"""Staging of an environment on the nodes of a job: its times and errors, from the notes of the run."""

import msgspec

from hpcprof.common.decode import from_json, read_file
from hpcprof.common.units import counted, format_bytes, format_ns
from hpcprof.node.stage_environment import FAILED, NOTES, PACKED
from hpcprof.runs.directory import Run


class _Note(msgspec.Struct):
    seconds: float = 0.0
    bytes: int = 0
    reason: str = ""


def describe_staging(run: Run) -> str:
    """Return how long packing and unpacking took, or why the environment stayed; empty without staging."""
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
