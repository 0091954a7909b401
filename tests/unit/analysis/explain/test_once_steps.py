"""Steps that take long once have a cause and a place in the explanation."""

from __future__ import annotations

import pandas as pd

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explanation import OnceStep
from hpcprof.analysis.explain.whole_run import once_steps


def account(*steps: dict[str, int]) -> pd.DataFrame:
    usual = {"compute_ns": 80, "exposed_comm_ns": 10, "wait_for_peer_ns": 0}
    usual |= {"exposed_mem_ns": 0, "idle_ns": 10}
    rows = [
        {"rank": rank, "step": number} | usual | (step if rank else {})
        for number, step in enumerate(steps)
        for rank in (0, 1)
    ]
    table: pd.DataFrame = pd.DataFrame(rows)
    table["wall_ns"] = table[[*usual]].sum(axis=1)
    return table


def test_the_longest_excess_is_the_cause_of_a_step_that_takes_long_once() -> None:
    table = account(*[{}] * 8, {"exposed_comm_ns": 900, "idle_ns": 50}, *[{}] * 8)
    expected = OnceStep(8, 930, Cause.EXPOSED_COMMUNICATION, "exposed communication")
    assert once_steps(table) == (expected,)


def test_steps_that_are_long_at_a_rate_did_not_happen_once() -> None:
    assert once_steps(account(*[*[{}] * 8, {"idle_ns": 900}] * 2)) == ()
    assert once_steps(pd.DataFrame()) == ()
