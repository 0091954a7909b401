"""The study that validates explanations: faults with measured costs against what explain finds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hpcprof.common.decode import read_file
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.study.runs import MessageKind, Progress, StudyRuns

if TYPE_CHECKING:  # the command's help needs none of these
    from hpcprof.study.validation_record import ValidationRecord, ValidationRun
    from hpcprof.study.validation_table import Cost, Validation
    from hpcprof.submit.jobs.job import JobSpec

STUDY: Literal["validate"] = "validate"
"""The name of the study."""

_WORKLOAD = "ddp"
_PROFILERS = ("nsys", "torch")


@dataclass(frozen=True)
class ValidationStudy:
    """A complete study."""

    folder: Path
    """The folder of the study; `resume_validation` accepts it."""
    found: list[Validation]
    """The faults in the order in which they were given."""


def run_validation(
    request: JobSpec,
    *,
    faults: Sequence[str] = (),
    block_steps: int = 10,
    repeats: int = 3,
    db: str | None = None,
    progress: Progress | None = None,
    command_line: Sequence[str] | None = None,
) -> ValidationStudy:
    """Compare what faults cost with what `hpcprof explain` finds, as ``hpcprof study validate`` does.

    The first run measures the cost of each fault without a profiler, and then one run for each is profiled.
    Every job is checked before the first is submitted. Ctrl-C and SIGTERM cancel the run that is waited for.

    Parameters
    ----------
    request : JobSpec
        The job, a training of the workload ddp. Its profiler is ``nsys`` (the default) or ``torch``.
    faults : sequence of str
        The faults, as `hpcprof.workloads.ddp.faults.parse_fault` reads them; by default all that the
        training can have.
    block_steps : int
        The steps of a block with or without a fault.
    repeats : int
        How often each fault has two blocks with it and two without it.
    db, progress, command_line
        As for `run_slowdown`.

    Raises
    ------
    UsageError
        If the request or a fault is wrong; then nothing is submitted.
    hpcprof.study.runs.RunFailed, hpcprof.study.runs.NoProfile, hpcprof.study.runs.StudyInterrupted
        If the study ends early; `resume_validation` continues it.
    """
    from hpcprof.study.resumable import begin

    record = _plan(request, faults, block_steps, repeats)
    runs = StudyRuns(len(record.runs), request.runs_dir, record.template, db, progress, command_line)
    return begin(record, runs, _validate)


def resume_validation(
    folder: str | os.PathLike[str],
    *,
    db: str | None = None,
    progress: Progress | None = None,
    command_line: Sequence[str] | None = None,
) -> ValidationStudy:
    """Continue a study that ended early, as ``hpcprof study validate --resume`` does.

    Runs that have succeeded are kept, one that has not ended is waited for, and the others are made. A
    version of hpcprof that explains differently explains all of them again.

    Parameters
    ----------
    folder : str or path
        The folder of the study.
    db, progress, command_line
        As for `run_validation`.

    Raises
    ------
    UsageError
        If the folder does not belong to such a study.
    hpcprof.study.runs.RunFailed, hpcprof.study.runs.NoProfile, hpcprof.study.runs.StudyInterrupted
        As `run_validation`.
    """
    from hpcprof.study.resumable import resume
    from hpcprof.study.validation_record import ValidationRecord

    return resume(folder, STUDY, ValidationRecord, _validate, db, progress, command_line)


def _plan(request: JobSpec, faults: Sequence[str], block_steps: int, repeats: int) -> ValidationRecord:
    """Return the runs that the study needs, with their checked jobs."""
    from hpcprof.study.validation_record import (
        ValidationRecord,
        ValidationRun,
        profiled_arguments,
        timed_arguments,
    )
    from hpcprof.submit.jobs.request import resolve
    from hpcprof.workloads.ddp.faults import parse_fault

    request = _training_request(request)
    site, job = resolve(replace(request, profiler="none"))
    faults_given = dict.fromkeys(parse_fault(text).text for text in faults)
    fault_texts = list(faults_given) or _possible_faults(request.program, job.ranks)
    for period, text in ((parse_fault(text).period, text) for text in fault_texts):
        if period > block_steps:
            raise UsageError(f"--block-steps {block_steps}: {text} needs blocks of at least {period} steps.")
    runs = []
    for names, profiled in [(fault_texts, False), *(([name], True) for name in fault_texts)]:
        words = profiled_arguments(names[0]) if profiled else timed_arguments(names, block_steps, repeats)
        fault_request = replace(request, program=(*request.program, *words))
        if not profiled:
            fault_request = replace(
                fault_request, profiler="none", profile_ranks=None, capture_steps=None, profiler_options={}
            )
        runs.append(ValidationRun(names, profiled, resolve(fault_request)[1]))
    template = request.template
    return ValidationRecord(STUDY, site, runs, str(template.absolute()) if template else None)


def _training_request(request: JobSpec) -> JobSpec:
    """Return the request with its job file merged in, and with the profiler of the study.

    Raises UsageError unless it is a training of the workload ddp into which the study may inject faults.
    """
    from hpcprof.submit.jobs.merge import merged
    from hpcprof.workloads.ddp.options import parse

    request = merged(request)
    if request.workload not in (None, _WORKLOAD):
        raise UsageError(f"--workload {request.workload}: only the workload {_WORKLOAD} has faults.")
    if request.profiler not in (None, "none", *_PROFILERS):
        raise UsageError(f"--profiler {request.profiler}: use {' or '.join(_PROFILERS)}.")
    if parse(request.program).fault:
        raise UsageError("--fault: the study injects one fault after another; name them with --faults.")
    profiler = request.profiler if request.profiler in _PROFILERS else _PROFILERS[0]
    ranks = request.profile_ranks or "all"
    return replace(request, workload=_WORKLOAD, profiler=profiler, profile_ranks=ranks)


def _possible_faults(program: Sequence[str], ranks: int) -> list[str]:
    """Return all faults that a training can have."""
    from hpcprof.workloads.ddp.faults import FAULTS, parse_fault
    from hpcprof.workloads.ddp.options import parse

    possible = []
    for name in FAULTS:
        try:
            parse((*program, "--fault", name)).validate(ranks)
        except UsageError:
            continue
        possible.append(parse_fault(name).text)
    return possible


def _validate(record: ValidationRecord, folder: Path, runs: StudyRuns) -> ValidationStudy:
    """Explain all runs that are profiled, and compare the cost of each fault with the explanation."""
    from hpcprof.results.ask.explanation import explain
    from hpcprof.runs.directory import open_run
    from hpcprof.study.validation_table import Validation
    from hpcprof.workloads.ddp.faults import parse_fault

    costs = _measured_costs((run for run in record.runs if not run.profiled), runs.runs_dir)
    validations = []
    for planned in record.runs:
        if not planned.profiled:
            continue
        explanation = None
        try:
            explanation = explain(open_run(runs.runs_dir / planned.run), runs.store)
        except HpcprofError as error:
            runs.tell(f"{planned.faults[0]}: {error}", MessageKind.WARNING)
        fault = parse_fault(planned.faults[0])
        validations.append(Validation(fault, costs[fault.text], explanation, planned.job.ranks))
    return ValidationStudy(folder, validations)


def _measured_costs(timed: Iterable[ValidationRun], runs_dir: Path) -> dict[str, Cost]:
    from hpcprof.profiles.readers.results import parse_result
    from hpcprof.study.validation_table import fault_costs
    from hpcprof.workloads.schema import file_name

    costs = {}
    for planned in timed:
        path = runs_dir / planned.run / "results" / file_name(0)
        try:
            costs.update(fault_costs(parse_result(read_file(path))))
        except OSError as error:
            raise HpcprofError(f"{path} cannot be read: {error.strerror}.") from None
    return costs
