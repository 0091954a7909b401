"""Stores the results of ranks in batches, since each transaction waits for the disk."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType

from hpcprof.common import __version__
from hpcprof.results.analysis_table import ANALYSIS_VERSION
from hpcprof.results.rank_task import ProfileResults
from hpcprof.results.store.store import RankResults, Store
from hpcprof.results.store.tables import ProfileRow, RunRow

_MOST_RANKS, _MOST_ROWS, _MOST_SECONDS = 64, 50_000, 1.0
"""The most that one transaction stores: rows take memory, and waiting ones are lost in a kill."""


@dataclass
class BatchWriter:
    """Stores the results of ranks of one run, many in a transaction.

    As a context, it stores at the end what still waits, also if an exception ends it.
    """

    run: RunRow
    store: Store
    _waiting: list[RankResults] = field(default_factory=list)
    _rows: int = 0
    _since: float = 0.0

    def add(self, rank: int, file: str, found: ProfileResults) -> None:
        """Take the results of a rank, and store all that wait if they are many or have waited for a second.

        Raises
        ------
        StoreError
            If they cannot be stored.
        """
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(self._results(rank, file, found))
        self._rows += sum(table.count for table in found.tables.values())
        late = time.monotonic() - self._since >= _MOST_SECONDS
        if late or len(self._waiting) == _MOST_RANKS or self._rows >= _MOST_ROWS:
            self._put()

    def __enter__(self) -> None:
        """Do nothing: `add` may be called."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store what waits."""
        self._put()

    def _put(self) -> None:
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if waiting:
            self.store.put_profiles(self.run, waiting)

    def _results(self, rank: int, file: str, found: ProfileResults) -> RankResults:
        origin = found.origin
        profile = ProfileRow(
            run_id=self.run.id,
            rank=rank,
            file=file,
            sha256=found.sha256,
            bytes=found.bytes,
            kind=origin.kind,
            host=origin.host,
            devices=", ".join(origin.device_names),
            profiler_version=origin.profiler_version,
            start_utc_ns=origin.start_utc_ns,
            analysis_version=ANALYSIS_VERSION,
            made_by=__version__,
        )
        return RankResults(profile, found.tables, origin.gpus, origin.facts, found.losses)
