"""The data of a page's timeline."""

from __future__ import annotations

import zlib
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.profiles.readers.telemetry import NodeTelemetry, RankPlace, Series
from hpcprof.report.page.timeline_data import (
    ShownSteps,
    chosen_ranks,
    median_and_worst,
    spans,
    timeline_data,
)
from hpcprof.results.ask.windows import RankSteps, steps_of_ranks
from hpcprof.results.collect.collection import update_run
from hpcprof.results.collect.over_ranks import run_communication
from hpcprof.results.collect.timelines import find_timelines
from hpcprof.results.store.database import store_url
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run
from tests.data.parallel_program import Program
from tests.data.stored_program import RUN, store_program


class Stored(NamedTuple):
    """A collected program."""

    run: Run
    store: Store


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    folder = tmp_path_factory.mktemp("timeline")
    store, _ = store_program(folder, Program(3, 400, slow={2: 3.0}, seed=3))
    update_run(RUN, store)
    return Stored(Run(RUN, folder / "profiles"), store)


def whole(column: Any, count: int) -> list[int]:
    """Return a column that is a single value where all are equal."""
    return [column] * count if isinstance(column, int) else list(column)


def summed(column: Any, count: int) -> list[int]:
    """Return a column that is written as differences."""
    return [column] * count if isinstance(column, int) else list(accumulate(column))


def test_the_slices_are_those_of_the_profile_on_the_common_clock(stored: Stored) -> None:
    data = timeline_data(*stored)
    clocks, timelines = run_communication(*stored).clocks, find_timelines(stored.run)
    zero = None
    for of_rank in data["ranks"]:
        rank = of_rank["rank"]
        kernels = timelines.read(rank).kernels
        own = {
            *zip(
                clocks.to_common(rank, kernels.start).tolist(),
                (kernels.end - kernels.start).tolist(),
                strict=True,
            )
        }
        steps = step_intervals(timelines.read(rank))
        front = int(clocks.to_common(rank, steps.start[of_rank["steps"][0][0] :][:1])[0])
        zero = front - of_rank["steps"][0][1] if zero is None else zero
        shown = 0
        for track in of_rank["tracks"]:
            if track["kind"] in ("stream", "communication"):
                starts, lengths = (
                    summed(track["start"], track["count"]),
                    whole(track["duration"], track["count"]),
                )
                assert {(start + zero, length) for start, length in zip(starts, lengths, strict=True)} <= own
                shown += track["count"]
        # All that runs inside the steps is there.
        stamps = clocks.to_common(rank, kernels.start) - zero
        inside = sum(np.count_nonzero((stamps >= low) & (stamps < high)) for _, low, high in of_rank["steps"])
        assert shown >= inside > 0
        assert of_rank["uncertainty_ns"] == clocks.uncertainty_ns(rank)
    assert data["notes"][:1] == clocks.notes()


def test_matched_collectives_have_one_number_on_all_ranks(stored: Stored) -> None:
    numbers = []
    data = timeline_data(*stored)
    for of_rank in data["ranks"]:
        (track,) = (track for track in of_rank["tracks"] if track["kind"] == "communication")
        numbers.append({*summed(track["collective"], track["count"])} - {-1})
        said = {data["strings"][number] for number in whole(track["info"], track["count"])}
        assert all(text.startswith("AllReduce ") and "communicator" in text for text in said)
    assert len(numbers) == 3
    # A collective may begin just before the step on one rank and just after it on another.
    assert len(numbers[0] & numbers[1] & numbers[2]) >= 0.8 * max(map(len, numbers)) > 0


def test_a_launch_leads_from_a_call_to_its_kernel(stored: Stored) -> None:
    data = timeline_data(*stored)
    tracks = data["ranks"][0]["tracks"]
    calls = {n for t in tracks if t["kind"] == "calls" for n in summed(t["launch"], t["count"])}
    work = [n for t in tracks if t["kind"] == "stream" for n in summed(t["launch"], t["count"])]
    assert sum(number in calls for number in work) >= 0.9 * len(work) > 0


def test_samples_of_the_node_are_on_the_clock_of_the_ranks(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    communication = run_communication(*stored)
    communication.clocks = clocks = replace(communication.clocks, start_utc_ns=10**18)
    monkeypatch.setattr("hpcprof.report.page.timeline_data.run_communication", lambda *_: communication)
    windows = steps_of_ranks(stored.store.rank_events(stored.run.id).values())
    first, last = (
        int(clocks.to_common(1, getattr(windows[1], edge))[place])
        for edge, place in (("start", 0), ("end", -1))
    )
    times = 1e9 + np.array([first - 50e6, first, last, last + 50e6]) / 1e9
    series = {("rank1", "cpu_s"): Series(times, np.cumsum([0.0, 0.02, 0.01, 0.0]))}
    nodes = [NodeTelemetry("n", series, {1: RankPlace()})]
    monkeypatch.setattr("hpcprof.report.page.timeline_data.read_telemetry", lambda path: nodes)
    data = timeline_data(*stored)
    of_rank = {one["rank"]: one for one in data["ranks"]}
    (track,) = (one for one in of_rank[1]["tracks"] if one["kind"] == "node")
    assert all(one["kind"] != "node" for rank in (0, 2) for one in of_rank[rank]["tracks"])
    steps = of_rank[1]["steps"]
    begin, lengths = summed(track["start"], track["count"]), whole(track["duration"], track["count"])
    at = [place for place, start in enumerate(begin) if abs(start - steps[0][1]) <= 1_000_000]
    assert len(at) == 1 and abs(begin[at[0]] + lengths[at[0]] - steps[-1][2]) <= 2_000_000
    names = [data["strings"][number] for number in whole(track["name"], track["count"])]
    assert track["label"] == f"CPU, max {max(names, key=lambda name: float(name.split()[0]))}"
    assert max(whole(track["height"], track["count"])) == 100


def slices(data: dict[str, Any], step: int) -> int:
    """Return how many slices begin in a step, over all ranks."""
    found = 0
    for of_rank in data["ranks"]:
        low, high = next((low, high) for number, low, high in of_rank["steps"] if number == step)
        starts = [start for track in of_rank["tracks"] for start in summed(track["start"], track["count"])]
        found += sum(low <= start < high for start in starts)
    return found


def test_all_steps_are_in_the_page(stored: Stored) -> None:
    data = timeline_data(*stored)
    found = steps_of_ranks(stored.store.rank_events(RUN).values())
    every = {number for steps in found.values() for number in steps.number.tolist()}
    assert len(every) > 2
    assert [{step for step, *_ in of_rank["steps"]} for of_rank in data["ranks"]] == 3 * [every]


def test_the_median_and_the_worst_step_keep_all_slices_while_those_of_the_others_are_merged(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcprof.report.page.timeline_data._PIXELS_PER_STEP", 100)
    full = timeline_data(*stored)
    size = sum(len(zlib.compress(msgspec.json.encode(of["tracks"]), 1)) for of in full["ranks"])
    less = timeline_data(*stored, budget=int(0.9 * size))
    assert [len(of["steps"]) for of in less["ranks"]] == [len(of["steps"]) for of in full["ranks"]]
    for step in (full["median"], full["worst"]):
        assert slices(less, step) == slices(full, step)
    assert "are merged in the other steps" in less["notes"][1]
    others = {step for step, *_ in full["ranks"][0]["steps"]} - {full["median"], full["worst"]}
    assert all(slices(less, step) < slices(full, step) for step in others)


def test_a_small_budget_merges_short_slices_and_then_leaves_out_steps_and_ranks(stored: Stored) -> None:
    full = timeline_data(*stored)
    assert len(full["notes"]) == 1
    few = timeline_data(*stored, budget=2_000)
    assert len(few["ranks"]) < 3
    assert few["notes"][1].startswith("Neighbours shorter than ")
    assert few["notes"][2].startswith("To keep this page small, it has the median and the worst step only.")
    assert few["notes"][3].startswith("Left out, to keep this page small: rank")
    assert {step for step, *_ in few["ranks"][0]["steps"]} == {few["median"], few["worst"]}


def test_of_a_long_capture_only_the_median_and_the_worst_step_are_read(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcprof.report.page.timeline_data.MAX_EVENTS", -1)
    data = timeline_data(*stored)
    assert {step for step, *_ in data["ranks"][0]["steps"]} == {data["median"], data["worst"]}
    assert "it has the median and the worst step only" in data["notes"][1]


def test_without_profiles_the_data_say_why(stored: Stored, tmp_path: Path) -> None:
    gone = timeline_data(Run(RUN, tmp_path / "gone"), stored.store)
    assert not gone["ranks"]
    assert "there is no folder" in gone["notes"][0]
    (tmp_path / "empty").mkdir()
    empty = timeline_data(Run(RUN, tmp_path / "empty"), stored.store)
    assert "the profile of rank 0 is no longer in" in empty["notes"][0]


def test_without_steps_the_data_say_so(tmp_path: Path) -> None:
    store = Store(store_url(str(tmp_path / "store.db"), tmp_path))
    store.prepare()
    data = timeline_data(Run(RUN, tmp_path), store)
    assert data["notes"] == ["No steps were found, and there is no capture small enough to show whole."]


def test_a_capture_without_steps_is_shown_as_a_whole(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = timeline_data(*stored)
    monkeypatch.setattr(f"{timeline_data.__module__}.steps_of_ranks", lambda _: {})
    data = timeline_data(*stored)
    assert data["notes"] == ["No steps were found: the whole capture is shown."]
    assert [len(rank["steps"]) for rank in data["ranks"]] == [1] * len(steps["ranks"])
    assert len(data["ranks"][0]["tracks"]) >= len(steps["ranks"][0]["tracks"])


def steps(*rows: tuple[int, int, int]) -> RankSteps:
    return RankSteps(*np.array(rows).T)


def test_the_time_of_a_step_is_that_of_its_slowest_rank() -> None:
    windows = {
        0: steps((0, 0, 10), (1, 10, 22), (2, 22, 33)),
        1: steps((0, 0, 50), (2, 60, 70)),
    }
    assert median_and_worst(windows) == ShownSteps(median=1, worst=0)


def test_up_to_16_ranks_are_all_shown() -> None:
    assert chosen_ranks([*range(16)], {}) == ([*range(16)], [])


def test_of_more_ranks_a_median_one_and_the_ten_furthest_are_shown() -> None:
    measure = {rank: float(rank % 3) for rank in range(100)} | {40 + i: 100.0 + i for i in range(10)}
    ranks, (note,) = chosen_ranks([*range(100)], measure)
    assert ranks == [1, *range(49, 39, -1)]
    assert note.startswith(
        "The page has a median rank of 100 ranks, rank 1, and the 10 that deviate most: ranks 40"
    )


def test_neighbouring_steps_are_read_together() -> None:
    assert spans([7, 3]) == [(3, 3), (7, 7)]
    assert spans([4, 3]) == [(3, 4)]
    assert spans([5]) == [(5, 5)]
