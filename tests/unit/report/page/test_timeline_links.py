"""Links between slices of ranks."""

from __future__ import annotations

import numpy as np

from hpcprof.report.page.timeline_tracks import links_of, rank_tracks
from hpcprof.results.store.run_communication import Carrier, RankCommunication
from tests.unit.analysis.mpi.programs import Program, receive, send


def test_a_message_of_mpi_is_at_its_call_or_at_its_request_and_not_at_both() -> None:
    program = Program(2)
    program.call(0, "MPI_Isend", 10, 12, send(1, end=40, wait=5))
    program.call(0, "MPI_Sendrecv", 20, 25, send(1), receive(1))
    program.call(0, "MPI_Wait", 35, 40)
    program.call(0, "MPI_Barrier", 50, 60, {"op": "Barrier"})
    carriers = [Carrier.MPI_REQUEST, Carrier.MPI_CALL, Carrier.MPI_CALL, Carrier.MPI_CALL]
    communication = RankCommunication(
        np.array([10, 20, 20, 50]),
        np.array([0, 1, 2, 7]),
        np.array([1, 1, -1, 0]),
        np.array([int(one) for one in carriers]),
        ["a", "b", "c", "d"],
    )
    calls, requests = (
        links_of(track.slices, communication) for track in rank_tracks(program.timeline(0)).tracks
    )
    assert (requests.message_rows, requests.messages, requests.texts) == ([0], [1], {0: "a"})
    assert (calls.message_rows, calls.messages) == ([1, 1], [2, -3])
    assert calls.collective.tolist() == [-1, -1, -1, 7]
    assert calls.texts == {1: "b; c", 3: "d"}
