"""The results database: runs, profiles, and one table per analysis.

Every key consists of what it names (run, rank, position), never of a counter or the clock: collecting again
writes the same rows. The rows of a profile are replaced in one transaction, so half of a profile is never
visible.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from sqlalchemy import Connection, Select, Table, exists, func, or_, select
from sqlalchemy.engine import URL

from hpcprof.analysis.framework.declaration import Policy, Scope
from hpcprof.analysis.framework.losses import losses_of
from hpcprof.analysis.framework.outcome import WHOLE_RUN, AnalysisTable
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import StoreError
from hpcprof.profiles.event_folders import EVENTS, has_run_events
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.discovery import content_of
from hpcprof.results.store.analysis_version import ANALYSIS_VERSION
from hpcprof.results.store.database import Database, delete, insert_columns, insert_rows, store_url
from hpcprof.results.store.tables import (
    BASELINES,
    EXPLANATIONS,
    FACTS,
    GPUS,
    LOSSES,
    PROFILES,
    PUSHED,
    RANK_TABLES,
    REASONS,
    RUN_TABLES,
    RUNS,
    TABLES,
    TABLES_OF_RUNS,
    BaselineRow,
    ExplanationRow,
    FactRow,
    GpuRow,
    LossRow,
    ProfileRow,
    PushedRow,
    ReasonRow,
    RunRow,
    storable_text,
)
from hpcprof.runs.config import default_database
from hpcprof.runs.directory import has_manifest, runs_directory

if TYPE_CHECKING:
    from hpcprof.profiles.timeline import Fact, Gpu
    from hpcprof.profiles.timeline_parquet import RankEvents


_RecordT = TypeVar("_RecordT", bound=msgspec.Struct)
_RUN_ANALYSIS = "steps"
"""An analysis that only the collect of a run stores, with rows or a reason; an explanation stores others."""
_LAZY_REASON = "not computed yet: hpcprof report RUN --analysis {} computes it"


class RunNotes(msgspec.Struct, frozen=True):
    """Gaps of a run: ``reasons`` by analysis and rank, and the losses of its profiles by rank."""

    reasons: dict[str, dict[int, str]]
    losses: list[tuple[int, Loss]]


class RankResults(msgspec.Struct, frozen=True):
    """The stored results of one rank: its profile, its analyses and its origin."""

    profile: ProfileRow
    tables: Mapping[str, AnalysisTable]
    gpus: Sequence[Gpu] = ()
    facts: Sequence[Fact] = ()
    losses: Sequence[Loss] = ()

    def gpu_rows(self) -> list[GpuRow]:
        """Return a row for each GPU; the first of two with the same number counts."""
        by_device: dict[int, Gpu] = {}
        for gpu in self.gpus:
            by_device.setdefault(gpu.device, gpu)
        return [GpuRow(*self.key, **asdict(gpu)) for gpu in by_device.values()]

    @property
    def key(self) -> tuple[str, int]:
        """The run and the rank."""
        return self.profile.run_id, self.profile.rank


class Store(Database):
    """The results of runs in one database.

    A method that writes or deletes and raises `StoreError` has changed nothing. ``runs_dir`` is the folder of
    runs that was named with it, for commands in messages.
    """

    def __init__(self, url: URL, runs_dir: Path | None = None, read_only: bool = False) -> None:
        super().__init__(url, read_only)
        self.runs_dir = runs_dir or runs_directory()

    def runs(self) -> list[RunRow]:
        """Return the collected runs, by id."""
        return self._rows(RunRow, select(RUNS).order_by(RUNS.c.id))

    def run(self, run_id: str) -> RunRow | None:
        """Return the row of a run; None if nothing of it has been collected."""
        return next(iter(self._rows(RunRow, select(RUNS).where(RUNS.c.id == run_id))), None)

    def _rows(self, record: type[_RecordT], query: Select[Any]) -> list[_RecordT]:
        with self.reading() as connection:
            return [record(*row) for row in connection.execute(query)]

    def gpus(self, run_id: str) -> list[GpuRow]:
        """Return the GPUs that the profiles of a run list, by rank and device."""
        query = select(GPUS).where(GPUS.c.run_id == run_id).order_by(GPUS.c.rank, GPUS.c.device)
        return self._rows(GpuRow, query)

    def common_facts(self, run_id: str) -> dict[tuple[str, str], str]:
        """Return the facts that have one value in all profiles of a run, by their kind and name."""
        columns = (FACTS.c.kind, FACTS.c.name, FACTS.c.value)
        query = select(*columns).where(FACTS.c.run_id == run_id).distinct().order_by(*columns)
        values_of_kinds: dict[tuple[str, str], list[str]] = {}
        with self.reading() as connection:
            for kind, name, value in connection.execute(query):
                values_of_kinds.setdefault((kind, name), []).append(value)
        return {key: values[0] for key, values in values_of_kinds.items() if len(values) == 1}

    def profiles(self, run_id: str) -> dict[int, ProfileRow]:
        """Return the collected profiles of a run by rank."""
        query = select(PROFILES).where(PROFILES.c.run_id == run_id).order_by(PROFILES.c.rank)
        return {row.rank: row for row in self._rows(ProfileRow, query)}

    def runs_of_file(self, name: str) -> list[str]:
        """Return the runs whose only file of profiles has a name, given with or without its suffixes."""
        file = func.min(PROFILES.c.file)
        named = or_(file == name, file.startswith(f"{name}.", autoescape=True))
        runs = select(PROFILES.c.run_id).group_by(PROFILES.c.run_id)
        query = runs.having(named, file == func.max(PROFILES.c.file))
        with self.reading() as connection:
            return sorted(connection.scalars(query))

    def table(
        self, run_id: str, analysis: str, columns: Sequence[str] | None = None, notes: RunNotes | None = None
    ) -> AnalysisTable:
        """Return an analysis as it is kept, ordered by rank and then as the analysis ordered its rows.

        ``columns`` chooses some of its columns, and ``notes`` is what `notes` returns of the run, for callers
        that read several analyses.
        """
        declared = ANALYSES[analysis]
        names = [column.name for column in declared.columns] if columns is None else columns
        lost: dict[int, StoreError] = {}
        with self.reading() as connection:
            if analysis in TABLES:
                values = _read_rows(connection, run_id, TABLES[analysis], names)
            stored = notes or RunNotes(_reasons(connection, run_id, analysis), _losses(connection, run_id))
        reasons = dict(stored.reasons.get(analysis, {}))
        if analysis not in TABLES:
            from hpcprof.results.store.rank_tables import kept_table

            rows = kept_table(self.rank_events(run_id).values(), analysis, columns, lost)
            values = {name: rows.column(name) for name in names}
        reasons |= {rank: str(error) for rank, error in lost.items()}
        reasons |= dict.fromkeys(self.uncomputed(run_id, [analysis]), _LAZY_REASON.format(analysis))
        losses = losses_of(declared, stored.losses)
        return AnalysisTable(values, reasons, losses, declared=declared.columns)

    def uncomputed(self, run_id: str, names: Iterable[str]) -> dict[int, list[str]]:
        """Return the lazy analyses among ``names`` that have not been computed yet (`Policy.LAZY`).

        They are listed by rank; analyses that span the ranks are listed under `WHOLE_RUN`.
        """
        missing: dict[int, list[str]] = defaultdict(list)
        lazy = [name for name in names if ANALYSES[name].policy is Policy.LAZY]
        profiles = self.profiles(run_id).values() if lazy else ()
        ranks = {
            row.rank
            for row in profiles
            if row.analysis_version == ANALYSIS_VERSION and content_of(row.kind) is ProfileContent.TIMELINE
        }
        with self.reading() as connection:
            for name in lazy:
                if ANALYSES[name].scope is Scope.RANK:
                    for rank in sorted(ranks - ranks_with(connection, run_id, name)):
                        missing[rank].append(name)
                elif not ranks or not has_run_analyses(connection, run_id):
                    continue
                elif not has_run_analyses(connection, run_id, name):
                    missing[WHOLE_RUN].append(name)
        return missing

    def events_folder(self, path: str | Path) -> Path:
        """Return the folder in which the events of a run are kept, given the folder of its profiles.

        A run keeps them itself. Events of other tools' profiles, and of runs that this user cannot write, are
        kept in the folder of runs.
        """
        path = Path(path)
        beside, among = self._events_folders(path)
        writable = has_manifest(path) and os.access(beside if beside.exists() else path, os.W_OK)
        return beside if writable else among

    def rank_events(self, run_id: str) -> dict[int, RankEvents]:
        """Return the places of the event files of each rank with a timeline, whether or not they exist."""
        from hpcprof.profiles.timeline_parquet import RankEvents

        run = self.run(run_id)
        if run is None:
            return {}
        # Runs may have moved since they were collected.
        known_folders = [Path(run.events)] if run.events else []
        all_folders = dict.fromkeys([*known_folders, *self._events_folders(run.path)])
        folders = [item for item in all_folders if has_run_events(item, run_id)] or [
            self.events_folder(run.path)
        ]
        events = {}
        for rank, profile in self.profiles(run_id).items():
            if content_of(profile.kind) is ProfileContent.TIMELINE:
                places = [RankEvents(folder, run_id, rank, profile.sha256) for folder in folders]
                # Only where the run was moved, or not always writable, there are several.
                written = (place for place in places if len(places) == 1 or place.written())
                events[rank] = next(written, places[0])
        return events

    def _events_folders(self, path: str | Path) -> tuple[Path, Path]:
        """Return the two possible folders of the events of a run: its own, and one in the folder of runs."""
        return Path(path) / EVENTS, self.runs_dir / EVENTS

    def notes(self, run_id: str) -> RunNotes:
        """Return the gaps in the profiles and the analyses of a run."""
        with self.reading() as connection:
            return RunNotes(_reasons(connection, run_id), _losses(connection, run_id))

    def losses(self, run_id: str) -> list[tuple[int, Loss]]:
        """Return the losses of the profiles of a run, each with its rank."""
        with self.reading() as connection:
            return _losses(connection, run_id)

    def has_run(self, run_id: str) -> bool:
        """Return whether the analyses that span the ranks of a run are stored.

        `put_run` writes them, and `put_profiles` deletes them. A run without profiles has some of them.
        """
        with self.reading() as connection:
            profile = exists().where(PROFILES.c.run_id == run_id)
            is_profiled = connection.execute(select(profile)).scalar()
            return has_run_analyses(connection, run_id, *(() if is_profiled else RUN_TABLES))

    def put_profiles(self, run: RunRow, results: Sequence[RankResults]) -> None:
        """Write the profiles and the analyses of some ranks, replacing what the store has of them.

        It is one transaction, which waits for the disk once. The analyses that span the ranks are deleted:
        they no longer fit.
        """
        with self.writing(run.id) as connection:
            for result in results:
                self._delete_rank(connection, run.id, result.profile.rank)
            delete_run_analyses(connection, run.id)
            connection.execute(RUNS.delete().where(RUNS.c.id == run.id))
            insert_rows(connection, RUNS, [run])
            insert_rows(connection, PROFILES, [rank.profile for rank in results])
            insert_rows(connection, GPUS, [row for rank in results for row in rank.gpu_rows()])
            facts = [FactRow(*rank.key, **asdict(fact)) for rank in results for fact in rank.facts]
            insert_rows(connection, FACTS, facts)
            losses = [
                LossRow(*rank.key, at, loss.kind.value, loss.subject.value, loss.count, loss.of, loss.detail)
                for rank in results
                for at, loss in enumerate(rank.losses)
            ]
            insert_rows(connection, LOSSES, losses)
            insert_tables(connection, run.id, [rank.tables for rank in results])

    def describe_run(self, run: RunRow) -> None:
        """Replace what is known of a collected run."""
        with self.writing(run.id) as connection:
            connection.execute(RUNS.delete().where(RUNS.c.id == run.id))
            insert_rows(connection, RUNS, [run])

    def put_run(self, run_id: str, tables: Mapping[str, AnalysisTable], sha256: Mapping[int, str]) -> bool:
        """Write the analyses that span the ranks of a run, replacing those in the store.

        ``sha256`` has, by rank, the SHA-256 of the profiles that the analyses were computed from. False if
        the store now holds other profiles, because another collect has replaced one; nothing is written then.
        """
        with self.writing(run_id) as connection:
            if _checksums(connection, run_id) != sha256:
                return False
            delete_run_analyses(connection, run_id)
            insert_tables(connection, run_id, [tables])
            return True

    def put_analyses(
        self,
        run_id: str,
        rank: int,
        tables: Mapping[str, AnalysisTable],
        sha256: Mapping[int, str],
        explanation: str = "",
    ) -> bool:
        """Write analyses of a rank, or with `WHOLE_RUN` of a run, replacing those in the store.

        ``explanation`` is the one of the run, in JSON, if they were computed with it. Nothing is written, and
        the result is False, if a profile that they were computed from, by rank in ``sha256``, is now another.
        """
        with self.writing(run_id) as connection:
            now = _checksums(connection, run_id)
            if sha256 != (now if rank == WHOLE_RUN else {rank: now.get(rank)}):
                return False
            if explanation:
                delete(connection, [EXPLANATIONS], {"run_id": storable_text(run_id)})
                insert_rows(connection, EXPLANATIONS, [ExplanationRow(run_id, ANALYSIS_VERSION, explanation)])
            for name in tables:
                delete_analysis(connection, run_id, name, rank)
            insert_tables(connection, run_id, [tables])
            return True

    def explanation(self, run_id: str) -> ExplanationRow | None:
        """Return the explanation of a run; None if none was computed since a profile of it changed."""
        query = select(EXPLANATIONS).where(EXPLANATIONS.c.run_id == run_id)
        return next(iter(self._rows(ExplanationRow, query)), None)

    def baselines(self) -> list[BaselineRow]:
        """Return the runs of all named baselines, by name and in the order in which they were given."""
        return self._rows(BaselineRow, select(BASELINES).order_by(BASELINES.c.name, BASELINES.c.position))

    def put_baseline(self, name: str, rows: Sequence[BaselineRow]) -> None:
        """Replace the baseline ``name``; without rows it is removed."""
        with self.writing(f"baseline {name}") as connection:
            delete(connection, [BASELINES], {"name": name})
            insert_rows(connection, BASELINES, rows)

    def delete_ranks(self, run_id: str, ranks: Sequence[int]) -> None:
        """Delete the profiles and the analyses of some ranks, in one transaction."""
        with self.writing(run_id) as connection:
            for rank in ranks:
                self._delete_rank(connection, run_id, rank)
            delete_run_analyses(connection, run_id)

    @staticmethod
    def _delete_rank(connection: Connection, run_id: str, rank: int) -> None:
        key = {"run_id": storable_text(run_id), "rank": rank}
        if delete(connection, [PROFILES], key):  # else nothing else of the rank is stored
            delete(connection, [GPUS, FACTS, LOSSES, REASONS, *RANK_TABLES.values()], key)

    def delete_run_results(self, run_id: str) -> None:
        """Delete the analyses that span the ranks of a run: something new is known of it."""
        with self.writing(run_id) as connection:
            delete_run_analyses(connection, run_id)

    def delete_run(self, run_id: str) -> None:
        """Delete everything that the store has of a run, in one transaction."""
        with self.writing(run_id) as connection:
            _delete_run(connection, run_id)

    def all_rows(self, run_id: str) -> dict[str, dict[str, list[Any]]]:
        """Return the values of each column of a run in each table of `TABLES_OF_RUNS`.

        A column whose values are all null is left out.
        """
        contents = {}
        with self.reading() as connection:
            for name, stored in TABLES_OF_RUNS.items():
                names = [column.name for column in stored.table.columns]
                columns = _read_rows(connection, run_id, stored.table, names, stored.run)
                if columns[names[0]]:
                    contents[name] = {
                        key: values for key, values in columns.items() if any(v is not None for v in values)
                    }
        return contents

    def replace_run(
        self, run: RunRow, rows: Mapping[str, Mapping[str, list[Any]]], pushed: PushedRow | None = None
    ) -> None:
        """Write all that is known of a run, in place of what the store has of it; tags and note stay.

        ``rows`` are as `all_rows` returns them.
        """
        with self.writing(run.id) as connection:
            before = connection.execute(select(PUSHED).where(PUSHED.c.run_id == run.id)).one_or_none()
            if pushed and before is not None:
                previous = PushedRow(*before)
                pushed = msgspec.structs.replace(pushed, tags=previous.tags, note=previous.note)
            _delete_run(connection, run.id)
            insert_rows(connection, RUNS, [run])
            insert_rows(connection, PUSHED, [pushed] if pushed else [])
            for name, columns in rows.items():
                if name != "runs":
                    insert_columns(connection, TABLES_OF_RUNS[name].table, columns)

    def pushed(self) -> dict[str, PushedRow]:
        """Return the runs that were pushed to this store, by id."""
        return {row.run_id: row for row in self._rows(PushedRow, select(PUSHED))}

    def annotate(self, run_id: str, tags: Sequence[str], note: str) -> None:
        """Replace the tags and the note of a pushed run."""
        values = {"tags": " ".join(tags), "note": note}
        with self.writing(run_id) as connection:
            connection.execute(PUSHED.update().where(PUSHED.c.run_id == run_id).values(values))


def _delete_run(connection: Connection, run_id: str) -> None:
    tables = [stored.table for stored in TABLES_OF_RUNS.values() if stored.run == "run_id"]
    delete(connection, [*tables, PUSHED], {"run_id": storable_text(run_id)})
    delete(connection, [RUNS], {"id": storable_text(run_id)})


def _checksums(connection: Connection, run_id: str) -> dict[int, str]:
    """Return the SHA-256 of the profiles of a run by rank."""
    query = select(PROFILES.c.rank, PROFILES.c.sha256).where(PROFILES.c.run_id == run_id)
    return dict(connection.execute(query).all())


def _losses(connection: Connection, run_id: str) -> list[tuple[int, Loss]]:
    query = select(LOSSES).where(LOSSES.c.run_id == run_id).order_by(LOSSES.c.rank, LOSSES.c.position)
    rows = (LossRow(*row) for row in connection.execute(query))
    return [
        (row.rank, Loss(LossKind(row.kind), Subject(row.subject), row.count, row.total, row.detail))
        for row in rows
    ]


def open_store(db: str | None, runs_dir: Path, read_only: bool = False) -> Store:
    """Return the store in a database.

    ``db`` is a path or an SQLAlchemy URL; by default ``$HPCPROF_DB``, else the personal default, else
    ``hpcprof.db`` in the folder of runs.
    """
    return Store(store_url(db or default_database(), runs_dir), runs_dir, read_only)


_BATCH_ROWS = 10_000
"""The rows that are turned into Python's values at a time: these take several times the memory of numpy's."""


def delete_run_analyses(connection: Connection, run_id: str) -> None:
    """Delete the analyses that span the ranks of a run, with their reasons, and the explanation."""
    delete(connection, [EXPLANATIONS, *RUN_TABLES.values()], {"run_id": storable_text(run_id)})
    delete(connection, [REASONS], {"run_id": storable_text(run_id), "rank": WHOLE_RUN})


def delete_analysis(connection: Connection, run_id: str, name: str, rank: int = WHOLE_RUN) -> None:
    """Delete one analysis of a rank, or one that spans the ranks of a run, with its reason."""
    key = {} if rank == WHOLE_RUN else {"rank": rank}
    delete(connection, [TABLES[name]], {"run_id": storable_text(run_id), **key})
    delete(connection, [REASONS], {"run_id": storable_text(run_id), "rank": rank, "analysis": name})


def insert_tables(connection: Connection, run_id: str, ranks: Sequence[Mapping[str, AnalysisTable]]) -> None:
    """Insert the analyses of some ranks, or those that span the ranks, by name.

    The rows of several ranks are inserted together: a statement costs more than a row.
    """
    for name in dict.fromkeys(name for tables in ranks for name in tables if name in TABLES):
        columns: defaultdict[str, list[Any]] = defaultdict(list)
        for table in (tables[name] for tables in ranks if name in tables):
            for first in range(0, table.count, _BATCH_ROWS):
                batch = table.part(first, first + _BATCH_ROWS)
                # The positions of each rank count from 0.
                positions = [*range(first, first + batch.count)]
                rows = batch.columns | {"run_id": [run_id] * batch.count, "position": positions}
                for key, values in rows.items():
                    columns[key] += values
                if len(columns["position"]) >= _BATCH_ROWS:
                    insert_columns(connection, TABLES[name], columns)
                    columns.clear()
        if columns:
            insert_columns(connection, TABLES[name], columns)
    reasons = [
        ReasonRow(run_id, rank, name, reason)
        for tables in ranks
        for name, table in tables.items()
        for rank, reason in table.reasons.items()
    ]
    insert_rows(connection, REASONS, reasons)


def _reasons(connection: Connection, run_id: str, name: str | None = None) -> dict[str, dict[int, str]]:
    """Read why rows or values are missing, by analysis and rank; of all analyses without a name."""
    query = select(REASONS.c.analysis, REASONS.c.rank, REASONS.c.reason).where(REASONS.c.run_id == run_id)
    if name is not None:
        query = query.where(REASONS.c.analysis == name)
    reasons: dict[str, dict[int, str]] = {}
    for name, rank, reason in chain.from_iterable(_fetch_rows(connection, query.order_by(REASONS.c.rank))):
        reasons.setdefault(name, {})[rank] = reason
    return reasons


def _fetch_rows(connection: Connection, query: Select[Any]) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Yield rows as the driver has them: no column is converted, and SQLAlchemy's rows take longer.

    They come in batches, since a row takes more memory than its values in columns.
    """
    cursor = connection.execute(query).cursor
    assert cursor is not None
    while rows := cursor.fetchmany(_BATCH_ROWS):
        yield rows


def _read_rows(
    connection: Connection, run_id: str, table: Table, names: Sequence[str], run: str = "run_id"
) -> dict[str, list[Any]]:
    """Read columns of the rows of a run, in the order of the table's key; its column ``run`` has the run."""
    order = [column for column in table.primary_key if column.name != run]
    query = select(*(table.c[name] for name in names)).where(table.c[run] == run_id).order_by(*order)
    values: list[list[Any]] = [[] for _ in names]
    for rows in _fetch_rows(connection, query):
        for column, values_of_row in zip(values, zip(*rows, strict=True), strict=True):
            column.extend(values_of_row)
    return dict(zip(names, values, strict=True))


def ranks_with(connection: Connection, run_id: str, name: str) -> set[int]:
    """Return the ranks of which an analysis has rows or a reason."""
    rows = select(TABLES[name].c.rank).where(TABLES[name].c.run_id == run_id)
    reasons = select(REASONS.c.rank).where(REASONS.c.run_id == run_id, REASONS.c.analysis == name)
    return set(connection.execute(rows.union(reasons)).scalars())


def has_run_analyses(connection: Connection, run_id: str, *names: str) -> bool:
    """Return whether one of these analyses that span the ranks is stored: it has rows or a reason.

    By default it is the one that each collect of profiles stores, and nothing else.
    """
    analyses = names or (_RUN_ANALYSIS,)
    rows = [exists().where(TABLES[name].c.run_id == run_id) for name in analyses]
    reason = exists().where(
        REASONS.c.run_id == run_id, REASONS.c.rank == WHOLE_RUN, REASONS.c.analysis.in_(analyses)
    )
    return bool(connection.execute(select(or_(reason, *rows))).scalar())
