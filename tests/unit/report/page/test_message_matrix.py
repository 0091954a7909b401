"""The data of the matrix of messages."""

from __future__ import annotations

from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.report.page.chart_data import MAX_MATRIX_LINES, message_matrix
from tests.data.simulated_account import contents_of


def matrix(pairs: list[tuple[int, int]], ranks: int) -> AnalysisTable:
    """Return messages of 10 bytes between some ranks, 8 of which are on a node."""
    assert all(max(pair) < ranks for pair in pairs)
    return AnalysisTable(
        {
            "sender": [sender for sender, _ in pairs],
            "receiver": [receiver for _, receiver in pairs],
            "sender_node": [f"node-{sender // 8}" for sender, _ in pairs],
            "receiver_node": [f"node-{receiver // 8}" for _, receiver in pairs],
            "messages": [1] * len(pairs),
            "bytes": [10] * len(pairs),
            "transfer_ns": [None] * len(pairs),
        }
    )


def test_a_cell_has_what_one_rank_sends_another_and_unknown_quantities_are_left_out() -> None:
    steps = AnalysisTable({"rank": [*range(16)]})
    data = message_matrix(contents_of({"mpi_matrix": matrix([(0, 1), (15, 0)], 16), "step_times": steps}))
    assert data is not None
    assert (data["ranks"], data["block"], data["row"], data["column"]) == (16, 1, [0, 15], [1, 0])
    assert {one["id"]: one["values"] for one in data["quantities"]} == {"bytes": [10, 10], "messages": [1, 1]}
    assert (data["nodes"], data["node_names"]) == ([0, 8], ["node-000", "node-001"])
    assert data["note"] == "2 messages, 20 B; 50 % between nodes."


def test_of_4096_ranks_eight_share_a_line_which_has_their_sum() -> None:
    pairs = [(rank, (rank + 1) % 4096) for rank in range(4096)]
    data = message_matrix(contents_of({"mpi_matrix": matrix(pairs, 4096)}))
    assert data is not None
    assert data["block"] == 8
    assert len(data["row"]) == 2 * MAX_MATRIX_LINES
    cells = dict(
        zip(zip(data["row"], data["column"], strict=True), data["quantities"][0]["values"], strict=True)
    )
    assert (cells[0, 0], cells[0, 1], cells[511, 0]) == (70, 10, 10)
    assert "8 ranks in a row share a line and a column." in data["note"]


def test_without_messages_there_is_no_matrix() -> None:
    assert message_matrix(contents_of({})) is None
