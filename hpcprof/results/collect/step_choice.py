"""The range that is the step of a run: the one that its ranks share, or that a user names."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from hpcprof.analysis.framework.outcome import Row
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.discovery import content_of
from hpcprof.runs.directory import Run

if TYPE_CHECKING:  # numpy is not needed where no profile has changed, and workers need no database
    from hpcprof.analysis.steps.step_detection import StepCandidate
    from hpcprof.profiles.timeline import StepRange
    from hpcprof.results.store.store import Store

AUTO = "auto"
"""The value of ``--step-range`` that lets the step be found again."""

_USER_SOURCE = "--step-range"


class StoredStepRanges(msgspec.Struct, frozen=True, dict=True):
    """The rows of the analysis ``step_ranges`` by rank; every rank with a timeline is in it."""

    rows: dict[int, list[Row]]

    def chosen(self, rank: int) -> str:
        """Return the name of the range that is the step of a rank; empty if it has none."""
        return next((row["range"] for row in self.rows.get(rank, ()) if row["chosen"]), "")

    @cached_property
    def named(self) -> str:
        """The name that a user gave when the run was collected; empty if none did."""
        rows = (row for rank_rows in self.rows.values() for row in rank_rows)
        return next((row["range"] for row in rows if row["chosen"] and row["source"] == _USER_SOURCE), "")

    def step_range(self, rank: int) -> StepRange:
        """Return the steps that were chosen for a rank."""
        from hpcprof.profiles.timeline import StepRange

        return StepRange(self.chosen(rank), named=bool(self.named))

    def agreed(self) -> dict[int, str]:
        """Return the name of the range that should be the step of each rank.

        It is the same on all ranks. A rank without it may have another known one: its profiler is another.
        """
        from hpcprof.analysis.steps.launch_steps import is_launch_step
        from hpcprof.analysis.steps.mpi_steps import OWN_LOOP, OWN_SEQUENCE, is_mpi_step
        from hpcprof.analysis.steps.step_detection import AUTOMATIC, LAUNCHES, common_step_range

        candidates = {rank: _candidates(rows) for rank, rows in self.rows.items()}
        common = common_step_range(candidates)
        names = {}
        for rank, candidate in candidates.items():
            # Graphs, and kernels chosen by shapes, may have other names on other ranks.
            shared = (AUTOMATIC,) if is_launch_step(common) else (AUTOMATIC, LAUNCHES)
            remaining = [
                step
                for step in candidate
                if step.source not in shared and step.name not in (OWN_LOOP, OWN_SEQUENCE)
            ]
            step_names = [step.name for step in candidate]
            # The calls of a name are there even if a rank alone would take others.
            has_it = common in step_names or (is_mpi_step(common) and any(map(is_mpi_step, step_names)))
            names[rank] = common if has_it else common_step_range({rank: remaining})
        return names

    def differing(self) -> dict[int, str]:
        """Return the agreed range of each rank that has chosen another one."""
        if self.named:
            return {}
        return {rank: name for rank, name in self.agreed().items() if name != self.chosen(rank)}


def _candidates(rows: list[Row]) -> list[StepCandidate]:
    from hpcprof.analysis.steps.step_detection import StepCandidate

    return [
        StepCandidate(*(row[c] for c in ("range", "source", "instances", "coverage_pct"))) for row in rows
    ]


def stored_step_ranges(store: Store, run_id: str) -> StoredStepRanges:
    """Return the candidates for the step of a run from the store."""
    profiles = store.profiles(run_id)
    rows: dict[int, list[Row]] = {
        rank: [] for rank, p in profiles.items() if content_of(p.kind) is ProfileContent.TIMELINE
    }
    for row in store.table(run_id, "step_ranges").rows:
        rows.setdefault(row["rank"], []).append(row)
    return StoredStepRanges(rows)


def wanted_step_range(requested: str | None, stored: StoredStepRanges) -> StepRange | None:
    """Return the range that a collect uses as the step; None if the step is to be detected.

    A range that a user gave holds until the next one, or ``auto``, is given.
    """
    name = "" if requested == AUTO else requested or stored.named
    if not name:
        return None
    from hpcprof.profiles.timeline import StepRange

    return StepRange(name, named=True)


def is_current(requested: str | None, stored: StoredStepRanges, rank: int) -> bool:
    """Return whether the stored results of a rank use the requested step."""
    if requested is None or rank not in stored.rows:
        return True
    if requested == AUTO:
        return not stored.named
    from hpcprof.analysis.steps.range_names import with_counter

    return stored.chosen(rank) in (requested, with_counter(requested))


def requested_steps(run: Run) -> tuple[tuple[int, int], ...]:
    """Return the spans of steps (first, last) that a job was asked to capture; empty for all steps."""
    text = run.manifest.job.capture_steps if run.manifest else ""
    ends = (part.partition("-") for part in text.split(",") if text)
    return tuple((int(first), int(last or first)) for first, _, last in ends)
