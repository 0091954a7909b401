"""The steps of a run that take long once, and the part of their account that is longer."""

import numpy as np
import pandas as pd

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explanation import OnceStep
from hpcprof.analysis.steps.run_step import PARTS, step_series, whole_steps
from hpcprof.runs.step_time import happened_once

_CAUSES = {
    "compute_ns": (None, "compute"),
    "exposed_comm_ns": (Cause.EXPOSED_COMMUNICATION, "exposed communication"),
    "wait_for_peer_ns": (Cause.LATE_RANK_HOST, "waiting for peers"),
    "exposed_mem_ns": (Cause.BLOCKING_COPY, "copies"),
    "idle_ns": (Cause.HOST_WORK, "idle"),
}
"""The cause that a longer part points to, and the name of the part."""


def once_steps(account: pd.DataFrame) -> tuple[OnceStep, ...]:
    """Return the steps that take long once, in their order; ``account`` has the rows of ``step_account``."""
    if not len(account):
        return ()
    series = step_series(account)
    places = happened_once(series.wall.tolist())
    if not places:
        return ()
    rows = whole_steps(account).fillna({"wait_for_peer_ns": 0})
    parts = rows.astype(dict.fromkeys(PARTS, float)).groupby("step")[[*PARTS]].mean()
    usual, median = parts.median(), float(np.median(series.wall))
    steps = []
    for place in places:
        number = int(series.steps[place])
        longest = str((parts.loc[number] - usual).idxmax())
        steps.append(OnceStep(number, round(float(series.wall[place]) - median), *_CAUSES[longest]))
    return tuple(steps)
