"""The step of a run: the same range on all ranks, or the one that a user names."""

from __future__ import annotations

import lzma
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.common.errors import UsageError
from hpcprof.results.ask.run_inputs import run_data
from hpcprof.results.collect.collection import Collected, collect
from hpcprof.results.collect.step_choice import stored_step_ranges
from hpcprof.results.store.store import Store, open_store
from hpcprof.runs.directory import Manifest, Run, site_keys
from hpcprof.runs.job import Job
from hpcprof.submit.sites.files import load_site

DATA = Path(__file__).parents[3] / "data"
LOOP = "UPDATE NVTX_EVENTS SET text = 'my_loop' WHERE text = 'iteration'"
NO_LOOP = "DELETE FROM NVTX_EVENTS WHERE text = 'iteration'"

Make = Callable[..., tuple[Run, Store]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes a run of two ranks, changed by statements, and an empty store."""

    def made(first: str, second: str) -> tuple[Run, Store]:
        folder = tmp_path / "profiles"
        folder.mkdir()
        for rank, statement in enumerate((first, second)):
            path = folder / f"rank{rank}.sqlite"
            path.write_bytes(lzma.decompress((DATA / f"sp_bf16_rank{rank}.sqlite.xz").read_bytes()))
            with closing(sqlite3.connect(path)) as export, export:
                export.execute(statement)
        store = open_store(str(tmp_path / "results.db"), tmp_path)
        store.prepare()
        return Run("run", folder), store

    return made


def steps(run: Run, store: Store) -> dict[int, str]:
    """Return the step of each rank."""
    stored = stored_step_ranges(store, run.id)
    return {rank: stored.chosen(rank) for rank in stored.rows}


def counts(done: Collected) -> tuple[int, int]:
    return len(done.read), len(done.unchanged)


def dump(store: Store) -> list[Any]:
    with closing(sqlite3.connect(str(store))) as connection:
        return sorted(connection.iterdump())


def test_a_range_that_one_rank_lacks_is_not_the_step_and_launches_are(make: Make) -> None:
    run, store = make(LOOP, NO_LOOP)
    assert counts(collect(run, store)) == (2, 0)
    assert steps(run, store) == dict.fromkeys((0, 1), "kernel:ncclDevKernel_AllGather_RING_LL")
    assert counts(collect(run, store)) == (0, 2)


def test_a_known_range_is_the_step_of_the_ranks_that_have_it(make: Make) -> None:
    run, store = make("SELECT 1", NO_LOOP)
    collect(run, store)
    assert steps(run, store) == {0: "iteration", 1: ""}


def test_what_a_user_names_holds_until_another_name_or_auto_is_given(make: Make) -> None:
    run, store = make(LOOP, LOOP)
    collect(run, store)
    assert steps(run, store) == {0: "my_loop", 1: "my_loop"}
    before = dump(store)
    with pytest.raises(UsageError) as error:
        collect(run, store, step_range="my_lop")
    assert str(error.value) == (
        "--step-range my_lop: no steps in rank0.sqlite: it has no complete range named my_lop; "
        "others that repeat: my_loop, allgather, reduce_scatter, matmul_1, matmul_2, "
        "kernel:ncclDevKernel_AllGather_RING_LL."
    )
    assert dump(store) == before
    assert counts(collect(run, store, step_range="matmul_1")) == (2, 0)
    assert steps(run, store) == {0: "matmul_1", 1: "matmul_1"}
    with pytest.raises(UsageError):
        collect(run, store, step_range="my_lop")
    for given in (None, "matmul_1"):
        assert counts(collect(run, store, step_range=given)) == (0, 2)
    # Analyses that read timelines see the same steps.
    chosen = run_data(run, store).read(1).step_range
    assert chosen is not None
    assert (chosen.name, chosen.named) == ("matmul_1", True)
    assert counts(collect(run, store, step_range="auto")) == (2, 0)
    assert dump(store) == before


def test_a_rank_without_the_named_range_is_collected_without_steps(make: Make) -> None:
    run, store = make(LOOP, NO_LOOP)
    assert counts(collect(run, store, step_range="my_loop")) == (2, 0)
    assert steps(run, store) == {0: "my_loop", 1: ""}
    assert (
        store.table(run.id, "step_times")
        .reasons[1]
        .startswith("no steps in rank1.sqlite: it has no complete range named my_loop")
    )
    assert store.table(run.id, "kernels").columns["rank"].count(1)
    assert counts(collect(run, store)) == (0, 2)


def test_iterations_are_numbered_as_the_job_captured_them_also_where_the_timeline_is_not_kept(
    make: Make,
) -> None:
    run, store = make("SELECT 1", "SELECT 1")
    job = Job(
        name="train",
        site="local",
        workload=None,
        arguments=["true"],
        directory="/src",
        capture_steps="5-99",
        profiler="nsys",
    )
    manifest = Manifest(run.id, "2026-11-21T02:15:54+00:00", ["hpcprof"], job, site_keys(load_site("local")))
    captured = replace(run, manifest=manifest)
    collect(captured, store)
    steps = store.table(run.id, "step_times").columns["step"]
    assert min(steps) == 5
    assert store.table(run.id, "step_account").columns["step"] == steps
    for events in store.rank_events(run.id).values():
        events.discard()
    timeline = run_data(captured, store).read(0)
    assert steps_of(timeline).number[0] == 5
