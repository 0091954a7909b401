"""Occasions on which a job records more than its steps: slow steps, and the contents of GPU memory."""

import re

from hpcprof.common.errors import UsageError

_DEFAULT_PCT = 20
_MAX_PCT = 10_000
_SLOW_OCCASION = re.compile(r"slow(?::(?P<percent>[0-9]{1,5}))?")


def parse_capture_when(text: str) -> int:
    """Return by how many percent steps must be slower than before to be recorded; 0 for ``off``."""
    if text == "off":
        return 0
    match = _SLOW_OCCASION.fullmatch(text)
    percent = int(match["percent"] or _DEFAULT_PCT) if match else 0
    if not 0 < percent <= _MAX_PCT:
        raise UsageError(f"--capture-when {text}: write slow, slow:PERCENT with 1 to {_MAX_PCT}, or off.")
    return percent


OUT_OF_MEMORY = "oom"
"""The value of a job that keeps it only when a rank runs out of memory."""

MOST_STEPS = 8
_SPAN = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_STEPS = re.compile(rf"(?P<steps>[0-9]{{1,9}}(?:,[0-9]{{1,9}})*)(?:@(?P<ranks>{_SPAN}(?:,{_SPAN})*))?")


def parse_memory_history(text: str) -> str:
    """Return the steps and the ranks of snapshots as they are written; empty for ``off``."""
    if text in ("off", OUT_OF_MEMORY):
        return "" if text == "off" else text
    match = _STEPS.fullmatch(text)
    if match is None:
        valid = "steps as in 5,10, steps of some ranks as in 5,10@0,4-7, oom, or off"
        raise UsageError(f"--memory-history {text}: write {valid}.")
    steps = match["steps"].split(",")
    if len(steps) > MOST_STEPS:
        raise UsageError(f"--memory-history {text}: {len(steps)} steps; at most {MOST_STEPS} are kept.")
    for span in (match["ranks"] or "").split(","):
        low, _, high = span.partition("-")
        if high and int(high) < int(low):
            sentence = f"--memory-history {text}: the span {span} is empty; write the lower number first."
            raise UsageError(sentence)
    return text
