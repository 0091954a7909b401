"""The tags of a run, one per line in its file ``tags``; those of imported runs are in the folder of runs."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hpcprof.common.atomic import write_atomically
from hpcprof.common.decode import read_text
from hpcprof.common.errors import UsageError, writing
from hpcprof.runs.directory import Run

_FILE = "tags"
_IMPORTED = ".tags"
"""Folder in the folder of runs with a file for each imported run that has tags."""
_VALID = re.compile(r"[\w.:=/+@-]{1,64}")


def read_tags(run: Run, runs_dir: Path) -> list[str]:
    """Return the tags of a run, sorted."""
    with suppress(OSError):
        return sorted(read_text(_file(run, runs_dir)).split())
    return []


def _file(run: Run, runs_dir: Path) -> Path:
    return tags_of_imported(run.id, runs_dir) if run.manifest is None else run.path / _FILE


def tags_of_imported(run_id: str, runs_dir: Path) -> Path:
    """Return the file with the tags of an imported run."""
    return runs_dir / _IMPORTED / run_id


def check_tags(tags: Iterable[str]) -> None:
    """Check that tags are single words."""
    for tag in tags:
        if not _VALID.fullmatch(tag):
            sentence = f"tag {tag!r}: a tag has 1 to 64 letters, digits or characters of . : = / + @ - _."
            raise UsageError(sentence)


def change_tags(run: Run, runs_dir: Path, tags: Iterable[str], remove: bool = False) -> list[str]:
    """Add tags to a run, or remove them from it, and return all its tags."""
    before = set(read_tags(run, runs_dir))
    after = sorted(before.difference(tags) if remove else before.union(tags))
    path = _file(run, runs_dir)
    with writing(path):
        if after:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, "".join(f"{tag}\n" for tag in after))
        else:
            path.unlink(missing_ok=True)
    return after
