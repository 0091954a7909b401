"""A check of a run in pytest: ``RUN=ID pytest test_costs.py``."""

import os

import hpcprof


def test_no_rank_holds_up_the_others() -> None:
    findings = hpcprof.open(os.environ.get("RUN", "last")).explain().shown()
    late = [one for one in findings if one.cause.value.startswith("late_rank")]
    assert all((one.share_pct or 0.0) < 5.0 for one in late), late
