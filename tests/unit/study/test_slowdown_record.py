"""The runs of a study of slowdown, in the order in which they are made."""

from __future__ import annotations

from collections import Counter

from hpcprof.study.slowdown_record import Arm, plan_runs

POINTS = [{"cap": "1"}, {"cap": "25"}]


def test_every_repeat_has_every_point_on_both_sides_in_turns() -> None:
    planned = plan_runs(POINTS, 3)
    assert Counter((p.point["cap"], p.arm, p.repeat) for p in planned) == Counter(
        (cap, arm, repeat) for cap in ("1", "25") for arm in Arm for repeat in range(3)
    )
    assert [p.repeat for p in planned] == sorted(p.repeat for p in planned)
    first = [next(p.arm for p in planned if p.repeat == repeat) for repeat in range(3)]
    assert first == [Arm.ALONE, Arm.COMMUNICATING, Arm.ALONE]
