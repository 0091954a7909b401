"""Ranks that run a Python too old for the hook, as its start noted them."""

from hpcprof.common.units import named_ranks
from hpcprof.runs.directory import Run


def describe_old_pythons(run: Run) -> str:
    """Return the ranks that ran under a Python before 3.8, and its version; empty without one."""
    notes = {rank: version[:20] for rank, version in run.rank_notes("python").items() if version}
    if not notes:
        return ""
    versions = " and ".join(sorted(set(notes.values())))
    return f"{versions} on {named_ranks(list(notes))}: steps and exceptions are noted from Python 3.8 on"
