"""A store with what the analyses over ranks read of a simulated program."""

from __future__ import annotations

from pathlib import Path

from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.results.analysis_table import AnalysisTable
from hpcprof.results.store.database import store_url
from hpcprof.results.store.store import RankResults, Store
from hpcprof.results.store.tables import ProfileRow, RunRow
from tests.data.many_ranks import write_program
from tests.data.parallel_program import Program, Simulation

RUN = "run"
NAMES = ("rank_collectives", "step_times", "step_parts", "exposed_communication")


def store_program(folder: Path, program: Program) -> tuple[Store, Simulation]:
    """Write the profiles of a program into a folder, and a store of them beside."""
    simulation = write_program(folder / "profiles", program)
    found = Store(store_url(str(folder / "store.db"), folder))
    found.prepare()
    for path in sorted((folder / "profiles").iterdir()):
        profile = read_profile(path)
        rank = profile.origin.rank
        assert rank is not None
        tables = {
            name: AnalysisTable.from_outcome(analyze_rank(ANALYSES[name], profile, rank), rank)
            for name in NAMES
        }
        host, utc = profile.origin.host, profile.origin.start_utc_ns
        row = ProfileRow(RUN, rank, path.name, str(rank), 1, "nsys", host, "", None, utc, analysis_version=1)
        found.put_profiles(RunRow(RUN, str(folder / "profiles")), [RankResults(row, tables)])
    return found, simulation
