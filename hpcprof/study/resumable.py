"""Studies that can be continued: the file that lists their runs, and the runs that are still to be made."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hpcprof.common.atomic import write_atomically
from hpcprof.common.decode import from_json, read_file
from hpcprof.common.errors import HpcprofError, UsageError, writing
from hpcprof.runs.directory import Run, has_manifest, new_run_id, open_run
from hpcprof.study.runs import MessageKind, NoProfile, Progress, StudyRuns, resume_command
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.submit.schedulers.polling import poll
from hpcprof.submit.sites.model import Site

if TYPE_CHECKING:
    from typing_extensions import Self

RECORD_FILE = "study.json"
"""The name of the file."""


class StudyRecord(msgspec.Struct, frozen=True):
    """The runs of a study in the order in which they are made.

    ``template`` is the absolute path of the user's template of job.sh. Each study has a record of its own,
    which names the study and the type of its runs.
    """

    study: str
    site: Site
    runs: Sequence[Any]
    template: str | None = None

    def with_run(self, index: int, run: str) -> "Self":
        """Return the record with another id for one run."""
        runs = list(self.runs)
        runs[index] = msgspec.structs.replace(runs[index], run=run)
        return msgspec.structs.replace(self, runs=runs)


RecordT = TypeVar("RecordT", bound=StudyRecord)
StudyT = TypeVar("StudyT")


class _StudyName(msgspec.Struct):
    study: str


def begun(record: StudyRecord) -> bool:
    """Return whether any run of a study has been submitted."""
    return any(planned.run for planned in record.runs)


def begin(record: RecordT, runs: StudyRuns, complete: Callable[[RecordT, Path, StudyRuns], StudyT]) -> StudyT:
    """Write the record of a new study into a folder of its own, make its runs, and complete the study.

    If the first job is refused, no folder is left behind. ``complete`` returns the complete study, given the
    record with the ids of all runs, the folder of the study, and what has made the runs.
    """
    folder = runs.runs_dir / new_run_id(record.study, runs.runs_dir)
    try:
        write_record(folder, record)
        return complete(make_runs(record, folder, runs), folder, runs)
    except (HpcprofError, UnicodeEncodeError):
        if not (folder / RECORD_FILE).is_file() or not begun(read_record(folder, record.study, type(record))):
            shutil.rmtree(folder)
        raise


def write_record(folder: Path, record: StudyRecord) -> None:
    """Write the record of a study into its folder, atomically."""
    path = folder / RECORD_FILE
    text = msgspec.json.format(msgspec.json.encode(record), indent=1).decode()
    with writing(path):
        write_atomically(path, text + "\n")


def read_record(folder: Path, study: str, record_type: type[RecordT]) -> RecordT:
    """Read the record of a study.

    ``study`` is its name. Raises UsageError if the folder does not belong to such a study, and HpcprofError
    if the record cannot be read.
    """
    path = folder / RECORD_FILE
    try:
        text = read_file(path)
        if (owner := from_json(text, _StudyName).study) != study:
            raise UsageError(f"{folder} belongs to hpcprof study {owner}, not to hpcprof study {study}.")
        record = from_json(text, record_type)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} has no {RECORD_FILE}: name a folder of hpcprof study {study}.") from None
    except OSError as error:
        raise HpcprofError(f"{path} cannot be read: {error.strerror}.") from None
    except msgspec.MsgspecError as error:
        raise HpcprofError(f"{path} cannot be read: {error}.") from None
    if not record.runs:
        raise HpcprofError(f"{path} cannot be read: it lists no runs.")
    return record


def resume(
    folder: str | os.PathLike[str],
    study: str,
    record_type: type[RecordT],
    complete: Callable[[RecordT, Path, StudyRuns], StudyT],
    db: str | None,
    progress: Progress | None,
    command_line: Sequence[str] | None,
) -> StudyT:
    """Make the runs of a study that are missing, and complete it as `begin` does.

    Raises UsageError and HpcprofError as `read_record` does.
    """
    path = Path(folder)
    record = read_record(path, study, record_type)
    # Before the first job: one that is submitted and cannot be recorded would be lost.
    write_record(path, record)
    runs = StudyRuns(len(record.runs), path.resolve().parent, record.template, db, progress, command_line)
    return complete(make_runs(record, path, runs), path, runs)


def make_runs(record: RecordT, folder: Path, runs: StudyRuns) -> RecordT:
    """Make and collect the runs that were not made before; return the record with the ids of all runs.

    ``folder`` is that of the study.
    """
    runs.set_resume_command(folder, resume_command(record.study, folder))
    with runs.cancelled_on_interrupt():
        for index, planned in enumerate(record.runs):
            runs.begin(index + 1, planned.title)
            record = _make_run(record, index, runs, folder)
    return record


def _make_run(record: RecordT, index: int, runs: StudyRuns, folder: Path) -> RecordT:
    """Make and collect one run, unless it was made before; return the record with its id."""
    try:
        earlier = _earlier_run(record.runs[index].run, folder.resolve().parent)
        if earlier is None:
            run = runs.submit(record.site, record.runs[index].job)
            record = record.with_run(index, run.id)
            write_record(folder, record)
            runs.wait(run)
        else:
            run, status = earlier
            runs.tell(f"{'kept' if status.state.ended else 'submitted before:'} {run.id}")
            if not status.state.ended:
                runs.wait(run)
        runs.collect(run, profiled=record.runs[index].profiled)
    except HpcprofError as error:
        if isinstance(error, NoProfile):
            record = record.with_run(index, "")
            write_record(folder, record)
        if begun(record):
            runs.tell(f"resume with: {resume_command(record.study, folder)}", MessageKind.WARNING)
        raise
    return record


def _earlier_run(run_id: str, runs_dir: Path) -> tuple[Run, JobStatus] | None:
    """Return the run that was made before, or None unless it may still succeed."""
    if not run_id or not has_manifest(runs_dir / run_id):
        return None
    run = open_run(runs_dir / run_id)
    status = poll([run])[run.id]
    if status.state is JobState.UNKNOWN:
        raise HpcprofError(f"cannot tell whether {run.id} has ended: {status.reason.rstrip('.')}.")
    if status.state.ended and status.state is not JobState.COMPLETED:
        return None
    return run, status
