"""The first screen of a run's page: what a step takes, what that time goes to, and what to do about it."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat

import msgspec

from hpcprof.analysis.explain.cause import Cause, cause_of
from hpcprof.analysis.explain.explanation import Culprit, Explanation, Finding
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.units import capitalized, format_ns
from hpcprof.report.account import Account, account_title, accounts_of_steps, share
from hpcprof.report.contents import Contents
from hpcprof.report.explanation import (
    alternative_texts,
    conclusion,
    evidence,
    hidden_cost,
    joint_causes_text,
    place_text,
    saved,
    stall_verdict,
    unjudged_rows,
    written_source,
)
from hpcprof.report.facts import facts
from hpcprof.report.mpi import EfficiencyTree, efficiencies
from hpcprof.report.terminal import MAX_FAILURES
from hpcprof.submit.runs.failures import RankFailure

IDLE_PATTERNS = 7
"""The number of patterns that page.css has for idle time."""


class Slice(msgspec.Struct, frozen=True):
    """A part of the account's bar: classes, name, time and share as text, width in percent, and ranges."""

    colour: str
    name: str
    time: str
    share: str
    width: float
    where: str


class Card(msgspec.Struct, frozen=True):
    """A finding on the page."""

    title: str
    """The fault and its place."""
    cause: str
    """The name of its cause, as in JSON and for ``--fail-on``."""
    saving: str
    together: str
    """A sentence on the other causes to remove for this saving; empty if there are none."""
    alternatives: list[str]
    """Other changes that would save about as much."""
    remedy: str
    confidence: str
    """Sentences, and the confidence in the finding."""
    evidence: list[tuple[str, str, str]]
    """The name and the title of an analysis, and the figures in it."""
    sources: list[str]
    """The functions that take most of the host work."""
    rank: int | None
    step: int | None
    """The rank and the step in which it costs the most; None if unknown."""
    culprit: Culprit | None
    """The slices to select there."""


class Bar(msgspec.Struct, frozen=True):
    """The account of the steps, or of a kind of them; ``label`` is its alternative text."""

    title: str
    slices: list[Slice]
    label: str
    notes: Sequence[str]


@dataclass(frozen=True)
class FirstScreen:
    """Everything on the first screen, as text.

    ``banner`` has the verdict on a run that stood still, which ``conclusion`` does not repeat. ``accounts``
    are those of all steps and of each kind of them.
    """

    banner: list[str] = field(default_factory=list)
    accounts: list[Bar] = field(default_factory=list)
    conclusion: list[str] = field(default_factory=list)
    cards: list[Card] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    not_judged: list[tuple[str, str]] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    failures: list[RankFailure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    efficiencies: EfficiencyTree | None = None

    def tables(self) -> list[str]:
        """Return the analyses that the first screen refers to."""
        analyses = [name for card in self.cards for name, _, _ in card.evidence if name in ANALYSES]
        return [*analyses, *(["step_kinds", "step_account"] if self.accounts else [])]


def first_screen(contents: Contents, places: Collection[tuple[int, int]] = ()) -> FirstScreen:
    """Return the first screen of a run's page; ``places`` are the ranks and steps that its timeline holds."""
    explanation = contents.explanation
    return replace(
        explanation_screen(explanation, contents, places) if explanation else FirstScreen(),
        accounts=[_bar(account) for account in accounts_of_steps(contents)],
        losses=list(contents.losses),
        failures=contents.failures[:MAX_FAILURES],
        warnings=contents.warnings,
        facts=facts(contents, findings=explanation is None)[1:],
        efficiencies=efficiencies(contents),
    )


def explanation_screen(
    explanation: Explanation, contents: Contents | None = None, places: Collection[tuple[int, int]] = ()
) -> FirstScreen:
    """Return the first screen of an explanation; without ``contents``, it has no place in a timeline."""
    banner = stall_verdict(explanation)
    return FirstScreen(
        banner=banner,
        conclusion=conclusion(explanation)[len(banner) :],
        cards=[_card(finding, explanation, contents, places) for finding in explanation.shown()],
        hidden=[hidden_cost(finding, explanation) for finding in explanation.hidden],
        not_judged=unjudged_rows(explanation),
    )


def patterned(colours: Iterable[str]) -> Iterator[str]:
    """Yield the classes in page.css of parts; each cause of idle time has a pattern of its own."""
    patterns = chain(range(IDLE_PATTERNS), repeat(IDLE_PATTERNS - 1))
    for colour in colours:
        yield f"idle idle-{next(patterns)}" if colour == "idle" else colour


def _bar(account: Account) -> Bar:
    classes = patterned(part.colour for part in account.parts)
    slices = [
        Slice(
            colour,
            part.name,
            format_ns(part.ns),
            share(part, account),
            round(100 * part.ns / account.elapsed_ns, 3),
            part.where,
        )
        for part, colour in zip(account.parts, classes, strict=True)
    ]
    label = ", ".join(f"{part.name} {part.share}" for part in slices)
    return Bar(account_title(account), slices, label, account.notes)


def _card(
    finding: Finding,
    explanation: Explanation,
    contents: Contents | None,
    places: Collection[tuple[int, int]],
) -> Card:
    # Losses have a section of their own.
    lost = finding.cause == Cause.CAPTURE_INCOMPLETE
    where = "" if lost else place_text(finding, explanation).lstrip(", ")
    culprit = finding.culprit
    has_culprit = culprit is not None and (not places or (culprit.rank, culprit.step) in places)
    rank, step = (
        (culprit.rank, culprit.step) if culprit and has_culprit else costliest(finding, contents, places)
    )
    meaning = cause_of(finding.cause).meaning
    return Card(
        title=f"{capitalized(meaning)}{f': {where}' if where else ''}",
        cause=finding.cause,
        saving=("" if finding.saving_ns is None else "Saves ") + saved(finding, explanation),
        together=joint_causes_text(finding, explanation),
        alternatives=alternative_texts(finding, explanation),
        remedy=finding.remedy,
        confidence=finding.confidence,
        evidence=[
            (name, ANALYSES[name].title if name in ANALYSES else name, "; ".join(figures))
            for name, figures in evidence(finding)
        ],
        sources=[written_source(source) for source in finding.source or ()],
        rank=rank,
        step=step,
        culprit=finding.culprit if has_culprit else None,
    )


def costliest(
    finding: Finding, contents: Contents | None, places: Collection[tuple[int, int]] = ()
) -> tuple[int | None, int | None]:
    """Return the rank and the step in which a finding costs the most, among ``places``; None without any.

    Steps that the finding names come before others.
    """
    if contents is None or "step_account" not in contents.analyses:
        return None, None
    table = contents.table("step_account").columns
    column = table.get(cause_of(finding.cause).column, ())
    where = list(zip(table.get("rank", ()), table.get("step", ()), strict=True))
    rows = [
        row
        for row, (rank, step) in enumerate(where)
        if (not finding.ranks or rank in finding.ranks) and (not places or (rank, step) in places)
    ]
    rows = [row for row in rows if where[row][1] in finding.steps] or rows
    # The first step of a capture has empty queues, and a profiler that starts.
    first = min((step for _, step in where), default=0)
    rows = [row for row in rows if where[row][1] != first] or rows
    return where[max(rows, key=lambda row: column[row] or 0)] if rows else (None, None)
