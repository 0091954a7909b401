"""The runs that the application shows, looked up again every few seconds for all of its readers together."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from hpcprof.common.errors import HpcprofError, StoreError, UsageError
from hpcprof.results.across.listing import IMPORTED, ListedRun, list_runs, parse_since
from hpcprof.results.collect.run_names import stored_run
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run, has_manifest, number_in_sweep, open_run, sweep_of
from hpcprof.submit.schedulers.base import JobState, JobStatus

FRESH_SECONDS = 10.0
"""Maximum age of a list, in seconds: sites forbid asking a scheduler every second."""

_MIN_LIST_SECONDS = 1.0
"""The least age of a list that is made again for a run that it does not name."""


_ENDED_STATES = (JobState.COMPLETED.value, IMPORTED)
"""The states of the runs that others are compared with."""

_JOB_STATES = {state.value for state in JobState}

_NO_VALUES = (None, "")


@dataclass(frozen=True)
class Filters:
    """The choice and the order of runs in a list; empty values choose all, the newest first.

    ``search`` holds words that all have to occur in the id, the command, the program, the site or the tags.
    ``since`` is a date or an age, as for ``hpcprof list --since``. ``sort`` is one of `SORTED_BY`, with a
    minus sign for the largest first; ``group`` one of `GROUPED_BY`.
    """

    search: str = ""
    program: str = ""
    site: str = ""
    state: str = ""
    tag: str = ""
    profiler: str = ""
    since: str = ""
    sort: str = ""
    group: str = ""

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> "Filters":
        """Return the filters among the parameters of an address."""
        return cls(**{f.name: parameters[f.name].strip() for f in fields(cls) if f.name in parameters})


class KnownRun(msgspec.Struct, frozen=True):
    """A line of the list, with the program of the run."""

    listed: ListedRun
    program: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the run as the API shows it."""
        return {"program": self.program, **self.listed.plain()}

    @property
    def when(self) -> datetime | None:
        """The time when the run was submitted, or started."""
        return self.listed.submitted or self.listed.started

    @property
    def sweep(self) -> str | None:
        """The id of the sweep of the run, if it is a member of one."""
        return sweep_of(self.listed.run)

    @property
    def kind(self) -> tuple[str | int | None, ...]:
        """The program, command, ranks, site and profiler: steps of other kinds say nothing of this run's."""
        listed = self.listed
        return self.program, listed.command, listed.ranks, listed.site, listed.profiler

    @property
    def is_open(self) -> bool:
        """True if the job of the run has not ended."""
        return self.listed.state in (JobState.QUEUED.value, JobState.RUNNING.value)

    def matches(self, filters: Filters, since: datetime | None) -> bool:
        """Return whether filters choose the run."""
        listed = self.listed
        exact = (
            (filters.program, self.program),
            (filters.site, listed.site),
            (filters.state, listed.state),
            (filters.profiler, listed.profiler),
        )
        if any(wanted and wanted != value for wanted, value in exact):
            return False
        if filters.tag and filters.tag not in listed.tags:
            return False
        if since is not None and (self.when is None or self.when < since):
            return False
        text = " ".join(filter(None, (listed.run, listed.command, self.program, listed.site, *listed.tags)))
        return all(word in text.lower() for word in filters.search.lower().split())


SORTED_BY: Mapping[str, Callable[[KnownRun], Any]] = {
    "run": lambda run: run.listed.run,
    "state": lambda run: run.listed.state,
    "step": lambda run: run.listed.step_ns,
    "program": lambda run: run.program,
    "started": lambda run: run.when,
    "duration": lambda run: run.listed.duration_s,
    "ranks": lambda run: run.listed.ranks,
    "site": lambda run: run.listed.site,
    "profiler": lambda run: run.listed.profiler,
    "sweep": lambda run: run.sweep,
}
"""The values that a list can be sorted by."""

GROUPED_BY = ("program", "site", "state", "profiler", "ranks", "sweep")
"""Those that it can be grouped by."""


class Listing(msgspec.Struct, frozen=True):
    """All runs, the newest first, and a sentence for each that cannot be read."""

    runs: list[KnownRun]
    skipped: list[str]

    def chosen(self, filters: Filters) -> list[KnownRun]:
        """Return the runs that filters choose, in their order; runs without the value come last.

        Groups are in the order of their first runs. Raise `UsageError` for an unknown order or group.
        """
        since = parse_since(filters.since, datetime.now(timezone.utc)) if filters.since else None
        chosen = [run for run in self.runs if run.matches(filters, since)]
        if filters.sort:
            value = SORTED_BY[_known_text("sort", filters.sort.removeprefix("-"), SORTED_BY)]
            with_value = [run for run in chosen if value(run) not in _NO_VALUES]
            with_value.sort(key=value, reverse=filters.sort.startswith("-"))
            chosen = with_value + [run for run in chosen if value(run) in _NO_VALUES]
        if not filters.group:
            return chosen
        group = SORTED_BY[_known_text("group", filters.group, GROUPED_BY)]
        groups = list(dict.fromkeys(map(group, chosen)))
        return sorted(chosen, key=lambda run: groups.index(group(run)))

    def values(self, name: str) -> list[str]:
        """Return the values that a filter may have."""
        values: set[str | None] = set()
        for run in self.runs:
            if name == "tag":
                values.update(run.listed.tags)
            else:
                values.add(run.program if name == "program" else getattr(run.listed, name))
        return sorted(value for value in values if value)

    def sweep(self, sweep: str) -> list[KnownRun]:
        """Return the members of a sweep, in its order."""
        members = [run for run in self.runs if run.sweep == sweep]
        return sorted(members, key=lambda run: number_in_sweep(run.listed.run))

    def alike(self, run_id: str) -> tuple[set[str], str | None]:
        """Return the runs like a run, and the newest one of them before it, if possible of the same command.

        They have the same program and number of ranks, and did not fail. A failed or running run has none.
        """
        ids = [run.listed.run for run in self.runs]
        if run_id not in ids:
            return set(), None
        place = ids.index(run_id)
        reference = self.runs[place]
        if reference.listed.state not in _ENDED_STATES:
            return set(), None

        def like(run: "KnownRun") -> bool:
            is_same_program = (run.program, run.listed.ranks) == (reference.program, reference.listed.ranks)
            return (
                is_same_program
                and run.program is not None
                and run.listed.state in _ENDED_STATES
                and run is not reference
            )

        before = (run.listed for run in self.runs[place:] if like(run))
        # The same command is best: then only the studied difference remains.
        earlier = min(before, key=lambda listed: listed.command != reference.listed.command, default=None)
        return {run.listed.run for run in self.runs if like(run)}, earlier.run if earlier else None


class Catalogue:
    """The runs of a folder and of a store.

    ``clock`` returns seconds that only grow. If ``all_stored``, all runs are in the store: if it cannot be
    used, there is no list.
    """

    def __init__(
        self,
        runs_dir: Path,
        db: str | None,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        all_stored: bool = False,
    ) -> None:
        self.store = store
        self.runs_dir = runs_dir
        self._db, self._clock, self._all_stored = db, clock, all_stored
        self._lock = Lock()
        self._listing = Listing([], [])
        self._made: float | None = None
        self._programs: dict[str, str | None] = {}

    def listing(self, older_than: float = FRESH_SECONDS) -> Listing:
        """Return the list, made again if it is older than some seconds.

        One reader makes it. Other requests get the old list meanwhile; they wait only for the first list.
        """
        if self._made is not None and self._clock() - self._made <= older_than:
            return self._listing
        if self._lock.acquire(blocking=self._made is None):
            try:
                if self._made is None or self._clock() - self._made > older_than:
                    self._listing, self._made = self._list(), self._clock()
            finally:
                self._lock.release()
        return self._listing

    def forget(self) -> None:
        """Have the list made again at the next request: a run is new, or its tags have changed."""
        self._made = None

    def find(self, run_id: str) -> Run:
        """Return the run of an id, or raise `UnknownRun`; a name in a request is never a path."""
        for older_than in (FRESH_SECONDS, _MIN_LIST_SECONDS):
            for run in self.listing(older_than).runs:
                if run.listed.run == run_id:
                    return self.open(run.listed)
        raise UnknownRun(run_id)

    def status(self, run: Run) -> JobStatus | None:
        """Return the state of a run as the list has it; None for profiles of another tool."""
        if run.manifest is None:
            return None
        for listed_run in self.listing().runs:
            if listed_run.listed.run == run.id and listed_run.listed.state in _JOB_STATES:
                return JobStatus(JobState(listed_run.listed.state), listed_run.listed.reason)
        return None

    def open(self, listed: ListedRun) -> Run:
        """Return the run of a line of the list."""
        path = Path(listed.path)
        if has_manifest(path):
            return open_run(path)
        return stored_run(listed.run, self.runs_dir, {listed.run: listed.path}) or Run(listed.run, path)

    def _list(self) -> Listing:
        skipped: list[str] = []
        rows = list_runs(self.runs_dir, self._db, skipped=skipped)
        named = self._named_programs(skipped)
        runs = [KnownRun(row, named.get(row.run) or self._program(row)) for row in rows]
        oldest = datetime.min.replace(tzinfo=timezone.utc)
        # Submissions have whole seconds: those of one second keep their order, the newest first.
        newest_first = sorted(runs, key=lambda run: run.when or oldest)[::-1]
        return Listing(newest_first, skipped)

    def _named_programs(self, skipped: list[str]) -> dict[str, str | None]:
        try:
            return {row.id: row.program for row in self.store.runs()} if self.store.exists() else {}
        except StoreError as error:
            if self._all_stored:
                raise
            if str(error) not in skipped:
                skipped.append(str(error))
            return {}

    def _program(self, row: ListedRun) -> str | None:
        if row.run not in self._programs:
            try:
                manifest = open_run(Path(row.path)).manifest
            except HpcprofError:
                return None
            self._programs[row.run] = manifest.job.program if manifest else None
        return self._programs[row.run]


class UnknownRun(HpcprofError):
    """A request names a run that there is not."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id[:100]!r}.")


def _known_text(name: str, value: str, values: Collection[str]) -> str:
    if value not in values:
        raise UsageError(f"{name}: {value[:100]!r} is none of {', '.join(values)}.")
    return value


def shown_filters(listing: Listing) -> Sequence[tuple[str, list[str]]]:
    """Return the filters of the list that have a choice, with their values."""
    return [(name, listing.values(name)) for name in ("program", "site", "state", "tag", "profiler")]
