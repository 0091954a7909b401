"""The findings that let a check fail, as users name them."""

import math

import msgspec

from hpcprof.analysis.explain.cause import Cause, cause_names, find_cause
from hpcprof.analysis.explain.explanation import CAUSES, NO_GPU, NOT_JOINED, Explanation, Finding
from hpcprof.common.errors import UsageError, unknown


class Gate(msgspec.Struct, frozen=True):
    """A cause that a check does not allow.

    ``percent`` is the least saving in percent of the step; None for every finding that is shown.
    """

    cause: str
    percent: float | None = None

    def broken_by(self, explanation: Explanation) -> list[Finding]:
        """Return the findings that the check does not allow, the most costly first."""
        if self.percent is None:
            return [finding for finding in explanation.shown() if finding.cause == self.cause]
        return [
            finding
            for finding in explanation.findings
            if finding.cause == self.cause and (finding.share_pct or -1) >= self.percent
        ]

    def unknown_in(self, explanation: Explanation) -> str:
        """Return why the cause, or any cause, could not be judged; empty if it was."""
        reasons = {entry.what: entry.reason for entry in reversed(explanation.not_judged)}
        general_reason = "" if self._seen_without_operations(explanation) else reasons.get(CAUSES, "")
        return reasons.get(self.cause, general_reason)

    def _seen_without_operations(self, explanation: Explanation) -> bool:
        """Return whether steps, or samples beside them, show the cause where no operations are replayed."""
        reasons = {entry.reason for entry in explanation.not_judged}
        if NO_GPU in reasons and self.cause in _ON_HOST:
            return True
        if NOT_JOINED in reasons and self.cause == Cause.LATE_RANK_HOST:
            return True
        in_steps = self.cause in (Cause.STEP_DRIFT, Cause.STEP_SPIKES) or find_cause(self.cause).wait
        return bool(in_steps) and explanation.step.wall_p50_ns is not None


_ON_HOST = (Cause.HOST_WORK, Cause.LATE_RANK_HOST, Cause.EXPOSED_COMMUNICATION)
"""The causes that are judged by the account of steps on the host."""


def parse_gate(text: str) -> Gate:
    """Return the gate that a user wrote as ``CAUSE`` or ``CAUSE:PERCENT``.

    Raises UsageError if there is no such cause, or the percentage is not between 0 and 100.
    """
    name, colon, written = text.partition(":")
    if name not in (causes := cause_names()):
        raise unknown("cause", name, causes, f" in --fail-on {text}" if colon else " of --fail-on")
    if not colon:
        return Gate(name)
    try:
        percent = float(written.removesuffix("%"))
    except ValueError:
        percent = math.nan
    if not 0 <= percent <= 100:
        raise UsageError(f"--fail-on {text}: {written!r} must be a percentage between 0 and 100.")
    return Gate(name, percent)
