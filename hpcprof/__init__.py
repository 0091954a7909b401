"""hpcprof: batch submission and profiling for HPC and machine-learning runs.

In Python, ``hpcprof.open("last").kernels()`` is an analysis of a run as a DataFrame. Importing hpcprof
imports nothing else; `open` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcprof.common import __version__

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from hpcprof.common.errors import DamagedInput, HpcprofError, SchedulerError, StoreError, UsageError
    from hpcprof.report.comparison import Comparison
    from hpcprof.results.across.history import History
    from hpcprof.results.api import Results
    from hpcprof.results.collect.collection import Collected
    from hpcprof.results.collect.executors.interface import Progress
    from hpcprof.runs.directory import Run
    from hpcprof.submit.jobs.job import JobSpec

__all__ = [
    "DamagedInput",
    "HpcprofError",
    "JobSpec",
    "SchedulerError",
    "StoreError",
    "UsageError",
    "__version__",
    "collect_profiles",
    "compare",
    "histories",
    "open",
    "open_baseline",
    "set_baseline",
    "submit_job",
]


def __getattr__(name: str) -> type[Exception | JobSpec]:
    if name == "JobSpec":
        from hpcprof.submit.jobs.job import JobSpec

        return JobSpec
    if not name.startswith("_") and name in __all__:
        from hpcprof.common import errors

        error_type: type[Exception] = getattr(errors, name)
        return error_type
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def submit_job(
    program: Sequence[str] = (),
    *,
    job_file: str | os.PathLike[str] | None = None,
    site_file: str | os.PathLike[str] | None = None,
    template: str | os.PathLike[str] | None = None,
    script: str | os.PathLike[str] | None = None,
    runs_dir: str | os.PathLike[str] | None = None,
    wait: bool = False,
    **options: object,
) -> Run:
    """Render a job's scripts and hand them to the scheduler, as ``hpcprof submit`` does.

    Nothing is printed. `hpcprof.submit.jobs.checks.remarks` returns what the command would note.

    Parameters
    ----------
    program : sequence of str
        The command of each rank; with ``workload``, the workload's arguments.
    job_file : path, optional
        A job file; the other arguments override its values.
    site_file : path, optional
        The path of a site file, instead of a name.
    template : path, optional
        A template of job.sh, instead of the scheduler's.
    script : path, optional
        An edited job.sh, instead of a rendered one.
    runs_dir : path, optional
        The folder of runs; else ``$HPCPROF_RUNS``, else the personal default, else ``runs``.
    wait : bool
        Whether to return only once the run has succeeded.
    **options
        The options of `JobSpec` by name: ``nodes=2, profiler="nsys", profile_ranks="local=0"``.

    Returns
    -------
    hpcprof.runs.directory.Run
        The run: its ``id``, its directory as ``path``, and its ``manifest``. `open` takes its path.

    Raises
    ------
    hpcprof.UsageError
        For the first value that is wrong: it is named, with what would be valid. Nothing was submitted.
    hpcprof.SchedulerError
        If the scheduler did not accept the job.
    hpcprof.HpcprofError
        With ``wait``, if the run did not succeed: which rank failed, and its last lines.
    """
    from dataclasses import replace
    from pathlib import Path

    from hpcprof.runs.directory import runs_directory
    from hpcprof.submit.jobs.job_file import read_spec
    from hpcprof.submit.submission import submit_request

    def path(options_given: str | os.PathLike[str] | None) -> Path | None:
        return None if options_given is None else Path(options_given)

    options_given = {key: value for key, value in options.items() if value is not None}
    request = replace(
        read_spec({"program": program, **options_given}, "submit_job()"),
        job_file=path(job_file),
        site_file=path(site_file),
        template=path(template),
        runs_dir=runs_directory(path(runs_dir)),
    )
    return submit_request(request, path(script), wait)


def open(
    run: str | os.PathLike[str] = "last",
    *,
    runs_dir: str | os.PathLike[str] | None = None,
    db: str | None = None,
) -> Results:
    """Open a run and its collected results.

    Parameters
    ----------
    run : str or path
        A run id, a name that means one run, ``last``, or the path of a run or of any folder of profiles.
    runs_dir : str or path, optional
        The folder of runs; else ``$HPCPROF_RUNS``, else the personal default, else ``runs``.
    db : str, optional
        The results database, a path or an SQLAlchemy URL; else ``$HPCPROF_DB``, else the personal
        default, else the one among the runs.

    Raises
    ------
    hpcprof.UsageError
        If there is no such run, or the database cannot be used.
    """
    from hpcprof.common.notebook import register_renderer
    from hpcprof.results.api import open_results

    register_renderer(_html)
    return open_results(run, runs_dir, db)


def _html(value: object) -> str | None:
    """Return an object as a notebook shows it."""
    from hpcprof.report.notebook import html_of

    return html_of(value)


def compare(candidate: Sequence[Results], baseline: Sequence[Results], *, force: bool = False) -> Comparison:
    """Compare runs with baseline runs, as ``hpcprof compare`` does; all are in one results database.

    Name the arguments: the command has the baseline first, ``hpcprof compare BASELINE CANDIDATE``, and this
    function the candidate.

    Parameters
    ----------
    candidate, baseline : sequence of Results
        Repeats of each other, each collected; `open_results` and ``hpcprof.open`` return them.
    force : bool
        Compare also runs of different programs, and a run with itself.

    Returns
    -------
    hpcprof.report.comparison.Comparison
        Its ``table`` has the metrics, ``conclusion()`` says what could not be compared or got worse.

    Raises
    ------
    hpcprof.UsageError
        If a side is empty, or the runs are of different programs.
    """
    from hpcprof.common.errors import UsageError
    from hpcprof.report.comparison import compare_runs
    from hpcprof.results.api import Results

    if not candidate or not baseline:
        raise UsageError("a comparison needs at least one run on each side.")
    for side in (candidate, baseline):
        if isinstance(side, str | Results) or not all(isinstance(named, Results) for named in side):
            raise UsageError("a side of a comparison is a list of runs: [hpcprof.open(RUN), …].")
    runs, against = ([named.run for named in side] for side in (candidate, baseline))
    return compare_runs(against, runs, candidate[0].store, force=force)


def collect_profiles(
    run: str | os.PathLike[str] = "last",
    *,
    runs_dir: str | os.PathLike[str] | None = None,
    db: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    step_range: str | None = None,
    program: str | None = None,
) -> Collected:
    """Read the profiles of a run into the results database, as ``hpcprof collect`` does.

    A folder without profiles of its own stands for all runs and folders of profiles below it; if one of them
    cannot be collected, ``skipped`` says why. Profiles whose results the database already has are left alone;
    damaged ones are skipped.

    Parameters
    ----------
    run, runs_dir, db
        As for `open`.
    jobs : int, optional
        The number of processes that read profiles. By default this process reads them, one after another.
        With more than one, call this from a module that can be imported without side effects (below
        ``if __name__ == "__main__":``), as `multiprocessing` requires.
    progress : callable, optional
        Called after each rank with the number of ranks done, the number of all, and the rank's profile.
    step_range : str, optional
        The name of the range that is the step of the run, in this and later collects; ``"auto"`` to have it
        found. By default what an earlier collect was given, else the step is found.
    program : str, optional
        The name of the program that ran, by which ``scaling`` and ``compare`` tell programs apart. By default
        what an earlier collect was given, else what the job runs.

    Returns
    -------
    hpcprof.results.collect.Collected
        The profiles that were read, those that were unchanged, and a sentence for each that was skipped.

    Raises
    ------
    hpcprof.UsageError
        If there is no such run, the database cannot be used, or no profile has the range.
    hpcprof.HpcprofError
        If there are no profiles, or two have the same rank; then nothing is stored.
    """
    from hpcprof.results.collect import collection

    return collection.collect_profiles(
        run, runs_dir=runs_dir, db=db, jobs=jobs, progress=progress, step_range=step_range, program=program
    )


def histories(
    program: str | None = None,
    metric: str = "step_ns",
    *,
    runs_dir: str | os.PathLike[str] | None = None,
    db: str | None = None,
) -> list[History]:
    """Return a metric of the runs of a program over time, as ``hpcprof history`` does.

    Parameters
    ----------
    program : str, optional
        The program; by default the one that all runs share.
    metric : str
        The metric: ``step_ns`` is the time of a step in ns.
    runs_dir, db
        As for `open`.

    Returns
    -------
    list of hpcprof.results.history.History
        One for each setup of the program.

    Raises
    ------
    hpcprof.UsageError
        If there is no such metric or program, or the database cannot be used.
    """
    from hpcprof.results.across import history
    from hpcprof.results.api import located

    runs, store = located(runs_dir, db)
    return history.histories(store, runs, program, metric)


def set_baseline(
    name: str, runs: Sequence[str], *, runs_dir: str | os.PathLike[str] | None = None, db: str | None = None
) -> None:
    """Name runs as a baseline, as ``hpcprof baseline set`` does.

    Parameters
    ----------
    name : str
    runs : sequence of str
        Runs as for `open`.
    runs_dir, db
        As for `open`.

    Raises
    ------
    hpcprof.UsageError
        If a run does not exist or cannot be compared, or the database cannot be used.
    """
    from hpcprof.results.across import named_baselines
    from hpcprof.results.api import located

    folder, store = located(runs_dir, db)
    named_baselines.set_baseline(name, runs, store, folder)


def open_baseline(
    name: str, *, runs_dir: str | os.PathLike[str] | None = None, db: str | None = None
) -> list[Results]:
    """Open the runs of a baseline, for ``results.against("compare", *open_baseline("main"))``.

    Parameters
    ----------
    name : str
    runs_dir, db
        As for `open`.

    Raises
    ------
    hpcprof.UsageError
        If there is no such baseline, one of its runs is gone, or the database cannot be used.
    """
    from hpcprof.results.across.named_baselines import baseline_runs
    from hpcprof.results.api import Results, located

    runs, store = located(runs_dir, db)
    return [Results(run, store) for run in baseline_runs(name, store, runs)]
