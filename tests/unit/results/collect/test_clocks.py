"""The common clock of a run's ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from hpcprof.analysis.collectives.common_clock import RankClock
from hpcprof.profiles.timeline import Ints
from hpcprof.profiles.timeline_parquet import RankEvents
from hpcprof.results.collect import over_ranks
from hpcprof.results.collect.over_ranks import run_communication
from hpcprof.results.store import rank_tables
from hpcprof.results.store.rank_tables import kept_table
from hpcprof.results.store.run_communication import ClockSource, RunClocks, RunCommunication
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run
from tests.data.parallel_program import Program, Simulation
from tests.data.stored_program import RUN, store_program
from tests.unit.analysis.over_all_ranks import align_clocks

PROGRAMS = {
    "one group": Program(6, 2000, slow={2: 3.0}, seed=3),
    "groups and a pipeline": Program(16, 1200, tensor=2, pipeline=2, seed=7, missing=frozenset({3})),
}


class Stored(NamedTuple):
    """A collected program."""

    run: Run
    store: Store
    simulation: Simulation


def _without_communication(monkeypatch: pytest.MonkeyPatch, ranks: Collection[int]) -> None:
    """Let the profiles have no collectives of some ranks; what is computed then is not kept."""
    read = kept_table

    def changed(events: Iterable[RankEvents], name: str, *others: Any) -> pa.Table:
        rows = read(events, name, *others)
        if name != "rank_collectives":
            return rows
        return rows.filter(pa.array([rank not in ranks for rank in rows["rank"].to_pylist()], pa.bool_()))

    for module in (over_ranks, rank_tables):
        monkeypatch.setattr(module, "kept_table", changed)
    monkeypatch.setattr(over_ranks, "load_communication", lambda *_: None)
    monkeypatch.setattr(RunCommunication, "save", lambda _: None)


@pytest.fixture(scope="module", params=list(PROGRAMS))
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    folder = tmp_path_factory.mktemp("clocks")
    store, simulation = store_program(folder, PROGRAMS[request.param])
    return Stored(Run(RUN, folder / "profiles"), store, simulation)


def _true_and_own(simulation: Simulation, rank: int) -> tuple[Ints, Ints]:
    """Return when operations of a rank begin, in true time and on its own clock."""
    program = simulation.program
    stage, data, tensor = program.place(rank)
    true = simulation.times[stage].begin[:, :, data, tensor].ravel()
    ahead, fast = program.clocks()
    return np.rint(true).astype(np.int64), np.rint(true * fast[rank] + ahead[rank]).astype(np.int64)


def test_aligned_clocks_are_as_exact_as_they_say(stored: Stored) -> None:
    clocks = run_communication(stored.run, stored.store).clocks
    assert set(clocks.sources.values()) == {ClockSource.COMMUNICATION}
    program = stored.simulation.program
    assert sorted(clocks.clocks) == [rank for rank in range(program.ranks) if rank not in program.missing]
    common = {}
    for rank in clocks.clocks:
        true, own = _true_and_own(stored.simulation, rank)
        common[rank] = clocks.to_common(rank, own), true
    # The common clock is that of a rank, so it has an offset and a drift of its own.
    times, true = (np.concatenate(part) for part in zip(*common.values(), strict=True))
    line = np.polynomial.Polynomial.fit(true.astype(float), (times - times[0]).astype(float), 1)
    for rank, (of_rank, at) in common.items():
        error = np.abs((of_rank - times[0]) - line(at.astype(float)))
        allowed = clocks.uncertainty_ns(rank)
        assert allowed is not None
        assert np.percentile(error, 95) <= allowed + 5_000


def test_times_go_to_the_common_clock_and_back(stored: Stored) -> None:
    clocks = run_communication(stored.run, stored.store).clocks
    for rank in clocks.clocks:
        _, own = _true_and_own(stored.simulation, rank)
        stamps = np.concatenate([own, own[:1] - 10**10, own[-1:] + 10**10])
        assert np.abs(clocks.to_rank(rank, clocks.to_common(rank, stamps)) - stamps).max() <= 1


def test_lateness_on_the_common_clock_is_that_of_the_tables(stored: Stored) -> None:
    rows = kept_table(stored.store.rank_events(RUN).values(), "rank_collectives").to_pandas()
    clocks = run_communication(stored.run, stored.store).clocks
    for (_, ranks), clock in align_clocks(rows).items():
        members = np.frombuffer(ranks, np.int64).tolist()
        starts = rows[rows["rank"] == members[0]]["start_ns"].to_numpy()
        own = np.stack([starts] * len(members), axis=1) - clock.zero[0] + clock.zero
        expected = clock.aligned(own)
        found = np.column_stack([clocks.to_common(r, own[:, n]) for n, r in enumerate(members)])
        apart = np.abs((found - found[:, :1]) - (expected - expected[:, :1])).max()
        # One group gives the common clock; the others are compared across several.
        most = max(clocks.uncertainty_ns(r) or 0 for r in members)
        assert apart <= (1 if len(stored.simulation.operations) == 1 else 2 * most + 5_000)


def test_ranks_without_communication_follow_the_utc_times(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_communication(monkeypatch, range(16))
    clocks = run_communication(stored.run, stored.store).clocks
    assert set(clocks.sources.values()) == {ClockSource.UTC}
    profiles = stored.store.profiles(RUN)
    utc = {rank: profiles[rank].start_utc_ns for rank in clocks.clocks}
    zero = utc[0]
    assert zero is not None and clocks.start_utc_ns == zero
    for rank, own in utc.items():
        assert own is not None
        assert clocks.to_common(rank, np.array([5])).tolist() == [own - zero + 5]
        assert clocks.uncertainty_ns(rank) == (0 if rank == 0 else None)
    assert clocks.notes()[0] == (
        "The clocks are aligned by the UTC times of their profiles, to an unknown precision."
    )


def test_a_rank_without_communication_and_utc_starts_its_first_step_with_the_others(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_communication(monkeypatch, [1])
    profiles = Store.profiles
    monkeypatch.setattr(
        Store,
        "profiles",
        lambda *of: {
            rank: msgspec.structs.replace(p, start_utc_ns=None) for rank, p in profiles(*of).items()
        },
    )
    clocks = run_communication(stored.run, stored.store).clocks
    assert clocks.sources[1] is ClockSource.STEPS and clocks.sources[0] is ClockSource.COMMUNICATION
    assert clocks.start_utc_ns is None
    steps = kept_table(stored.store.rank_events(RUN).values(), "step_parts").to_pandas()
    firsts = steps.groupby("rank")["start_ns"].min()
    parts = dict(zip(firsts.index.tolist(), firsts.tolist(), strict=True))
    first = {rank: int(clocks.to_common(rank, np.array([start]))[0]) for rank, start in parts.items()}
    assert first[1] == min(start for rank, start in first.items() if rank != 1)
    assert clocks.notes()[0].endswith(
        "; the clocks of rank 1 are unknown, so that each rank's first step starts with that of the others."
    )


def test_the_uncertainty_of_aligned_clocks_has_a_unit_for_its_size() -> None:
    still = np.zeros(1)
    clock = RankClock(zero=0, base=0, moment=still, ahead=still, rate=0.0)
    sources = dict.fromkeys((0, 1), ClockSource.COMMUNICATION)
    clocks = RunClocks({0: clock, 1: clock}, sources, {0: 0.0, 1: 10_278_000.0})
    assert clocks.notes()[0] == "The clocks are aligned by their communication to 10.28 ms."
