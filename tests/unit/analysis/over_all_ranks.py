"""Analyses over the ranks, computed from the rows of all ranks at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives import clock_alignment, pair_matching
from hpcprof.analysis.collectives.clock_alignment import AlignedClocks, ClockKey
from hpcprof.analysis.collectives.common_clock import connect
from hpcprof.analysis.collectives.communication import Communication, communication
from hpcprof.analysis.collectives.matches import matches_of, rank_waits
from hpcprof.analysis.collectives.matching import MatchedCollectives
from hpcprof.analysis.collectives.pair_matching import MatchedPairs
from hpcprof.analysis.framework.declaration import Analysis, Part
from hpcprof.analysis.framework.outcome import AnalysisTable, Outcome, analyze_run
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.memory.tables import RunMemory
from hpcprof.analysis.mpi.matching import aligned_by_mpi
from hpcprof.analysis.telemetry.darshan import RunLogs
from hpcprof.analysis.telemetry.tables import RunTelemetry
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.readers.declaration import load
from hpcprof.profiles.readers.telemetry import NodeTelemetry, RankPlace, Series
from tests.unit.analysis.mpi.programs import run_lists


def of_run(name: str, results: Mapping[str, pd.DataFrame]) -> AnalysisTable:
    """Return an analysis over the ranks: its map over all of them as one part, and the reduction."""
    tables = {name: AnalysisTable(Outcome(rows).arrays()) for name, rows in results.items()}
    return analyze(ANALYSES[name], tables)


def analyze(analysis: Analysis, results: Mapping[str, AnalysisTable]) -> AnalysisTable:
    """Run an analysis over the ranks on the rows of all of them, after those of this kind that it needs."""
    missing = [need for need in analysis.needs if need not in results]
    results = {**results, **{need: analyze(ANALYSES[need], results) for need in missing}}
    if not analysis.map:
        return analyze_run(analysis, results)
    if analysis.map_over is Part.NODES:
        return analyze_run(analysis, results, [load(analysis.map)(sampled())])
    if analysis.map_over is Part.MEMORY:
        return analyze_run(analysis, results, [load(analysis.map)(RunMemory({}, []))])
    if analysis.map_over is Part.LOGS:
        return analyze_run(analysis, results, [load(analysis.map)(RunLogs([]))])
    if analysis.map_over is Part.MPI:
        whole = {need: results[need].frame for need in analysis.map_needs}
        lists = run_lists(whole)
        joined = connect(aligned_by_mpi(lists)) if lists.ranks else []
        clocks = joined[0].clocks if joined else {}
        part = load(analysis.map)(lists, whole["mpi_regions"], clocks, {})
        return analyze_run(analysis, results, [part])
    rows = results["rank_collectives"].frame
    found = matched(rows)
    if analysis.map_over is Part.COMMUNICATORS:
        return analyze_run(analysis, results, [load(analysis.map)(found)] if len(rows) else [])
    matches = matches_among(found)
    waits = ((rank, rank_waits(matches.take(matches.rank == rank))) for rank in found.ranks)
    tables = {need: results[need].frame for need in analysis.map_needs}
    clocks = next((one.clocks for one in connect(found.aligned)), {})
    part = load(analysis.map)(tables, {rank: one for rank, one in waits if one}, clocks)
    return analyze_run(analysis, results, [part])


def sampled() -> RunTelemetry:
    """Return the samples of a node of one rank with a GPU."""
    names = ("rank0 cpu_s", "rank0 read_bytes", "cpu0 busy_s", "gpu0 power_w", "gpu0 sm_mhz", "gpu0 busy_pct")
    times = np.arange(3.0)
    series = {
        (device, metric): Series(times, times)
        for device, _, metric in (name.partition(" ") for name in names)
    }
    return RunTelemetry([NodeTelemetry("n1", series, {0: RankPlace((0,), (0,))}, ("A GPU",))])


def collectives(results: Mapping[str, pd.DataFrame]) -> AnalysisTable:
    """Return the analysis ``collectives``."""
    return of_run("collectives", results)


def point_to_point(results: Mapping[str, pd.DataFrame]) -> AnalysisTable:
    """Return the analysis ``point_to_point``."""
    return of_run("point_to_point", results)


def skew(results: Mapping[str, pd.DataFrame]) -> AnalysisTable:
    """Return the analysis ``skew``."""
    return of_run("skew", results)


def skew_summary(results: Mapping[str, pd.DataFrame]) -> AnalysisTable:
    """Return the analysis ``skew_summary``."""
    return of_run("skew_summary", results)


def step_account(results: Mapping[str, pd.DataFrame]) -> AnalysisTable:
    """Return the analysis ``step_account``."""
    return of_run("step_account", results)


@computed_once
def matched(rows: pd.DataFrame) -> Communication:
    """Match the rows of all ranks."""
    return communication([rows])


matches_among = computed_once(matches_of)


def match_collectives(rows: pd.DataFrame) -> tuple[list[MatchedCollectives], list[str]]:
    """Match the collectives of all ranks."""
    found = matched(rows)
    return found.collectives, found.problems


def match_pairs(rows: pd.DataFrame) -> tuple[list[MatchedPairs], list[str]]:
    """Match the sends and receives of all ranks."""
    found = matched(rows)
    return found.pairs, found.unpaired


def align_clocks(rows: pd.DataFrame) -> dict[ClockKey, AlignedClocks]:
    """Align the clocks of all ranks by their collectives."""
    return clock_alignment.align_clocks(matched(rows).collectives)


def align_matched_pairs(rows: pd.DataFrame) -> dict[tuple[int, int], AlignedClocks]:
    """Align the clocks of all ranks by their messages."""
    return pair_matching.align_pairs(matched(rows).pairs)
