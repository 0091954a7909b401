"""Ranks that run a Python too old for the hook, as its start noted them."""

from hpcprof.common.decode import parsed_count
from hpcprof.common.units import named_ranks
from hpcprof.runs.directory import Run


def describe_old_pythons(run: Run) -> str:
    """Return the ranks that ran under a Python before 3.8, and its version; empty without one."""
    notes = {}
    for path in (run.path / "state").glob("rank*.python"):
        rank = parsed_count(path.stem.removeprefix("rank"))
        if rank is not None and (version := run.state_file(path.name)):
            notes[rank] = version[:20]
    if not notes:
        return ""
    versions = " and ".join(sorted(set(notes.values())))
    return f"{versions} on {named_ranks(sorted(notes))}: steps and exceptions are noted from Python 3.8 on"
