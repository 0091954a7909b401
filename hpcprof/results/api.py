"""The Python interface: a run whose analyses are DataFrames."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hpcprof.analysis.explain.changes import Prediction
from hpcprof.analysis.explain.explanation import Explanation
from hpcprof.analysis.framework.outcome import AnalysisTable, data_frame
from hpcprof.analysis.framework.registry import ANALYSES, find_analysis, find_analysis_across_runs
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.notebook import InNotebooks
from hpcprof.profiles.timeline import Timeline
from hpcprof.results.ask.explanation import explain, what_if
from hpcprof.results.ask.query import Value
from hpcprof.results.ask.tables import RunTables
from hpcprof.results.collect.collection import Collected, collect
from hpcprof.results.collect.run_names import find_known_run
from hpcprof.results.collect.run_profiles import readable, why_unprofiled
from hpcprof.results.collect.stalls import is_unprofiled
from hpcprof.results.collect.timelines import timeline_reader
from hpcprof.results.store.store import Store, open_store
from hpcprof.runs.directory import Run, runs_directory

if TYPE_CHECKING:
    import pyarrow

    from hpcprof.analysis.predict.pipeline import PipelinePrediction, Schedule
    from hpcprof.analysis.predict.scale import ScalePrediction, Scaling


@dataclass(frozen=True)
class RunTimeline(InNotebooks):
    """The timeline of a run, which a notebook shows as the page does, ``height`` pixels high."""

    run: Run
    store: Store
    height: int


class Results(InNotebooks):
    """The collected results of a run.

    Every analysis is a method without arguments, as in ``results.kernels()``; `analysis` accepts its name.
    """

    def __init__(self, run: Run, store: Store) -> None:
        self.run = run
        self.store = store

    @property
    def id(self) -> str:
        """The id of the run, ``run_id`` in the store."""
        return self.run.id

    @property
    def ranks(self) -> list[int]:
        """The ranks whose profiles have been collected."""
        return sorted(self._collected_ranks())

    def collect(self, step_range: str | None = None, program: str | None = None) -> Collected:
        """Read the profiles of the run into the store, as ``hpcprof collect`` does.

        Parameters
        ----------
        step_range, program : str, optional
            As for `hpcprof.collect_profiles`.

        Raises
        ------
        HpcprofError
            If there are no profiles, two have the same rank, or none has the range.
        """
        self.store.prepare()
        with readable(self.run) as (run, unpacked):
            summary = collect(run, self.store, step_range=step_range, program=program)
        summary.skipped += unpacked.skipped
        return summary

    def analysis(self, name: str) -> pd.DataFrame:
        """Return an analysis as a table.

        ``attrs["reasons"]`` has, by rank, why rows or values are missing, ``attrs["losses"]`` sentences
        about what the profiles lack that it is computed from, and ``attrs["steps"]`` says which steps its
        figures count; empty if they are not of steps.

        An analysis of a plug-in (entry point group ``hpcprof.analyses``) is computed on each call.

        Raises
        ------
        UsageError
            If there is no analysis of that name.
        HpcprofError
            If the run has not been collected.
        """
        find_analysis(name)
        self._collected_ranks()
        return _exact_frame(RunTables(self.run, self.store).table(name))

    def arrow(self, name: str) -> pyarrow.Table:
        """Return an analysis as an Arrow table, which Polars and DuckDB read: ``polars.from_arrow``.

        Errors as of `analysis`.
        """
        find_analysis(name)
        self._collected_ranks()
        return RunTables(self.run, self.store).table(name).arrow()

    def against(self, name: str, *runs: Results) -> pd.DataFrame:
        """Return an analysis that compares this run (the candidate, side b) with others, as a DataFrame.

        The others are repeats of each other (the baseline, side a). The columns are those of the reference.

        ``name`` is ``compare``, ``slowdown_pairs``, ``slowdown_by_overlap`` or ``roofline``;
        ``attrs`` as in `analysis`.

        Raises
        ------
        UsageError
            If there is no such analysis, or no other run.
        HpcprofError
            If one of the runs has not been collected.
        """
        from hpcprof.results.across.across_runs import over_pair

        analysis = find_analysis_across_runs(name, against=bool(runs))
        if analysis is None or not runs:
            raise UsageError(f"{name} compares nothing without other runs.")
        return _exact_frame(over_pair(analysis, [self.run], [other.run for other in runs], self.store))

    def explain(self, *, step_ns: int | None = None, as_recorded: bool = False) -> Explanation:
        """Explain where step time is lost, and what each cause costs.

        `Explanation.shown` returns the findings that ``hpcprof explain`` shows, `Explanation.as_json` all of
        them as dictionaries. The first call reads the timelines; the results database keeps the explanation.

        Parameters
        ----------
        step_ns : int, optional
            The time of a step without the profiler, as of ``hpcprof open --step-time``. It is kept.
        as_recorded : bool
            Leave the profiler's share in, also where the step alone is known.

        Raises
        ------
        HpcprofError
            If the run has not been collected, or its timelines cannot be read.
        """
        if not is_unprofiled(self.run, self.store):
            self._collected_ranks()
        return explain(self.run, self.store, step_ns=step_ns, as_recorded=as_recorded)

    def whatif(self, *changes: str) -> Prediction:
        """Predict the step of the run with changed times; without changes, replay it as it was.

        ``run.whatif("range:data*0")`` is ``hpcprof whatif --set 'range:data*0'``.

        Raises
        ------
        UsageError
            If a change cannot be parsed, or is about something that the run does not have.
        HpcprofError
            If the run has not been collected, or its timelines cannot be read.
        """
        self._collected_ranks()
        return what_if(self.run, self.store, changes)

    def predict(
        self,
        ranks: int,
        *,
        scaling: Scaling = "weak",
        others: Sequence[Results] = (),
        keep: int = 1,
        site: str | None = None,
    ) -> ScalePrediction:
        """Predict the step of the program on other ranks, as ``hpcprof predict RUN --ranks N`` does.

        Parameters
        ----------
        ranks : int
        scaling : str
            ``weak`` if the size per rank stays, ``strong`` if the whole size does.
        others : sequence of Results
            Runs of the program on other numbers of ranks, which tell more of the network.
        keep : int
            Number of ranks of a group that stays as large, such as one of tensor parallelism.
        site : str, optional
            The site whose measured network is used (``hpcprof study network``), by default the run's.

        Raises
        ------
        UsageError
            If the mesh is ambiguous, or does not allow that number of ranks.
        HpcprofError
            If a run has not been collected, or has no steps.
        """
        from hpcprof.results.across.predictions import predict_runs

        self._collected_ranks()
        runs = [self.run, *(result.run for result in others)]
        return predict_runs(runs, self.store, [ranks], scaling, keep_size=keep, site=site)[0]

    def predict_pipeline(
        self,
        stages: int,
        microbatches: int | None = None,
        schedule: Schedule = "1f1b",
        chunks: int | None = None,
    ) -> PipelinePrediction:
        """Predict the step with another pipeline, as ``hpcprof predict RUN --pipeline STAGES`` does.

        ``schedule`` is ``1f1b``, ``interleaved`` or ``zero-bubble``; ``microbatches`` and ``chunks`` of a
        stage are by default the measured ones. Raises UsageError if the run has no pipeline, or the schedule
        does not allow the number of microbatches.
        """
        from hpcprof.analysis.predict.pipeline import predict_pipeline
        from hpcprof.results.across.predictions import run_operations

        self._collected_ranks()
        operations = run_operations(self.run, self.store)
        return predict_pipeline(operations, stages, microbatches, schedule, chunks)

    def reasons(self, analysis: str | None = None) -> pd.DataFrame:
        """Return the reasons why analyses, or one of them, lack rows or values; rank -1 is the whole run."""
        self._collected_ranks()
        tables = RunTables(self.run, self.store)
        names = [*tables] if analysis is None else [analysis]
        rows = [(rank, name, reason) for name in names for rank, reason in tables.table(name).reasons.items()]
        frame: pd.DataFrame = pd.DataFrame(rows, columns=["rank", "analysis", "reason"])
        return frame

    def losses(self) -> pd.DataFrame:
        """Return the losses of the profiles, a row for each rank and kind: ``count`` items out of ``of``.

        ``of`` is null if unknown.
        """
        self._collected_ranks()
        rows = [
            (rank, loss.kind.value, loss.subject.value, loss.count, loss.of, loss.detail, loss.sentence)
            for rank, loss in self.store.losses(self.id)
        ]
        names = ["rank", "kind", "subject", "count", "of", "detail", "sentence"]
        frame: pd.DataFrame = pd.DataFrame(rows, columns=names).astype({"of": "Int64"})
        return frame

    def timeline(self, rank: int) -> Timeline:
        """Read the timeline of a rank, kept by the collect or in its profile: numpy columns, times in ns.

        Raises
        ------
        UsageError
            If no profile with a timeline has that rank.
        DamagedInput
            If the profile cannot be read.
        """
        return timeline_reader(self.run, self.store)(rank)

    def show_timeline(self, height: int = 640) -> RunTimeline:
        """Return the timeline of all ranks as a notebook shows it, ``height`` pixels high.

        Raises HpcprofError if the run has not been collected.
        """
        self._collected_ranks()
        return RunTimeline(self.run, self.store, height)

    def events(self, sql: str) -> pd.DataFrame:
        """Return the rows of one SELECT over the events of all ranks, as ``hpcprof query --events`` does.

        ``attrs["missing"]`` has a sentence for each reason why ranks are not among them.

        Raises
        ------
        UsageError
            If the SQL is wrong or more than one SELECT, or DuckDB is not installed.
        HpcprofError
            If the run has not been collected, or has no events.
        """
        from hpcprof.results.ask.event_query import asking, find_events

        events = find_events([self.run], self.store)
        with asking(sql, events) as answer:
            columns = [*zip(*answer.rows, strict=True)] or [()] * len(answer.columns)
        series = [pd.Series(values, dtype=_nullable_type(values)) for values in columns]
        frame: pd.DataFrame = pd.DataFrame(dict(zip(answer.columns, series, strict=True)))
        frame.attrs["missing"] = events.missing
        return frame

    def __getattr__(self, name: str) -> Callable[[], pd.DataFrame]:
        if name not in ANALYSES:
            raise AttributeError(f"{name!r} is neither an analysis nor an attribute: dir() lists both")
        return partial(self.analysis, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *ANALYSES]

    def __repr__(self) -> str:
        return f"<hpcprof run {self.id}: {self.run.path}>"

    def _collected_ranks(self) -> list[int]:
        ranks = list(self.store.profiles(self.id)) if self.store.exists() else []
        if not ranks:
            if reason := why_unprofiled(self.run):
                raise HpcprofError(f"{self.id} has no results: {reason}.")
            raise HpcprofError(f"{self.id} has not been collected: call collect() first.")
        return ranks


def open_results(
    run: str | os.PathLike[str], runs_dir: str | os.PathLike[str] | None, db: str | None
) -> Results:
    """See `hpcprof.open`."""
    runs, store = located(runs_dir, db)
    return Results(find_known_run(os.fspath(run), runs, store), store)


def located(runs_dir: str | os.PathLike[str] | None, db: str | None) -> tuple[Path, Store]:
    """Return the folder of runs and the store that a user names, or the defaults."""
    runs = runs_directory(Path(runs_dir) if runs_dir else None)
    return runs, open_store(db, runs)


def _nullable_type(values: Sequence[Value]) -> str | None:
    """Return the type for a column of whole numbers with missing values, which pandas cannot infer."""
    whole = all(value is None or isinstance(value, int) for value in values)
    return "Int64" if whole and None in values else None


def _exact_frame(table: AnalysisTable) -> pd.DataFrame:
    frame = data_frame(table.declared, table.values, exact=True)
    frame.attrs |= {"reasons": table.reasons, "losses": table.losses, "steps": str(table.steps or "")}
    return frame
