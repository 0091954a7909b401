"""The tags (one per line) and the note of a run, in its folder; of imported runs in the folder of runs."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hpcprof.common.atomic import write_atomically
from hpcprof.common.decode import read_text
from hpcprof.common.errors import UsageError, writing
from hpcprof.runs.directory import Run

_TAGS, _NOTE = "tags", "note"
MAX_TAGS = 100
MAX_NOTE_LENGTH = 2_000
"""Maximum length of a note in characters."""
_VALID = re.compile(r"[\w.:=/+@-]{1,64}")


def read_tags(run: Run, runs_dir: Path) -> list[str]:
    """Return the tags of a run, sorted."""
    with suppress(OSError):
        return sorted(read_text(_file(run, runs_dir, _TAGS)).split())
    return []


def read_note(run: Run, runs_dir: Path) -> str:
    """Return the note of a run; empty without one."""
    with suppress(OSError):
        return read_text(_file(run, runs_dir, _NOTE))
    return ""


def _file(run: Run, runs_dir: Path, name: str) -> Path:
    return runs_dir / f".{name}" / run.id if run.manifest is None else run.path / name


def imported_run_files(run_id: str, runs_dir: Path) -> list[Path]:
    """Return the files with the tags and the note of an imported run."""
    return [runs_dir / f".{name}" / run_id for name in (_TAGS, _NOTE)]


def check_tags(tags: Iterable[str]) -> None:
    """Check that tags are single words, and not too many."""
    tags = list(tags)
    if len(tags) > MAX_TAGS:
        raise UsageError(f"a run has at most {MAX_TAGS} tags.")
    for tag in tags:
        if not _VALID.fullmatch(tag):
            sentence = f"tag {tag!r}: a tag has 1 to 64 letters, digits or characters of . : = / + @ - _."
            raise UsageError(sentence)


def change_tags(run: Run, runs_dir: Path, tags: Iterable[str], remove: bool = False) -> list[str]:
    """Add tags to a run, or remove them from it, and return all its tags."""
    before = set(read_tags(run, runs_dir))
    after = sorted(before.difference(tags) if remove else before.union(tags))
    _write(_file(run, runs_dir, _TAGS), "".join(f"{tag}\n" for tag in after))
    return after


def annotate(run: Run, runs_dir: Path, tags: Iterable[str], note: str) -> None:
    """Replace the tags and the note of a run."""
    _write(_file(run, runs_dir, _TAGS), "".join(f"{tag}\n" for tag in tags))
    _write(_file(run, runs_dir, _NOTE), note)


def _write(path: Path, text: str) -> None:
    with writing(path):
        if text:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, text)
        else:
            path.unlink(missing_ok=True)
