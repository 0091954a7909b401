"""The tags of a run."""

from __future__ import annotations

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.runs.tags import change_tags, check_tags, read_tags
from tests.submitted_run import MakeRun
from tests.submitted_run import make_run as make_run


def test_tags_are_added_once_sorted_and_removed(make_run: MakeRun) -> None:
    run = make_run()
    assert read_tags(run, run.path.parent) == []
    assert change_tags(run, run.path.parent, ["b", "a"]) == ["a", "b"]
    assert change_tags(run, run.path.parent, ["a", "c"]) == ["a", "b", "c"]
    assert change_tags(run, run.path.parent, ["b", "unknown"], remove=True) == ["a", "c"]
    assert read_tags(run, run.path.parent) == ["a", "c"]
    assert change_tags(run, run.path.parent, ["a", "c"], remove=True) == []
    assert not (run.path / "tags").exists()


@pytest.mark.parametrize("tag", ["", "two words", "a,b", "x" * 65, "a\n"])
def test_a_tag_is_one_word(tag: str) -> None:
    with pytest.raises(UsageError, match="a tag has 1 to 64 letters"):
        check_tags(["good", tag])


def test_a_tag_can_hold_a_value() -> None:
    check_tags(["lr=0.1", "issue/13", "größe"])
