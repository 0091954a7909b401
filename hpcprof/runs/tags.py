"""The tags of a run: words of the user's, one per line in the file ``tags`` of the run directory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from hpcprof.common.atomic import write_atomically
from hpcprof.common.decode import read_text
from hpcprof.common.errors import UsageError, writing
from hpcprof.runs.directory import Run

_FILE = "tags"
_VALID = re.compile(r"[\w.:=/+@-]{1,64}")


def read_tags(run: Run) -> list[str]:
    """Return the tags of a run, sorted."""
    with suppress(OSError):
        return sorted(read_text(run.path / _FILE).split())
    return []


def check_tags(tags: Iterable[str]) -> None:
    """Check that tags are single words."""
    for tag in tags:
        if not _VALID.fullmatch(tag):
            raise UsageError(
                f"tag {tag!r}: a tag has 1 to 64 letters, digits or characters of . : = / + @ - _."
            )


def change_tags(run: Run, tags: Iterable[str], remove: bool = False) -> list[str]:
    """Add tags to a submitted run, or remove them from it, and return all its tags."""
    before = set(read_tags(run))
    after = sorted(before.difference(tags) if remove else before.union(tags))
    path = run.path / _FILE
    with writing(path):
        if after:
            write_atomically(path, "".join(f"{tag}\n" for tag in after))
        else:
            path.unlink(missing_ok=True)
    return after
