"""The form of answers: their size, and the marks of text from elsewhere."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from hpcprof.mcp.answers import MAX_ANSWER_BYTES, answer, mark_name


@given(
    st.lists(st.text(max_size=500), min_size=1, max_size=80),
    st.lists(st.text(max_size=300).map(mark_name), max_size=10),
    st.text(max_size=200),
)
def test_an_answer_is_small_and_its_data_cannot_leave_the_marks(
    lines: list[str], conclusion: list[str], rest: str
) -> None:
    text = answer(["First.", *conclusion], lines, "a log", [mark_name(rest)])
    assert len(text.encode()) <= MAX_ANSWER_BYTES
    assert text.startswith("First.")
    (word,) = re.findall(r"^--- data (\w{8}): from a log", text, re.MULTILINE)
    assert len(re.findall(rf"^--- end of data {word} ---$", text, re.MULTILINE)) == 1
    assert text.endswith(mark_name(rest))


def test_what_is_cut_is_said_and_the_end_stays() -> None:
    text = answer(["Head."], [f"line {number} {'x' * 90}" for number in range(1000)], "a log", ["Tail."])
    cut = re.search(r"\(cut here: (\d+) more lines\)", text)
    assert cut is not None and int(cut[1]) + text.count("\nline ") == 1000
    assert text.endswith("\nTail.") and len(text.encode()) > MAX_ANSWER_BYTES - 200


def test_a_name_has_no_marks_and_no_lines_of_its_own() -> None:
    assert mark_name("a»b«c\nd\x1b[2J") == "«a>b<c\\nd\\x1b[2J»"
