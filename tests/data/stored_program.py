"""A store with what the analyses over ranks read of a simulated program."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.event_folders import EVENTS
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Timeline
from hpcprof.profiles.timeline_parquet import RankEvents
from hpcprof.results.collect.kept_events import finish
from hpcprof.results.store.database import store_url
from hpcprof.results.store.rank_tables import ANALYSES_WITH_EVENTS
from hpcprof.results.store.store import RankResults, Store
from hpcprof.results.store.tables import ProfileRow, RunRow
from tests.data.many_ranks import write_program
from tests.data.parallel_program import Program, Simulation

RUN = "run"


def store_program(folder: Path, program: Program) -> tuple[Store, Simulation]:
    """Write the profiles of a program into a folder, and a store of them beside."""
    simulation = write_program(folder / "profiles", program)
    found = Store(store_url(str(folder / "store.db"), folder), folder)
    found.prepare()
    for path in sorted((folder / "profiles").iterdir()):
        profile = read_profile(path)
        rank = profile.origin.rank
        assert rank is not None
        events = RankEvents(folder / EVENTS, RUN, rank, str(rank))
        kept = {name: analyze_rank(one, profile, rank) for name, one in ANALYSES_WITH_EVENTS.items()}
        finish(events, cast("Timeline", profile), kept, with_timeline=False)
        tables = {"step_times": analyze_rank(ANALYSES["step_times"], profile, rank)}
        host, utc = profile.origin.host, profile.origin.start_utc_ns
        row = ProfileRow(RUN, rank, path.name, str(rank), 1, "nsys", host, "", None, utc, analysis_version=1)
        found.put_profiles(RunRow(RUN, str(folder / "profiles")), [RankResults(row, tables)])
    return found, simulation
