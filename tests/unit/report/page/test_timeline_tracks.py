"""The tracks of a rank in a timeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.profiles.readers.kineto import reader as torch_trace
from hpcprof.report.page.timeline_tracks import (
    NONE,
    ON_GPU,
    RankTracks,
    SliceKind,
    Track,
    TrackKind,
    joined,
    merge_short,
    rank_tracks,
)
from tests.unit.analysis.mpi.programs import Program, send
from tests.unit.analysis.timelines import COMM, COMP, MEM, timeline

DATA = Path(__file__).parents[3] / "data"


def labels(tracks: RankTracks) -> list[tuple[TrackKind, str]]:
    return [(track.kind, track.label) for track in tracks.tracks]


def only(tracks: RankTracks, kind: TrackKind) -> Track:
    (track,) = (track for track in tracks.tracks if track.kind is kind)
    return track


def test_communication_has_a_track_beside_the_other_work_of_its_stream() -> None:
    found = rank_tracks(timeline([(0, 5, COMP), (5, 9, COMM), (9, 12, MEM)]))
    assert labels(found) == [
        (TrackKind.COMMUNICATION, "Communication, stream 0"),
        (TrackKind.STREAM, "GPU work, stream 0"),
    ]
    assert only(found, TrackKind.COMMUNICATION).slices.start.tolist() == [5]
    kinds = only(found, TrackKind.STREAM).slices.kind.tolist()
    assert kinds == [SliceKind.COMPUTE, SliceKind.COPY]


def test_calls_of_mpi_and_requests_until_their_completion_have_tracks_of_their_own() -> None:
    program = Program(2)
    program.call(0, "MPI_Isend", 10, 12, send(1, end=40, wait=5))
    program.call(0, "MPI_Send", 20, 25, send(1))
    program.call(0, "MPI_Wait", 35, 40)
    found = rank_tracks(program.timeline(0))
    assert labels(found) == [
        (TrackKind.COMMUNICATION, "MPI calls, thread 1"),
        (TrackKind.COMMUNICATION, "MPI requests"),
    ]
    calls, requests = (track.slices for track in found.tracks)
    assert (calls.start.tolist(), {*calls.kind.tolist()}) == ([10, 20, 35], {SliceKind.MPI})
    assert (requests.start.tolist(), requests.end.tolist()) == ([10], [40])
    assert requests.kind.tolist() == [SliceKind.MPI_REQUEST]


def test_ranges_of_a_thread_are_nested_by_depth() -> None:
    inside = [(0, 100, "step"), (0, 40, "forward"), (10, 20, "layer"), (50, 90, "backward")]
    track = only(rank_tracks(timeline(ranges=[(*one, 7) for one in inside])), TrackKind.RANGES)
    assert track.label == "Ranges, thread 7"
    assert track.slices.start.tolist() == [0, 0, 10, 50]
    assert track.slices.depth.tolist() == [0, 1, 2, 1]


def test_ranges_are_also_drawn_where_their_work_is_on_the_gpu_if_all_of_it_is_there() -> None:
    work = [(60, 70, COMP, 5), (75, 90, COMP, 8), (95, 99, COMP, 45)]
    one = timeline(work, ranges=[(0, 20, "forward", 0), (40, 50, "backward", 0), (52, 54, "empty", 0)])
    (track,) = (track for track in rank_tracks(one, projects=True).tracks if track.label == ON_GPU)
    assert track.slices.start.tolist() == [60, 95]
    assert track.slices.end.tolist() == [90, 99]
    assert one.names(track.slices.name) == ["forward", "backward"]
    assert ON_GPU not in [label for _, label in labels(rank_tracks(one))]


def test_a_call_and_the_work_that_it_launched_share_a_number() -> None:
    found = rank_tracks(timeline([(10, 15, COMP, 3), (20, 25, COMP, None), (30, 35, COMM, 4)]))
    calls = only(found, TrackKind.CALLS).slices
    first, lost = only(found, TrackKind.STREAM).slices.launch.tolist()
    (second,) = only(found, TrackKind.COMMUNICATION).slices.launch.tolist()
    assert calls.start[calls.launch == first].tolist() == [3]
    assert calls.start[calls.launch == second].tolist() == [4]
    assert lost == NONE


def test_calls_that_wait_for_the_gpu_are_waits() -> None:
    base = timeline([(10, 15, COMP, 3)])
    texts = base.strings.copy()
    texts[base.calls.name[0]] = "cudaStreamSynchronize_v3020"
    (kind,) = only(rank_tracks(replace(base, strings=texts)), TrackKind.CALLS).slices.kind.tolist()
    assert kind == SliceKind.WAIT
    texts[base.calls.name[0]] = "cudaStreamWaitEvent"  # It is the stream that waits.
    (kind,) = only(rank_tracks(replace(base, strings=texts)), TrackKind.CALLS).slices.kind.tolist()
    assert kind == SliceKind.CALL


def test_slices_know_their_grid_and_size() -> None:
    torch_step = torch_trace.read(DATA / "ddp_step_rank0.pt.trace.json.gz")
    found = rank_tracks(torch_step)
    streams = [track.slices for track in found.tracks if track.kind is TrackKind.STREAM]
    texts = {found.infos[i] for slices in streams for i in slices.info.tolist() if i != NONE}
    assert any(text.startswith("grid (") and "block (" in text for text in texts)
    assert any(text.endswith("B)") and " bytes (" in text for text in texts)
    work = sum(
        len(track.slices)
        for track in found.tracks
        if track.kind in (TrackKind.STREAM, TrackKind.COMMUNICATION)
    )
    assert work == torch_step.operation_count


def test_windows_are_joined_and_an_event_of_both_counts_once() -> None:
    early = timeline([(10, 15, COMP, 3)], ranges=[(0, 100, "epoch", 1), (2, 20, "step", 1)])
    late = timeline([(60, 65, COMP, 53)], ranges=[(0, 100, "epoch", 1), (52, 70, "step", 1)])
    found = joined([rank_tracks(early), rank_tracks(late)])
    ranges = only(found, TrackKind.RANGES).slices
    assert ranges.start.tolist() == [0, 2, 52]
    assert ranges.depth.tolist() == [0, 1, 1]
    calls, work = only(found, TrackKind.CALLS).slices, only(found, TrackKind.STREAM).slices
    assert calls.launch.tolist() == work.launch.tolist()
    assert len(set(calls.launch.tolist())) == 2
    assert {found.infos[i] for i in work.info.tolist()} == {"grid (1, 1, 1), block (1, 1, 1)"}


EXTENTS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), max_size=40)


@given(EXTENTS)
def test_slices_of_a_level_do_not_overlap(extents: list[tuple[int, int]]) -> None:
    found = rank_tracks(timeline(ranges=[(at, at + length, "r", 1) for at, length in extents]))
    for slices in (track.slices for track in found.tracks):
        assert np.all(np.diff(slices.start) >= 0)
        for depth in set(slices.depth.tolist()):
            level = slices.take(slices.depth == depth)
            assert np.all(level.start[1:] >= level.end[:-1])


@given(EXTENTS, st.integers(1, 12))
def test_merging_covers_what_it_merges_and_leaves_long_slices(
    extents: list[tuple[int, int]], shortest: int
) -> None:
    found = rank_tracks(timeline(ranges=[(at, at + length, "r", 1) for at, length in extents]))
    for slices in (track.slices for track in found.tracks):
        merged = merge_short(slices, shortest)
        assert merge_short(slices, 0).start.tolist() == slices.start.tolist()
        long = {*zip(slices.start.tolist(), slices.end.tolist(), strict=True)}
        long = {one for one in long if one[1] - one[0] >= shortest}
        assert long <= {*zip(merged.start.tolist(), merged.end.tolist(), strict=True)}
        for start, end, depth in zip(slices.start, slices.end, slices.depth, strict=True):
            assert np.any((merged.start <= start) & (merged.end >= end) & (merged.depth == depth))


def test_merged_slices_say_that_they_are_and_keep_the_kind_that_takes_most_time() -> None:
    work = [(0, 1, COMP), (2, 5, MEM), (6, 7, COMP), (8, 50, COMP), (51, 52, COMP)]
    merged = merge_short(rank_tracks(timeline(work)).tracks[0].slices, 5)
    assert merged.start.tolist() == [0, 8, 51]
    assert merged.end.tolist() == [7, 50, 52]
    assert merged.kind.tolist() == [
        SliceKind.MERGED | SliceKind.COPY,
        SliceKind.COMPUTE,
        SliceKind.COMPUTE,
    ]


def test_an_empty_profile_has_no_tracks() -> None:
    assert not rank_tracks(timeline()).tracks
