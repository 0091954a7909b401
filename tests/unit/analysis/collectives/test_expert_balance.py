"""Layers of experts: who computes longest, and who waits for it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.communication import communication
from hpcprof.analysis.collectives.expert_balance import expert_balance, layers

US = 1_000


def collectives(rank: int, steps: int = 6) -> pd.DataFrame:
    """Return two layers of experts in each step; the experts of rank 1 compute 300 us, the others 100 us.

    All dispatches take 20 us. The combine of rank 1 takes 20 us, and the others wait in theirs.
    """
    rows = []
    for step in range(steps):
        for layer in range(2):
            at = (step * 2 + layer) * 1_000 * US
            compute = (300 if rank == 1 else 100) * US
            combine = at + 20 * US + compute
            spans = (("Dispatch", at, at + 20 * US), ("Combine", combine, at + 340 * US))
            rows += [
                {"op": op, "start_ns": start, "end_ns": end, "seq": step * 2 + layer, "step": step}
                for op, start, end in spans
            ]
    unknown = dict.fromkeys(("comm_id", "bytes", "comm_ranks", "peer", "comm_peer"))
    table = pd.DataFrame(rows).assign(rank=rank, world_ranks=2, fused=1, part=0, **unknown)
    whole: pd.DataFrame = table.assign(exposed_ns=table["end_ns"] - table["start_ns"])
    return whole


def test_a_rank_with_more_work_for_its_experts_is_waited_for_in_each_layer() -> None:
    found = communication([collectives(rank) for rank in range(2)])
    table = expert_balance([layers(found)], {}).rows
    assert table["layer"].tolist() == [0, 0, 1, 1]
    assert table["rank"].tolist() == [0, 1, 0, 1]
    assert table["compute_ns"].tolist() == [100 * US, 300 * US] * 2
    assert table["wait_ns"].tolist() == [200 * US, 0] * 2
    assert table["waits_for"].tolist() == [1, None] * 2
    assert table["sent_bytes"].tolist() == [None] * 4


def test_experts_align_clocks_where_no_other_collective_does() -> None:
    ahead = 7_000 * US
    second = collectives(1)
    second[["start_ns", "end_ns"]] += ahead
    ((_, clock),) = communication([collectives(0), second]).clocks.items()
    assert clock.collectives == 2 * 12
    assert np.ptp(clock.aligned(np.array([[5, 5 + ahead]]))) == 0


def test_without_experts_there_is_a_reason() -> None:
    found = communication([collectives(0).iloc[::2], collectives(1).iloc[::2]])
    assert "no dispatch and combine" in expert_balance([layers(found)], {}).reason
