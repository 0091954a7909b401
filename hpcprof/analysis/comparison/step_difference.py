"""The difference of the step between two sides of runs, as parts of the account that add up to it exactly."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from hpcprof.analysis.account.declarations import OUTSIDE_STEPS
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, welch_interval
from hpcprof.analysis.steps.run_step import account_of_all_steps
from hpcprof.profiles.timeline import Floats

STEP = "step"
"""The row of the whole step, which is the sum of the others."""

COMMUNICATION, WAITING = "exposed communication", "waiting for peers"
_PARTS = {
    "compute_ns": "compute",
    "exposed_comm_ns": COMMUNICATION,
    "wait_for_peer_ns": WAITING,
    "exposed_mem_ns": "exposed copies",
    "idle_ns": "idle",
}
_ONE_RUN_NOTE = (
    "with one run per side, the difference is exact for these two runs, but another pair of runs may differ "
    "by another amount"
)
_NO_WAITING_NOTE = (
    "exposed communication includes the waiting for peers, which is unknown in at least one of the runs"
)


def step_difference(runs: Sequence[RunData], against: Sequence[RunData]) -> Outcome:
    """Divide the difference of the step between ``runs`` (side b) and ``against`` (side a) into parts.

    The step and its parts are those of ``step_kinds`` for all steps: its elapsed time, the mean of each part
    over the steps and ranks, and ``outside steps``, the rest. A side is the mean of its runs. The rows add up
    to the row ``step``, in ``a_ns``, in ``b_ns`` and in ``difference_ns``, to the nanosecond.

    With two or more runs on both sides, ``ci_low_ns`` and ``ci_high_ns`` are a 95 % interval of the
    difference (Welch's t).
    """
    accounts = [[_account(run) for run in side] for side in (against, runs)]
    a, b = ([account for account in side if account is not None] for side in accounts)
    if not a or not b:
        return no_rows("the account of a step needs profiles with steps on both sides")
    names, notes = list(_PARTS), []
    if not all(account.waiting_is_known for account in (*a, *b)):
        names.remove("wait_for_peer_ns")
        notes.append(_NO_WAITING_NOTE)
    rows = [_row(STEP, [account.step for account in a], [account.step for account in b])]
    rows += [_row(_PARTS[name], *(_values(side, name, names) for side in (a, b))) for name in names]
    unassigned = {key: rows[0][key] - sum(row[key] for row in rows[1:]) for key in ("a_ns", "b_ns")}
    if any(unassigned.values()):
        remainders = [[account.step - sum(account.parts.values()) for account in side] for side in (a, b)]
        rows.append(
            _row(OUTSIDE_STEPS, *remainders)
            | unassigned
            | {"difference_ns": unassigned["b_ns"] - unassigned["a_ns"]}
        )
    if min(len(a), len(b)) < 2:
        notes.append(_ONE_RUN_NOTE)
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(notes))


class _Account(msgspec.Struct, frozen=True):
    """The elapsed time of the step of a run and its parts, in ns."""

    step: float
    parts: dict[str, float]
    waiting_is_known: bool


def _account(run: RunData) -> _Account | None:
    table = run.tables["step_kinds"]
    if not len(table):
        return None
    parts = account_of_all_steps(table)
    is_known = not bool(run.tables["step_account"]["wait_for_peer_ns"].isna().any())
    return _Account(parts.pop("elapsed_ns"), parts, is_known)


def _values(side: Sequence[_Account], name: str, names: Sequence[str]) -> list[float]:
    """Return a part of each run; communication includes the waiting if ``names`` lacks it."""
    with_waiting = name == "exposed_comm_ns" and "wait_for_peer_ns" not in names
    return [account.parts[name] + with_waiting * account.parts["wait_for_peer_ns"] for account in side]


def _row(name: str, a: Sequence[float], b: Sequence[float]) -> dict[str, Any]:
    mean_a, mean_b = round(float(np.mean(a))), round(float(np.mean(b)))
    low, high = _interval(np.array(a), np.array(b))
    return {
        "part": name,
        "a_ns": mean_a,
        "b_ns": mean_b,
        "difference_ns": mean_b - mean_a,
        "ci_low_ns": low,
        "ci_high_ns": high,
    }


def _interval(a: Floats, b: Floats) -> tuple[int | None, int | None]:
    if min(len(a), len(b)) < 2:
        return None, None
    low, high = welch_interval(b, a, CONFIDENCE)
    return round(low), round(high)
