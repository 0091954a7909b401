"""The rendered scripts are the golden ones; `tests.golden.regenerate` says how to renew them."""

from __future__ import annotations

import difflib

import pytest

from tests.golden.regenerate import FOLDER, SITES, golden_text


@pytest.mark.parametrize("name", SITES)
def test_the_scripts_of_a_site_are_those_of_its_golden_file(name: str) -> None:
    golden = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    changes = difflib.unified_diff(
        golden.splitlines(), golden_text(name).splitlines(), "golden", "rendered now", lineterm=""
    )
    difference = "\n".join(changes)
    if difference:
        pytest.fail(f"read this, then: python -m tests.golden.regenerate\n{difference}", pytrace=False)


def test_there_is_a_golden_file_for_each_site_and_no_other() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == SITES
