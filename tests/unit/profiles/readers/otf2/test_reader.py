"""OTF2 archives, which the tests write with the package itself, read rank by rank."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcprof.analysis.framework.losses import touches
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.mpi.counters import useful_counters
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.readers.declaration import ProfilePart, SeveralRanks
from hpcprof.profiles.readers.discovery import files_of, identify_rank, read_profile, several_ranks
from hpcprof.profiles.readers.otf2.archive import open_archive
from hpcprof.profiles.readers.otf2.events import read_events
from hpcprof.profiles.readers.otf2.library import LibraryError
from hpcprof.profiles.timeline import NO_BYTES, NO_PEER, NO_ROOT, NO_TAG, NO_WAIT, StepRange, Timeline
from tests.data.otf2_archive import RESOLUTION, Program, files_of_archive, ticks, write_archive

otf2 = pytest.importorskip("otf2")
RANKS, STEPS = 4, 6


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_archive(tmp_path_factory.mktemp("archive") / "scorep", RANKS, STEPS)


@pytest.fixture
def anchor(written: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(written.parent, tmp_path / "scorep")
    return tmp_path / "scorep" / written.name


def rank_of(anchor: Path, rank: int) -> Timeline:
    several = several_ranks(anchor)
    timeline = read_profile(anchor, ProfilePart(several, rank) if several else None)
    assert isinstance(timeline, Timeline)
    return timeline


def write(folder: Path, body: Callable[[Program, Any], None], ranks: int = 1) -> Path:
    """Write an archive whose first thread has the events that ``body`` writes."""
    with otf2.writer.open(str(folder), timer_resolution=RESOLUTION) as trace:
        program = Program(trace, ranks)
        for thread in program.threads[1:]:
            trace.event_writer_from_location(thread).enter(ticks(0), program.regions["main"])
        body(program, trace.event_writer_from_location(program.threads[0]))
    return folder / "traces.otf2"


def test_an_archive_holds_all_ranks_and_each_reads_its_own_files(written: Path) -> None:
    found = several_ranks(written)
    assert found is not None
    assert (found.ranks, len(found.processes)) == ((0, 1, 2, 3), 4)
    assert identify_rank(written) is None
    own = [file.name for file in files_of(written, ProfilePart(found, 2))]
    assert own == ["traces.otf2", "traces.def", "2.def", "2.evt", "6.def", "6.evt", "10.def", "10.evt"]
    assert sorted(files_of(written)) == sorted(files_of_archive(written))


def test_the_origin_says_rank_size_host_and_gpu(written: Path) -> None:
    origin = rank_of(written, 3).origin
    assert (origin.rank, origin.world_size, origin.host, origin.losses) == (3, RANKS, "node0", ())
    assert [(gpu.device, gpu.name) for gpu in origin.gpus] == [(0, "GPU 0")]


def test_ticks_of_the_clock_become_nanoseconds_since_its_offset(written: Path) -> None:
    ranges = rank_of(written, 1).ranges
    assert ranges.start[:3].tolist() == [0, 1_000, 3_000]
    assert ranges.end[:3].tolist() == [1_000 + STEPS * 2_000, 2_500, 4_500]


def test_regions_of_the_program_and_of_openmp_are_ranges_on_their_threads(written: Path) -> None:
    timeline = rank_of(written, 0)
    names = timeline.names(timeline.ranges.name)
    assert [(name, names.count(name)) for name in ("main", "step", "loop")] == [
        ("main", 1),
        ("step", STEPS),
        ("loop", STEPS),
    ]
    assert len({*timeline.ranges.thread.tolist()}) == 2
    assert timeline.ranges.closed.all()


def test_regions_of_a_gpu_are_kernels_and_copies_and_its_interface_api_calls(written: Path) -> None:
    timeline = rank_of(written, 0)
    assert timeline.names(timeline.kernels.name) == ["kernel"] * (STEPS + 1)
    assert (timeline.kernels.start[0], timeline.kernels.end[0]) == (1_030, 1_130)
    assert timeline.names(timeline.memops.name) == ["copy"] * STEPS
    assert timeline.names(timeline.calls.name) == ["cudaLaunchKernel"] * STEPS


def test_a_nonblocking_message_ends_in_the_call_that_waits_for_its_request(written: Path) -> None:
    timeline = rank_of(written, 1)
    messages = timeline.mpi_operations.take(slice(0, 2))
    assert timeline.names(messages.operation) == ["Send", "Recv"]
    assert messages.start.tolist() == [1_400, 1_420]
    assert messages.begin_ns.tolist() == [10, 10]
    assert messages.end.tolist() == [1_600, 1_600]
    assert messages.wait_ns.tolist() == [100, 100]
    assert (messages.peer.tolist(), messages.tag.tolist()) == ([2, 0], [7, 7])
    assert messages.bytes.tolist() == [4_096, 4_096]
    assert messages.root.tolist() == [NO_ROOT, NO_ROOT]


def test_a_collective_has_its_communicator_root_and_the_bytes_of_one_rank(written: Path) -> None:
    timeline = rank_of(written, 2)
    both = timeline.mpi_operations.take(slice(2, 4))
    assert timeline.names(both.operation) == ["AllReduce", "Gather"]
    assert timeline.names(both.communicator) == ["MPI_COMM_WORLD", "ranks 0,2"]
    assert (both.ranks.tolist(), both.root.tolist()) == ([4, 2], [NO_ROOT, 0])
    assert (both.bytes.tolist(), both.received_bytes.tolist()) == ([8, 16], [8, 0])
    assert (both.peer.tolist(), both.tag.tolist()) == ([NO_PEER] * 2, [NO_TAG] * 2)
    root = rank_of(written, 0).mpi_operations
    assert root.received_bytes[3] == 32


def test_a_call_that_sends_and_receives_has_an_operation_for_each(written: Path) -> None:
    timeline = rank_of(written, 3)
    both = timeline.mpi_operations.take(slice(3, 5))
    assert timeline.names(both.operation) == ["Send", "Recv"]
    assert both.start.tolist() == [2_000, 2_000]
    assert both.wait_ns.tolist() == [50, 50]
    assert timeline.names(timeline.mpi_calls.name).count("MPI_Sendrecv") == STEPS


def test_communicators_of_the_same_ranks_are_told_apart(tmp_path: Path) -> None:
    def body(program: Program, writer: Any) -> None:
        for at, communicator in enumerate((program.half, program.twin, program.alone)):
            writer.mpi_send(ticks(at), 0, communicator, 1, 8)

    timeline = rank_of(write(tmp_path / "a", body, ranks=4), 0)
    found = timeline.mpi_operations
    assert timeline.names(found.communicator) == ["ranks 0,2", "ranks 0,2 #2", "ranks 0"]
    assert found.peer.tolist() == [0, 0, 0]
    # Nothing is known of the time of a message outside of all calls.
    assert (found.begin_ns.tolist(), found.wait_ns.tolist()) == ([0] * 3, [0] * 3)


def test_requests_without_an_end_are_counted_and_cancelled_ones_are_not(tmp_path: Path) -> None:
    def body(program: Program, writer: Any) -> None:
        world = program.world
        writer.mpi_isend(ticks(10), 0, world, 1, 8, 1)
        writer.mpi_irecv_request(ticks(20), 2)
        writer.mpi_irecv_request(ticks(30), 3)
        writer.mpi_request_cancelled(ticks(40), 3)
        writer.mpi_isend_complete(ticks(50), 99)
        writer.mpi_irecv(ticks(60), 0, world, 5, 16, 77)

    timeline = rank_of(write(tmp_path / "a", body), 0)
    found = timeline.mpi_operations
    assert timeline.names(found.operation) == ["Send", "Recv"]
    # The clock begins with the first event.
    assert (found.start.tolist(), found.wait_ns.tolist()) == ([0, 50], [NO_WAIT, 0])
    assert timeline.origin.losses == (
        Loss(LossKind.ROW, Subject.MPI_OPERATION, 1, 4, "completion"),
        Loss(LossKind.ROW, Subject.MPI_OPERATION, 2, 2, "call around it"),
    )


def test_impossible_sizes_and_collectives_without_a_record_are_counted(tmp_path: Path) -> None:
    def body(program: Program, writer: Any) -> None:
        for at, name in enumerate(("MPI_Sendrecv", "MPI_Allreduce")):
            writer.enter(ticks(10 * at), program.regions[name])
            if name == "MPI_Sendrecv":
                # A size that the writer never set.
                writer.mpi_send(ticks(1), 0, program.world, 1, 1 << 47)
            writer.leave(ticks(10 * at + 5), program.regions[name])

    timeline = rank_of(write(tmp_path / "a", body), 0)
    assert timeline.mpi_operations.bytes.tolist() == [NO_BYTES]
    lost = (
        Loss(LossKind.ROW, Subject.MPI_OPERATION, 1, None, "record (AllReduce)"),
        Loss(LossKind.FIELD, Subject.MPI_OPERATION, 1, 1, "size"),
    )
    assert timeline.origin.losses == lost
    assert all(touches(loss, ANALYSES["mpi_waits"]) and "Score-P" in loss.remedy for loss in lost)


def test_messages_to_and_from_no_rank_are_none(tmp_path: Path) -> None:
    def body(program: Program, writer: Any) -> None:
        # MPI_PROC_NULL is -2 in Open MPI.
        for at, (record, peer) in enumerate(
            (record, peer) for record in (writer.mpi_send, writer.mpi_recv) for peer in (2**32 - 2, 0)
        ):
            writer.enter(ticks(10 * at), program.regions["MPI_Sendrecv"])
            record(ticks(10 * at + 1), peer, program.world, 1, 8)
            writer.leave(ticks(10 * at + 5), program.regions["MPI_Sendrecv"])

    timeline = rank_of(write(tmp_path / "a", body), 0)
    assert timeline.names(timeline.mpi_operations.operation) == ["Send", "Recv"]
    assert timeline.mpi_operations.start.tolist() == [10, 30]


def test_a_request_number_that_is_used_again_belongs_to_the_last_operation(tmp_path: Path) -> None:
    def body(program: Program, writer: Any) -> None:
        for at in (0, 100):
            writer.enter(ticks(at), program.regions["MPI_Isend"])
            writer.mpi_isend(ticks(at + 1), 0, program.world, 1, 8, 5)
            writer.leave(ticks(at + 2), program.regions["MPI_Isend"])
            writer.enter(ticks(at + 10), program.regions["MPI_Wait"])
            writer.mpi_isend_complete(ticks(at + 20), 5)
            writer.leave(ticks(at + 20), program.regions["MPI_Wait"])

    found = rank_of(write(tmp_path / "a", body), 0).mpi_operations
    assert (found.start.tolist(), found.end.tolist()) == ([0, 100], [20, 120])


def test_a_nonblocking_collective_and_a_probed_receive_are_read(tmp_path: Path) -> None:
    from otf2.enums import CollectiveOp

    def body(program: Program, writer: Any) -> None:
        world, region = program.world, program.regions
        writer.enter(ticks(0), region["MPI_Allreduce"])
        writer.non_blocking_collective_request(ticks(5), 4)
        writer.leave(ticks(10), region["MPI_Allreduce"])
        writer.mpi_probe(ticks(11), 0, world, 3, 70)
        writer.enter(ticks(12), region["MPI_Imrecv"])
        writer.mpi_imrecv_request(ticks(13), 70, 6)
        writer.leave(ticks(14), region["MPI_Imrecv"])
        writer.mpi_probe(ticks(15), 0, world, 4, 71)
        writer.mpi_mrecv(ticks(16), 71, 32)
        writer.enter(ticks(20), region["MPI_Waitall"])
        writer.non_blocking_collective_complete(ticks(25), CollectiveOp.ALLREDUCE, world, 2**32 - 1, 8, 8, 4)
        writer.mpi_imrecv(ticks(26), 6, 64)
        writer.leave(ticks(30), region["MPI_Waitall"])

    timeline = rank_of(write(tmp_path / "a", body), 0)
    found = timeline.mpi_operations
    assert timeline.names(found.operation) == ["AllReduce", "Recv", "Recv"]
    assert (found.end - found.start).tolist() == [30, 18, 0]
    assert (found.tag.tolist(), found.bytes.tolist()) == ([NO_TAG, 3, 4], [8, 64, 32])


def test_making_a_communicator_is_a_call_and_no_operation(tmp_path: Path) -> None:
    from otf2.enums import CollectiveOp

    def body(program: Program, writer: Any) -> None:
        writer.enter(ticks(0), program.regions["MPI_Comm_split"])
        writer.enter(ticks(1), program.regions["MPI_Wait"])
        writer.leave(ticks(2), program.regions["MPI_Wait"])
        writer.mpi_collective_end(ticks(3), CollectiveOp.CREATE_HANDLE, program.world, 2**32 - 1, 0, 0)
        writer.leave(ticks(4), program.regions["MPI_Comm_split"])

    timeline = rank_of(write(tmp_path / "a", body), 0)
    # A call inside of another is a part of it.
    assert timeline.names(timeline.mpi_calls.name) == ["MPI_Comm_split"]
    assert len(timeline.mpi_operations) == 0


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    def body(program: Program, writer: Any) -> None:
        from otf2.enums import MeasurementMode

        window = program.trace.definitions.rma_win("window", program.world)
        writer.leave(ticks(1), program.regions["step"])
        writer.enter(ticks(2), program.regions["main"])
        writer.rma_put(ticks(3), window, 0, 64, 1)
        writer.rma_op_complete_blocking(ticks(4), window, 1)
        writer.buffer_flush(ticks(5), ticks(7))
        writer.measurement_on_off(ticks(7), MeasurementMode.OFF)
        writer.measurement_on_off(ticks(8), MeasurementMode.ON)
        writer.enter(ticks(8), program.regions["step"])
        writer.leave(ticks(9), program.regions["loop"])

    timeline = rank_of(write(tmp_path / "a", body), 0)
    assert [loss.sentence for loss in timeline.origin.losses] == [
        "3 of 5 begins and ends of regions have no valid counterpart and are left out",
        "2 events of the category RMA are not supported and are left out",
        "recording was off 1 time on threads of the program, whose time then counts as compute",
        "the profiler reports: its buffer was full and was written 1 time while the program ran",
    ]
    # A region that is never left ends with the last event of its thread.
    assert (timeline.ranges.closed.tolist(), timeline.ranges.end.tolist()) == ([0], [8])


def test_work_on_a_stream_may_overlap(tmp_path: Path) -> None:
    def body(program: Program, _: Any) -> None:
        stream = program.trace.event_writer_from_location(program.streams[0])
        stream.enter(ticks(0), program.regions["kernel"])
        stream.enter(ticks(1), program.regions["copy"])
        stream.leave(ticks(5), program.regions["kernel"])
        stream.leave(ticks(9), program.regions["copy"])

    timeline = rank_of(write(tmp_path / "a", body), 0)
    assert (timeline.kernels.end.tolist(), timeline.memops.end.tolist()) == ([5], [9])
    assert timeline.memops.bytes.tolist() == [NO_BYTES]


def test_without_mpi_each_process_is_a_rank(tmp_path: Path) -> None:
    with otf2.writer.open(str(tmp_path / "a"), timer_resolution=RESOLUTION) as trace:
        node = trace.definitions.system_tree_node("node0")
        region = trace.definitions.region("main")
        for name in "ab":
            group = trace.definitions.location_group(name, system_tree_parent=node)
            writer = trace.event_writer("thread", group=group)
            writer.enter(1, region)
            writer.leave(2, region)
    assert several_ranks(tmp_path / "a/traces.otf2") == SeveralRanks(((0,), (1,)))


def test_calls_of_mpi_without_records_are_collectives_of_all_ranks(tmp_path: Path) -> None:
    """As TAU writes them: regions of the program's paradigm, in processes of which none is named a rank."""
    with otf2.writer.open(str(tmp_path / "a"), timer_resolution=0) as trace:
        define = trace.definitions
        names = ("MPI_Init()", "MPI_Allreduce()", "MPI_Send()", "MPI_Put()", "MPI_Waitall()")
        regions = [define.region(name) for name in names]
        for rank in range(3):
            node = define.system_tree_node(f"node {rank}", class_name="")
            group = define.location_group(f"group {rank}", system_tree_parent=node)
            writer = trace.event_writer(f"thread {rank}", group=group)
            for at, region in enumerate(regions):
                writer.enter(10 * at, region)
                writer.leave(10 * at + 5 + rank, region)
            # A negative time that was stored without its sign.
            writer.enter((1 << 64) - 7, regions[1])
            writer.leave((1 << 64) - 5, regions[1])
    assert several_ranks(tmp_path / "a/traces.otf2") == SeveralRanks(((0,), (1,), (2,)), (0, 1, 2))
    timeline = rank_of(tmp_path / "a/traces.otf2", 2)
    assert (timeline.origin.rank, timeline.origin.world_size) == (2, 3)
    assert timeline.mpi_calls.end.tolist() == [7, 17, 27, 37, 47]
    found = timeline.mpi_operations
    assert timeline.names(np.append(found.operation, found.communicator)) == ["AllReduce", "MPI_COMM_WORLD"]
    assert (found.start.tolist(), found.end.tolist(), found.ranks.tolist()) == ([10], [17], [3])
    assert {(loss.kind, loss.detail[:27]) for loss in timeline.origin.losses} == {
        (LossKind.ROW, "record (Send)"),
        (LossKind.ROW, "record (what waits end, as "),
        (LossKind.FIELD, "synchronization of their wi"),
        (LossKind.FIELD, "communicator"),
        (LossKind.DIAGNOSTIC, "its clock has no resolution"),
        (LossKind.ROW, "start"),
    }


def test_names_of_functions_and_ranks_are_read_as_other_writers_have_them(tmp_path: Path) -> None:
    from otf2.enums import GroupType, Paradigm

    with otf2.writer.open(str(tmp_path / "a"), timer_resolution=RESOLUTION) as trace:
        define = trace.definitions
        node = define.system_tree_node("node0")
        names = ("mpi_send_", "MPI_Recv()", "PMPI_WIN_FENCE", "my_mpi_send")
        regions = [define.region(name, paradigm=Paradigm.USER) for name in names]
        processes = [define.location_group(f"rank {rank}", system_tree_parent=node) for rank in range(2)]
        threads = [define.location("thread", group=one) for one in processes]
        threads.append(define.location("worker", group=processes[0]))
        # The threads of a process are listed too, and no list has the ranks.
        team = define.group("", GroupType.COMM_LOCATIONS, Paradigm.OPENMP, members=(threads[0], threads[2]))
        define.comm("team", team)
        every = define.group("", GroupType.LOCATIONS, Paradigm.MPI, members=threads[1::-1])
        backwards = define.comm("backwards", every)
        for rank, thread in enumerate(threads):
            writer = trace.event_writer_from_location(thread)
            for at, region in enumerate(regions):
                writer.enter(ticks(10 * at), region)
                if not at and rank < 2:
                    writer.mpi_send(ticks(1), 0, backwards, 1, 8)
                writer.leave(ticks(10 * at + 5), region)
    assert several_ranks(tmp_path / "a/traces.otf2") == SeveralRanks(((0,), (1,)), (0, 1))
    timeline = rank_of(tmp_path / "a/traces.otf2", 0)
    assert timeline.names(timeline.mpi_calls.name)[:3] == ["MPI_Send", "MPI_Recv", "MPI_Win_fence"]
    assert set(timeline.names(timeline.ranges.name)) == {"my_mpi_send"}
    # Rank 0 of the communicator is rank 1 of the program.
    assert timeline.mpi_operations.peer.tolist() == [1]


def test_regions_that_cross_end_with_their_own_leaves(tmp_path: Path) -> None:
    def body(program: Program, writer: Any) -> None:
        writer.enter(ticks(0), program.regions["main"])
        writer.enter(ticks(5), program.regions["step"])
        writer.leave(ticks(6), program.regions["main"])
        writer.leave(ticks(8), program.regions["step"])

    timeline = rank_of(write(tmp_path / "a", body), 0)
    assert (timeline.ranges.start.tolist(), timeline.ranges.end.tolist()) == ([0, 5], [6, 8])
    assert timeline.origin.losses == ()


def test_a_rank_whose_events_are_damaged_is_named_and_the_others_are_read(anchor: Path) -> None:
    broken = anchor.with_suffix("") / "2.evt"
    broken.write_bytes(broken.read_bytes()[:-40])
    with pytest.raises(DamagedInput, match=r"traces\.otf2: the events of rank 2 \(2\.evt\) cannot be read"):
        rank_of(anchor, 2)
    assert len(rank_of(anchor, 1).mpi_operations) == 5 * STEPS


def test_stated_numbers_of_events_below_those_of_the_files_tell_no_damage(anchor: Path) -> None:
    with open_archive(anchor) as archive:
        first = archive.locations[0]._replace(events=10**6)
        with pytest.raises(LibraryError, match="of 1,000,000 events are there"):
            read_events(archive, first)
        # APEX states the number of its definitions for each location.
        archive.locations = [first, *(one._replace(events=1) for one in archive.locations[1:])]
        assert len(read_events(archive, first).visits)


def test_another_thread_that_is_damaged_is_a_loss(anchor: Path) -> None:
    (anchor.with_suffix("") / "4.evt").unlink()
    timeline = rank_of(anchor, 0)
    (loss,) = timeline.origin.losses
    assert loss.sentence == f"{2 * STEPS} events of OMP thread 1 (4.evt) cannot be read and are left out"
    assert len(timeline.mpi_operations) == 6 * STEPS


def test_the_package_that_is_missing_is_named(anchor: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcprof.profiles.readers.otf2 import library

    library._library.cache_clear()
    monkeypatch.setitem(sys.modules, "_otf2.Config", None)
    with pytest.raises(DamagedInput, match=r"needs the package otf2: pip install 'hpcprof\[otf2\]'"):
        several_ranks(anchor)


def test_damage_to_any_file_is_one_sentence_or_a_profile_and_prints_nothing(
    written: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    choose = random.Random(3)
    files = [file.relative_to(written.parent) for file in files_of_archive(written) if file.stem in "traces0"]
    for number in range(18):
        folder = tmp_path / str(number)
        shutil.copytree(written.parent, folder)
        victim = folder / choose.choice(files)
        content = bytearray(victim.read_bytes())
        at = choose.randrange(len(content))
        if number % 3:
            content[at : at + 4] = choose.randbytes(4)
        victim.write_bytes(content if number % 3 else content[:at])
        try:
            timeline = rank_of(folder / written.name, 0)
        except DamagedInput as damage:
            assert str(folder) in str(damage)
            assert not damage.traceback, damage.traceback
        else:
            assert np.all(timeline.mpi_operations.begin_ns >= 0)
    assert capfd.readouterr() == ("", "")


def test_instructions_and_cycles_are_those_outside_mpi(tmp_path: Path) -> None:
    def body(program: Program, main: Any) -> None:
        instructions, cycles = 10**15, 2 * 10**15
        for step in range(6):
            at = 1_000 + 1_000 * step
            # Of 1,000 ns of each step, 400 are inside MPI, where the thread polls.
            for name, begin, end, of_each in (("step", 0, 600, 3), ("MPI_Allreduce", 600, 1_000, 7)):
                program.count(main, at + begin, instructions, cycles)
                main.enter(ticks(at + begin), program.regions[name])
                if name == "MPI_Allreduce":
                    main.mpi_collective_end(
                        ticks(at + end), otf2.CollectiveOp.ALLREDUCE, program.world, 2**32 - 1, 8, 8
                    )
                instructions += of_each * (end - begin)
                cycles += 2 * (end - begin)
                program.count(main, at + end, instructions, cycles)
                main.leave(ticks(at + end), program.regions[name])

    timeline = replace(rank_of(write(tmp_path, body), 0), step_range=StepRange("step"))
    assert set(timeline.names(timeline.cpu_counters.counter)) == {"instructions", "cycles"}
    # The cache misses are left out, and no figure lacks them.
    (loss,) = timeline.origin.losses
    assert loss.sentence == (
        "24 records of the category metrics other than instructions and cycles are not supported and are "
        "left out"
    )
    assert not any(touches(loss, one) for one in ANALYSES.values() if one.events)
    rows = useful_counters(timeline).rows.to_dict("records")
    expected = {"useful_ns": 6 * 600, "instructions": 6 * 600 * 3, "cycles": 6 * 600 * 2}
    assert rows == [{"scope": "run", "name": "", **expected}, {"scope": "step", "name": "step", **expected}]
