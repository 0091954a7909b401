"""The runs of a study of slowdown, and the file that lists them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.study.slowdown_record import Arm, SlowdownRecord, plan_runs, read_record, write_record
from hpcprof.submit.sites.model import Site

POINTS = [{"cap": "1"}, {"cap": "25"}]


def test_every_repeat_has_every_point_on_both_sides_in_turns() -> None:
    planned = plan_runs(POINTS, 3)
    assert Counter((p.point["cap"], p.arm, p.repeat) for p in planned) == Counter(
        (cap, arm, repeat) for cap in ("1", "25") for arm in Arm for repeat in range(3)
    )
    assert [p.repeat for p in planned] == sorted(p.repeat for p in planned)
    first = [next(p.arm for p in planned if p.repeat == repeat) for repeat in range(3)]
    assert first == [Arm.ALONE, Arm.COMMUNICATING, Arm.ALONE]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "study.json cannot be read: Input data was truncated"),
        ('{"study": "slowdown", "runs": [{"point": {}, "arm": "alone"}]}', "missing required field"),
        ('{"study": "other", "site": {}, "runs": []}', "Invalid enum value 'other'"),
        (
            '{"study": "slowdown", "site": {"name": "s", "scheduler": "local"}, "runs": []}',
            "it lists no runs",
        ),
    ],
)
def test_a_damaged_record_is_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(HpcprofError, match=says):
        read_record(tmp_path)


def test_a_record_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    record = SlowdownRecord("slowdown", Site(name="here", scheduler="local"), [])
    with pytest.raises(HpcprofError, match=r"cannot write .*gone/study\.json: No such file or directory\.$"):
        write_record(tmp_path / "gone", record)
