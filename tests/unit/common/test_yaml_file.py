"""YAML files are small once their aliases are replaced, and whatever is wrong with one is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.common.yaml_file import read_mapping
from hpcprof.profiles.kernel_classification import load

_MAPPINGS = "".join(f"  - &a{i} {{<<: [{', '.join(9 * [f'*a{i - 1}'])}]}}\n" for i in range(1, 12))
_LISTS = "".join(f"  - &a{i} [{', '.join(9 * [f'*a{i - 1}'])}]\n" for i in range(1, 12))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("program:\n  - &a0 {x: y}\n" + _MAPPINGS, "more than 100000 values"),
        ("program:\n  - &a0 [x, y]\n" + _LISTS, "more than 100000 values"),
        ("program: &a [*a]\n", "the value 'a' contains itself"),
        ("program: &a {x: {<<: *a}}\n", "the value 'a' contains itself"),
        ("program: " + 50_000 * "[" + 50_000 * "]", "more than 100 levels"),
        ("nodes: " + 5_000 * "9", "does not fit its type"),
        ("nodes: !!int 1" + 9_000 * ":1", "more than 18 digits"),
        ("nodes: !!timestamp x", "does not fit its type"),
        ("nodes: !!int x", "does not fit its type"),
        ("nodes: !!bool x", "does not fit its type"),
        ("nodes: 1\n#" + 1_000_000 * "x", "larger than 1 MB"),
    ],
)
def test_a_file_that_becomes_far_larger_or_deeper_is_refused_in_a_sentence(
    text: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(UsageError, match=why):
        read_mapping(tmp_path / "job.yaml", "job file", text_keys=["program"])
    with pytest.raises(UsageError, match=why):
        load(tmp_path / "job.yaml")


def test_aliases_and_merges_stand_for_their_values(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n")
    assert read_mapping(tmp_path / "job.yaml", "job file") == {
        "a": {"x": 1},
        "b": {"x": 1, "y": 2},
        "c": [{"x": 1}, {"x": 1}],
    }
