"""An explanation of a run: findings, hidden costs, and causes that could not be judged.

Nothing here imports numpy or pandas, so that a kept explanation is shown quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from hpcprof.analysis.account.places import in_words
from hpcprof.analysis.explain.cause import Cause as Cause
from hpcprof.analysis.stalls.evidence import Stall
from hpcprof.common.notebook import InNotebooks

if TYPE_CHECKING:
    from hpcprof.analysis.framework.outcome import Outcome

MIN_PCT = 1.0
"""Minimum lower bound of a saving that is shown, in percent of the step."""

MIN_ESTIMATE_PCT = 3.0
"""Minimum estimate of a saving that is shown, in percent of the step."""

NO_GPU = (
    "without work on a GPU, only host work, late ranks and exposed communication are judged, by the account "
    "of the steps"
)
"""The reason in `NotJudged` why a run on CPUs has no graph."""

NOT_JOINED = (
    "no recorded message or collective joins the ranks, so only late ranks are judged, by their time outside "
    "MPI"
)
"""The reason in `NotJudged` why a run with MPI has no graph."""

NO_LAUNCHES = "no work on the GPU has a recorded launch, so only the GPU's own time is explained"
"""The beginning of the reason in `NotJudged` why a run has no graph, before the remedy."""

WAITING = "waiting for peers"
"""The subject in `NotJudged` of waiting that no finding explains."""

IDLE = "idle time of the GPU"
"""The subject in `NotJudged` of idle time that no finding explains."""

PAGES = "unified memory"
"""The subject in `NotJudged` of moves of its pages."""

PRECISION = "double precision"
"""The subject in `NotJudged` of kernels that compute in it."""

REST = "rest of the capture"
"""The subject in `NotJudged` of the time that no step covers."""

CAUSES = "causes"
"""The subject in `NotJudged` of a run without a profile."""

Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Evidence:
    """A figure that can be looked up: its analysis, rank (None: all), and key there."""

    analysis: str
    rank: int | None
    key: str
    value: int | float | str


@dataclass(frozen=True)
class Source:
    """A function of the user's code, and its share of the host work of a finding.

    In the stacks of PyTorch's profiler, ``line`` is where the function begins; in samples, the line in it
    that takes most of the time. Compiled code has its library or program as ``file``, and no line.
    """

    file: str | None
    line: int | None
    function: str
    share_pct: float


@dataclass(frozen=True)
class Culprit:
    """A slice of the timeline: a range, a call or an operation of a rank, by its name.

    It begins ``offset_ns`` after the wall time of the step, negative before it, on the rank's own clock.
    """

    rank: int
    step: int
    name: str
    offset_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Earlier:
    """The finding that has to go before a hidden cost limits the step."""

    cause: str
    where: str


@dataclass(frozen=True)
class Finding(InNotebooks):
    """A cause, what it costs and what to do."""

    cause: str
    """Its name, one of `hpcprof.analysis.explain.cause.Cause` or of a plug-in."""
    ranks: tuple[int, ...]
    """The ranks that have the cause."""
    where: str
    """The range, the collective or the kernel; ``layers.N`` stands for ranges that differ in numbers only."""
    saving_ns: int | None
    """The gain of a step without it; None if that cannot be estimated."""
    saving_low_ns: int | None
    saving_high_ns: int | None
    """The interval of the saving."""
    share_pct: float | None
    """The saving in percent of the elapsed time of a step."""
    evidence: tuple[Evidence, ...]
    remedy: str
    """One or two sentences."""
    confidence: Confidence
    cost_ns: int | None = None
    """For a hidden cost, the host time per step that hides behind the GPU."""
    limits_after: Earlier | None = None
    """For a hidden cost, the finding after whose removal, and that of all before it, the cost limits the
    step."""
    evidence_text: tuple[str, ...] = ()
    """The evidence in words, a sentence for each figure."""
    steps: tuple[int, ...] = ()
    """The steps that have the cause; empty where most have it."""
    alternatives: tuple[Finding, ...] = ()
    """The candidates that would shorten the step too, and would save little once this cause is gone."""
    together: tuple[Finding, ...] = ()
    """The causes that hide the saving of this one until they are removed too. ``saving_ns`` is the gain of a
    step without all of them, less the savings of those that are findings of their own.
    """
    source: tuple[Source, ...] | None = None
    """The functions that take most of the host work; None without stacks, or if it is no host work."""
    kind: int | None = None
    """The kind of steps that has the cause (`StepKind`), where only steps of one kind have it."""
    culprit: Culprit | None = None
    """The longest slice of the timeline that shows it; None where no single slice does."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", Cause(self.cause))

    @property
    def place(self) -> tuple[str, str, tuple[int, ...]]:
        """The cause, the place and the ranks, by which findings are told apart."""
        return self.cause, self.where, self.ranks

    def changed(self, change: Callable[[Finding], Finding]) -> Finding:
        """Return the finding changed, and so those that are alternatives to it or go together with it."""
        return replace(
            change(self),
            alternatives=tuple(alternative.changed(change) for alternative in self.alternatives),
            together=tuple(finding.changed(change) for finding in self.together),
        )


def unpriced_finding(
    cause: str,
    ranks: tuple[int, ...],
    where: str,
    evidence: Sequence[tuple[Evidence, str]],
    remedy: str,
    confidence: Confidence,
) -> Finding:
    """Return a finding whose saving cannot be estimated; each item of evidence has its sentence, if any."""
    items, texts = zip(*evidence, strict=True) if evidence else ((), ())
    return Finding(
        cause, ranks, where, None, None, None, None, items, remedy, confidence, evidence_text=texts
    )


@dataclass(frozen=True)
class NotJudged:
    """A cause, or a subject in words, that could not be judged, with one sentence why."""

    what: str
    reason: str


@dataclass(frozen=True)
class StepKind:
    """A kind of steps: its number, its share of the steps, their median wall time and how many they are."""

    kind: int
    share_pct: float
    wall_p50_ns: int
    steps: int


HOOK, CAPTURE = "hook", "capture"
"""The sources of steps that the start-up hook noted, and of a step that is the whole capture."""

GIVEN, MEASURED, REFERENCE, TYPICAL = "given", "measured", "reference", "typical"
"""Sources of a step alone: the user, steps of the run that were not recorded, the program once more without a
profiler (``--reference``), and other programs."""


@dataclass(frozen=True)
class StepAlone:
    """The elapsed time of a step without the profiler, in ns, and its interval.

    ``source`` is `GIVEN`, `MEASURED`, `REFERENCE`, or `TYPICAL` where it is unknown.
    """

    value: int
    low: int
    high: int
    source: str


@dataclass(frozen=True)
class CallCost:
    """The time that the profiler adds to a call of some name, in ns, with its interval.

    It follows from the step alone; ``source`` is the source of that step.
    """

    call: str
    calls_per_step: float
    cost_ns: int
    low_ns: int
    high_ns: int
    source: str


@dataclass(frozen=True)
class MainKernel:
    """The kernels of one name, without their template arguments, that take most of the time of a step.

    ``share_pct`` is their share of the elapsed time, and ``where`` the innermost place with more than half of
    it; empty if none has. Nsight Compute can measure them if ``measurable``. ``blocks`` is the maximum number
    of blocks of a launch, if that is known and less than the ``sm_count`` multiprocessors of the smallest
    GPU.
    """

    name: str
    share_pct: float
    where: str
    measurable: bool = True
    blocks: int | None = None
    sm_count: int | None = None


@dataclass(frozen=True)
class OnceStep:
    """A step that takes long once (`hpcprof.runs.step_time`).

    ``extra_ns`` is the time by which it exceeds the median, ``cause`` the cause of its longest excess, None
    where that is more work, and ``where`` the part of the account that is longer.
    """

    step: int
    extra_ns: int
    cause: str | None
    where: str


@dataclass(frozen=True)
class StepSummary:
    """The step that an explanation is about."""

    wall_p50_ns: int | None
    """The median wall time; None without steps."""
    steps: int
    """The number of steps of the capture."""
    ranks: int
    """The number of profiled ranks."""
    explained_steps: int
    """The number of steps that were replayed."""
    replay_error_pct: float | None
    """The difference of the unchanged replay from the measured step, in percent; None without a replay."""
    elapsed_ns: int | None = None
    """The time from the first front to the last end of the steps, divided by their number; None if unknown.
    Where the step alone is known, that of the replay without the profiler's share.
    """
    kinds: tuple[StepKind, ...] = ()
    """The most frequent first; empty if the steps are of one kind."""
    alone_ns: StepAlone | None = None
    """The step without the profiler; None where nothing is known of it."""
    recorded_elapsed_ns: int | None = None
    """The elapsed time of the recorded steps."""
    profiler_cost: tuple[CallCost, ...] = ()
    """The time that the profiler adds to the calls of a step; empty if unknown."""
    once: tuple[OnceStep, ...] = ()
    """The steps that take long once, such as for the set-up of a communicator. All other times and savings
    leave these steps out.
    """
    compute_pct: float | None = None
    """The share of the recorded elapsed time in which GPUs compute, or ranks outside MPI."""
    source: str | None = None
    """The origin of the steps: ``range``, ``framework``, ``hook``, ``mpi``, ``kernels`` or ``graph``;
    ``capture`` where nothing does, and the whole capture is one step.
    """
    kernel: MainKernel | None = None
    """None if no name takes 30 % of the step."""
    counted_steps: int | None = None
    """The number of steps of which the recorded elapsed time is the mean; None if unknown."""

    @property
    def is_alone(self) -> bool:
        """True if ``elapsed_ns`` and the savings leave out the profiler's share."""
        return self.alone_ns is not None and self.alone_ns.source != TYPICAL

    @property
    def priced_ns(self) -> int | None:
        """The time of which savings are a share: the elapsed time or, where it is unknown, the median."""
        return self.elapsed_ns or self.wall_p50_ns


@dataclass(frozen=True)
class Slower:
    """The steps of a run became slower while it ran."""

    since: int
    """The number of the first slow step."""
    percent: float
    """The growth of the median step."""
    before_ns: int
    after_ns: int
    """The median steps before and after."""


@dataclass(frozen=True)
class Explanation(InNotebooks):
    """The parts of a step's time, and the changes that would shorten it."""

    findings: tuple[Finding, ...]
    """The most costly first; those whose saving cannot be estimated last."""
    hidden: tuple[Finding, ...]
    """Costs on the host that hide behind the GPU: removing them would not shorten the step."""
    not_judged: tuple[NotJudged, ...]
    step: StepSummary
    stall: Stall | None = None
    """The reason why the run hung; None if it never stood still."""
    failure: dict[str, Any] | None = None
    """The rank that failed first, with its exception, place, cause and last lines; None if none failed."""
    slower: Slower | None = None
    """Since when steps took longer, where the run was to be recorded then."""

    def __repr__(self) -> str:
        causes = ", ".join(finding.cause for finding in self.shown()) or "no finding"
        return f"<hpcprof explanation: {causes}>"

    def shown(self) -> tuple[Finding, ...]:
        """Return the findings that are shown by default, in their order.

        Their saving is at least 3 % of the step, and at least 1 % at its lower bound. Those without an
        estimate come last.
        """
        priced = (finding for finding in self.findings if self._exceeds_thresholds(finding))
        return (*priced, *(finding for finding in self.findings if finding.saving_ns is None))

    def plot(self, ax: Any = None) -> Any:
        """Draw the savings of `shown` in ms a step with their intervals, and return matplotlib's axes.

        Without ``ax``, the current axes are drawn on; ImportError if matplotlib is not installed.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.gca()
        priced = [item for item in reversed(self.shown()) if item.saving_ns is not None]
        saving, low, high = (
            [(getattr(item, name) or 0) / 1e6 for item in priced]
            for name in ("saving_ns", "saving_low_ns", "saving_high_ns")
        )
        errors = [
            [max(value - least, 0) for value, least in zip(saving, low, strict=True)],
            [max(most - value, 0) for value, most in zip(saving, high, strict=True)],
        ]
        labels = [f"{item.cause}\n{in_words(item.where)}" for item in priced]
        ax.barh(labels, saving, xerr=errors if priced else None)
        ax.set_xlabel("saving per step (ms)")
        return ax

    def in_short(self) -> Explanation:
        """Return the explanation with only the findings of `shown`."""
        return replace(self, findings=self.shown())

    def _exceeds_thresholds(self, finding: Finding) -> bool:
        step, saving = self.step.priced_ns, finding.saving_ns
        if saving is None or not step:
            return False
        low = 100 * (finding.saving_low_ns or 0) / step
        return low >= MIN_PCT and 100 * saving / step >= MIN_ESTIMATE_PCT

    def changed(self, change: Callable[[Finding], Finding]) -> Explanation:
        """Return the explanation with all of its findings changed."""
        findings, hidden = (
            tuple(finding.changed(change) for finding in side) for side in (self.findings, self.hidden)
        )
        return replace(self, findings=findings, hidden=hidden)

    def as_json(self) -> dict[str, Any]:
        """Return the explanation in the types of JSON."""
        json: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(asdict(self), enc_hook=str))
        for finding in json["findings"]:
            for entry in (finding, *finding["alternatives"], *finding["together"]):
                del entry["cost_ns"], entry["limits_after"]
        return json

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Explanation:
        """Return the explanation that `as_json` returned.

        Raises
        ------
        msgspec.ValidationError
            If it is something else.
        """
        return msgspec.convert(values, cls)


def comes_with_explanation(tables: Mapping[str, Any]) -> Outcome:
    """Return the reason for which a collect leaves a table empty: it comes with the explanation."""
    from hpcprof.analysis.framework.outcome import no_rows

    return no_rows("hpcprof explain computes it")
