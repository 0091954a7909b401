"""The file that lists the runs of a study."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.study.resumable import read_record, write_record
from hpcprof.study.slowdown_record import SlowdownRecord
from hpcprof.submit.sites.model import Site


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "study.json cannot be read: Input data was truncated"),
        ('{"study": "slowdown", "runs": [{"point": {}, "arm": "alone"}]}', "missing required field"),
        (
            '{"study": "other", "site": {}, "runs": []}',
            "belongs to hpcprof study other, not to hpcprof study slowdown",
        ),
        (
            '{"study": "slowdown", "site": {"name": "s", "scheduler": "local"}, "runs": []}',
            "it lists no runs",
        ),
    ],
)
def test_a_damaged_record_is_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(HpcprofError, match=says):
        read_record(tmp_path, "slowdown", SlowdownRecord)


def test_a_record_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    record = SlowdownRecord("slowdown", Site(name="here", scheduler="local"), [])
    with pytest.raises(HpcprofError, match=r"cannot write .*gone/study\.json: No such file or directory\.$"):
        write_record(tmp_path / "gone", record)
