"""The time of calls of the operating system, in steps or, without any, in the whole capture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcprof.analysis.account.os_calls import os_calls
from hpcprof.profiles.timeline import OsCalls
from tests.unit.analysis.timelines import timeline


def test_without_steps_no_time_is_per_step() -> None:
    profile = timeline([])
    starts, name = np.array([0, 10, 20]), np.full(3, len(profile.strings))
    calls = OsCalls(start=starts, end=starts + 5, process=np.ones(3, int), thread=np.ones(3, int), name=name)
    strings = np.array([*profile.strings.tolist(), "read"], object)
    outcome = os_calls(replace(profile, strings=strings, os_calls=calls))
    (row,) = outcome.rows.to_dict("records")
    assert (row["call"], row["calls"], row["total_ns"]) == ("read", 3, 15)
    assert row["ns_per_step"] is None or np.isnan(row["ns_per_step"])
    assert outcome.reason.startswith("rank00000.sqlite has no steps")
