"""Explanations and predictions as text: the conclusion first, then each finding with its evidence."""

import textwrap
from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hpcprof.analysis.account.places import in_words
from hpcprof.analysis.explain.cause import Cause, Trait, cause_names, cause_of, has_trait
from hpcprof.analysis.explain.changes import Prediction
from hpcprof.analysis.explain.evidence import plain_figure
from hpcprof.analysis.explain.explanation import (
    CAPTURE,
    CAUSES,
    HOOK,
    IDLE,
    MIN_ESTIMATE_PCT,
    NO_GPU,
    NO_LAUNCHES,
    NOT_JOINED,
    PAGES,
    REST,
    TYPICAL,
    WAITING,
    Explanation,
    Finding,
    Source,
    StepSummary,
)
from hpcprof.analysis.stalls.evidence import describe
from hpcprof.common.units import capitalized, counted, format_ns, listed, named_ranks, shortened, visible
from hpcprof.report.account import time_of_steps

_LABEL_WIDTH = 12
_INDENT_WIDTH = 3
_MIN_LINE_WIDTH = 20
_MAX_NAMED_RANKS = 8
_MAX_NAMED_STEPS = 5
_MAX_TIME_RATIO = 1.02
"""Kinds of steps whose times differ by less differ in where their time goes."""

_MIN_PROFILER_SHARE = 0.02
"""Minimum share of a step that a typical profiler may have, for a word about how much it is."""

_MOSTLY_COMPUTE_PCT = 80.0
"""Minimum share of compute in a step, in percent, beside which nothing else can be gained."""

_OUTSIDE_PLACES = ("between MPI_", "before MPI_", "after MPI_")
"""Beginnings of the names of places outside every range, by the calls of MPI around them."""

_JUDGED_WORK = "the judged work"
_AS_RECORDED = (
    "These times are as recorded, with the profiler's share; explain prices causes without it "
    "(explain --as-recorded: with it)."
)

HIDDEN = "Hidden behind the GPU: removing these costs would not shorten the step"
"""The heading of the hidden costs."""


def unjudged_rows(explanation: Explanation) -> list[tuple[str, str]]:
    """Return the subjects that could not be judged, each with the reason; without those of the conclusion."""
    in_conclusion = set() if explanation.shown() else {WAITING, IDLE, PAGES, CAUSES}
    reasons = (item.reason for item in explanation.not_judged if item.what == CAUSES)
    if explanation.step.wall_p50_ns is None or any(reason.startswith(NO_LAUNCHES) for reason in reasons):
        in_conclusion.add(CAUSES)
    causes = cause_names()
    return [
        (cause_of(reason.what).title if reason.what in causes else reason.what, reason.reason)
        for reason in explanation.not_judged
        if reason.what not in in_conclusion
    ]


def explanation_text(explanation: Explanation, width: int, in_full: Callable[[str], str]) -> RenderableType:
    """Return an explanation for a terminal of ``width`` characters; commands are not broken.

    ``in_full`` returns the command that shows an analysis.
    """
    failed = (
        _wrapped_lines(capitalized(f"{explanation.failure['summary']}."), width)
        if explanation.failure
        else ()
    )
    return Group(*failed, *_explanation(explanation, width, in_full))


def _explanation(explanation: Explanation, width: int, in_full: Callable[[str], str]) -> Iterator[Text]:
    for sentence in conclusion(explanation):
        yield from _wrapped_lines(sentence, width)
    for number, finding in enumerate(explanation.shown(), 1):
        cause = cause_of(finding.cause)
        title = f"{number}. {capitalized(cause.title)}: {cause.meaning}"
        yield from _heading(title, width, _INDENT_WIDTH)
        for label, text in described(finding, explanation):
            yield from _labelled_lines(label, text, width)
        for analysis, figures in evidence(finding):
            yield from _labelled_lines("evidence", "; ".join(figures), width)
            yield _unbroken_line(f"{'':{_INDENT_WIDTH + _LABEL_WIDTH}}{in_full(analysis)}")
    hidden = [hidden_cost(finding, explanation) for finding in explanation.hidden]
    not_judged = [f"{visible(subject)}: {visible(reason)}" for subject, reason in unjudged_rows(explanation)]
    for title, lines in ((HIDDEN, hidden), ("Not judged", not_judged)):
        if lines:
            yield from _heading(title, width)
        for line in lines:
            yield from _wrapped_lines(line, width, first=_INDENT_WIDTH, indent=_INDENT_WIDTH)


def conclusion(explanation: Explanation) -> list[str]:
    """Return sentences on a stall, the time of a step, and its time without the findings.

    The error of the replay comes last.
    """
    return [*stall_verdict(explanation), *_trend_sentences(explanation), *_step_sentences(explanation)]


def opening_sentences(explanation: Explanation) -> list[str]:
    """Return the sentences that no account of profiles shows: on a stall, and on steps that were noted."""
    step = explanation.step
    noted = step.source == HOOK and step.priced_ns is not None
    return [*stall_verdict(explanation), *(_timing(step, step.priced_ns) if noted and step.priced_ns else ())]


def stall_verdict(explanation: Explanation) -> list[str]:
    """Return a sentence on the stall of the run, if it had one."""
    stall = explanation.stall
    if stall is None:
        return []
    since = f" from {stall.since} on" if stall.since else ""
    step = "" if stall.last_step is None else f" after step {stall.last_step}"
    return [f"The run stood still{since}{step}. {describe(stall)}"]


def _trend_sentences(explanation: Explanation) -> list[str]:
    """Return the step from which steps take longer, with the first finding of those recorded after it."""
    trend = explanation.slower
    if trend is None:
        return []
    first = next(iter(explanation.shown()), None)
    because = f", because of {named(first, explanation)} ({saved(first)})" if first is not None else ""
    return [
        f"Since step {trend.since:,}, steps take {trend.percent:.0f} % longer ({format_ns(trend.after_ns)} "
        f"instead of {format_ns(trend.before_ns)}){because}."
    ]


def _step_sentences(explanation: Explanation) -> list[str]:
    step = explanation.step
    if step.priced_ns is None or step.wall_p50_ns is None:
        reasons = [visible(item.reason) for item in explanation.not_judged if item.what == CAUSES]
        unpriced = "Savings are unknown" if step.steps else "No step was found, so savings are unknown"
        reason = f"{': '.join([unpriced, *reasons])}."
        sentences = [" ".join([reason, *_kernel_text(explanation)])]
    else:
        sentences = [*_timing(step, step.priced_ns)]
        if step.once:
            long = [f"step {row.step}: {format_ns(row.extra_ns)} of {row.where}" for row in step.once]
            sentences.append(f"Single long steps are not part of that: {listed(long, 3)}.")
        sentences += [*_kinds(step), *_gain_sentences(explanation, step.priced_ns)]
    if step.replay_error_pct is not None:
        sentences.append(_replay_text(step.replay_error_pct, step.explained_steps, step.steps))
    return sentences


def _timing(step: StepSummary, priced_ns: int) -> Iterator[str]:
    """Yield sentences on the time of a step, alone and recorded, and on the profiler's share of it."""
    alone, recorded, steps = step.alone_ns, step.recorded_elapsed_ns, _measured_steps_text(step)
    if alone is None or recorded is None:
        yield _measured_step(step, priced_ns, steps)
    elif alone.source == TYPICAL and recorded - alone.low < _MIN_PROFILER_SHARE * recorded:
        yield _measured_step(step, recorded, steps)
        if format_ns(recorded) != format_ns(priced_ns):
            yield _without_profiler(recorded, priced_ns)
    elif not step.is_alone:
        share = f"{format_ns(recorded - alone.high)} to {format_ns(recorded - alone.low)}"
        yield (
            f"A step takes {format_ns(recorded)} while recorded ({steps}); the profiler's share is unknown, "
            f"typically {share}."
        )
        yield _without_profiler(recorded, priced_ns, "; open --step-time TIME takes a measured step instead")
    else:
        more = round(100 * (priced_ns / alone.value - 1))
        than = f"{abs(more)} % {'longer' if more > 0 else 'shorter'} than" if more else "as long as"
        # No profiler makes a step shorter.
        differs = alone.low > (1 + _MIN_PROFILER_SHARE) * recorded
        why = ", less than alone: on a faster host, or with less work" if differs else ""
        yield (
            f"A step takes {format_ns(alone.value)} alone, {alone.source}; {format_ns(recorded)} while "
            f"recorded ({steps}){why}."
        )
        yield (
            f"Percentages are of a step of {format_ns(priced_ns)}: a replay without the profiler, {than} the "
            "step alone (explain --as-recorded keeps the profiler's time)."
        )


def _without_profiler(recorded_ns: int, priced_ns: int, advice: str = "") -> str:
    """Return which step the percentages are of, if the profiler's share is only known from other programs."""
    return (
        f"Percentages are of a step of {format_ns(priced_ns)}: the recorded one without the "
        f"{format_ns(recorded_ns - priced_ns)} that the profiler may have added (explain --as-recorded keeps "
        f"this time{advice})."
    )


def _measured_step(step: StepSummary, time_ns: int, steps: str) -> str:
    """Return the time of a step or, where none was found, of all that is judged."""
    if step.source == CAPTURE:
        return f"{capitalized(steps)}. It takes {format_ns(time_ns)}."
    return f"A step takes {format_ns(time_ns)} ({steps})."


def _measured_steps_text(step: StepSummary) -> str:
    """Return the steps that the time of a step is of, and their median beside their elapsed time."""
    if step.source == CAPTURE:
        return "no step was found, so all judged work is one: collect --step-range NAME chooses another"
    # A program notes the sum of several short steps, and the median of these.
    noted, about = "", ""
    if step.source == HOOK and not step.explained_steps:
        noted, about = " that the program noted", "about "
    where = f"{noted} on {counted(step.ranks, 'rank')}"
    if step.elapsed_ns is None or step.wall_p50_ns is None:
        return f"median of {counted(step.steps, 'step')}{where}"
    return time_of_steps(step.counted_steps, step.steps, where, f"{about}{format_ns(step.wall_p50_ns)}")


def _kinds(step: StepSummary) -> Iterator[str]:
    times = [kind.wall_p50_ns for kind in step.kinds]
    if times and max(times) < _MAX_TIME_RATIO * min(times):
        yield f"The steps are of {len(times)} kinds, which take equally long (--analysis step_kinds)."
    elif times:
        kinds = (f"{kind.share_pct:.0f} % of them take {format_ns(kind.wall_p50_ns)}" for kind in step.kinds)
        yield f"The steps are of {len(step.kinds)} kinds (medians): {', '.join(kinds)}."


def _gain_sentences(explanation: Explanation, wall_ns: int) -> list[str]:
    """Return sentences on the time of a step without the first finding, and without all of them."""
    priced = [finding for finding in explanation.shown() if finding.saving_ns is not None]
    if not priced:
        return [_no_price_text(explanation)]
    sentences = []
    # Other findings may explain the same single steps, so that both savings do not add up.
    replayed = [finding for finding in priced if not has_trait(finding.cause, Trait.SINGLE_STEPS)]
    names = [_remedy_text(finding, explanation) for finding in replayed]
    # A mean over all steps of a run without a profile may exceed their median.
    if replayed and (replayed[0].saving_ns or 0) < wall_ns:
        sentences.append(
            f"{capitalized(names[0])} it would take about {_step_without(wall_ns, replayed[:1])}."
        )
    # Savings in two or three steps, the first of which takes long, add up to more than a mean step.
    if len(replayed) > 1 and sum(finding.saving_ns or 0 for finding in replayed) < wall_ns:
        sentences.append(f"Also {' and '.join(names[1:])}: about {_step_without(wall_ns, replayed)}.")
    return sentences


def _remedy_text(finding: Finding, explanation: Explanation) -> str:
    """Return the state of a run whose finding is remedied: ``without host work in data on all ranks``."""
    if without := cause_of(finding.cause).without:
        return f"{without}{place_text(finding, explanation)}"
    return f"without {named(finding, explanation)}"


_UNEXPLAINED_TIME = (WAITING, IDLE, PAGES)
"""The subjects in `NotJudged` of time that no finding explains."""


def _no_price_text(explanation: Explanation) -> str:
    """Return the reason why no finding has a price: the run is healthy, or no step could be replayed."""
    memory = [
        named(cause, explanation) for cause in explanation.shown() if has_trait(cause.cause, Trait.MEMORY)
    ]
    if memory:
        return f"Found, which costs memory and not time: {'; '.join(memory)}."
    if not explanation.step.explained_steps and explanation.not_judged:
        reason = explanation.not_judged[0].reason
        if reason in (NO_GPU, NOT_JOINED):
            return f"Nothing was found that surely shortens a step; {visible(reason)}."
        if reason.startswith(NO_LAUNCHES):
            return " ".join([f"Savings are unknown: {visible(reason)}.", *_kernel_text(explanation)])
        return f"No cause could be judged: {visible(reason)}."
    whole = _JUDGED_WORK if explanation.step.source == CAPTURE else "a step"
    is_complete = all(finding.cause != Cause.CAPTURE_INCOMPLETE for finding in explanation.shown())
    subject = "Nothing was found that" if is_complete else "In what was recorded, nothing"
    nothing = f"{subject} would shorten {whole} by {MIN_ESTIMATE_PCT:.0f} % or more."
    compute = explanation.step.compute_pct or 0.0
    if compute >= _MOSTLY_COMPUTE_PCT and is_complete and not explanation.step.is_alone:
        nothing += f" Compute takes {compute:.0f} % of it: what remains is to compute faster."
    in_step = explanation.step.source != CAPTURE
    kernel = _kernel_text(explanation, "it", in_step=in_step)
    lost = (visible(row.reason) for row in explanation.not_judged if row.what in _UNEXPLAINED_TIME)
    return " ".join([nothing, *kernel, *(f"But {reason}." for reason in lost)])


def _kernel_text(explanation: Explanation, whole: str = "", *, in_step: bool = False) -> Iterator[str]:
    """Yield a sentence on the kernel that takes most of ``whole``, and with ``in_step`` on its place."""
    kernel = explanation.step.kernel
    if kernel is None:
        return
    whole = whole or ("a step" if explanation.step.steps else "the capture")
    text = f"{visible(kernel.name)} takes {kernel.share_pct:.0f} % of {whole}"
    if in_step and kernel.where:
        text += f", mostly in {visible(kernel.where)}"
    if kernel.blocks:
        blocks = counted(kernel.blocks, "block")
        text += f", in launches of at most {blocks} for {kernel.sm_count:,} multiprocessors"
    option = f"submit --profiler ncu --profiler-option kernel={visible(kernel.name)} --profiler-option "
    yield f"{text}: {option}launch-count=3 measures why." if kernel.measurable else f"{text}."


def _step_without(wall_ns: int, findings: Sequence[Finding]) -> str:
    """Return the time of a step without findings, each of which was judged without those before it."""
    saving = min(wall_ns, sum(finding.saving_ns or 0 for finding in findings))
    return f"{format_ns(wall_ns - saving)}, {100 * saving / wall_ns:.1f} % less"


def _replay_text(error_pct: float | None, steps: int, total: int) -> str:
    if error_pct is None:
        return "The recorded parts of the steps say so: without work on a GPU, no part hides behind another."
    replayed = counted(steps, "step") if steps >= total else f"{steps:,} of {counted(total, 'step')}"
    return f"A replay of {replayed} without any change is {abs(error_pct):.1f} % off the measured time."


def named(finding: Finding, explanation: Explanation) -> str:
    """Return a finding in a few words: ``host work in data on all ranks``."""
    parts = (
        f"{cause_of(part.cause).title}{place_text(part, explanation)}"
        for part in (finding, *finding.together)
    )
    return " together with ".join(parts)


def _place_name(finding: Finding) -> str:
    """Return the place of a finding in words, also where the whole step has no range to name it."""
    # Without a price, it may be a sentence.
    place = finding.where if finding.saving_ns is None else shortened(finding.where)
    return visible(in_words(place) if place else "")


def place_text(finding: Finding, explanation: Explanation) -> str:
    """Return the place of a finding, to follow its name: `` in data on all ranks``."""
    where, ranks = _place_name(finding), _ranks_text(finding.ranks, explanation)
    if finding.cause == Cause.CAPTURE_INCOMPLETE:  # Its place is what was lost.
        return f": {where}"
    if finding.cause == Cause.STEP_SPIKES:  # Its place names the steps.
        return f" in {where}{ranks}"
    steps = _steps_text(finding, explanation.step)
    if finding.cause == Cause.STEP_DRIFT:  # Its place is the whole capture.
        return f"{ranks}{steps}"
    # A place between calls says by itself where it is.
    inside = "" if where.startswith(_OUTSIDE_PLACES) else "in "
    return f" {inside}{where}{ranks}{steps}" if where else f"{ranks}{steps}"


def _steps_text(finding: Finding, step: StepSummary) -> str:
    """Return the steps that have a cause; those in a row by the first and the last.

    Steps that were not replayed may have it too. A drift is of all steps.
    """
    first = [number for number in finding.steps if number - 1 not in finding.steps]
    last = [number for number in finding.steps if number + 1 not in finding.steps]
    parts = [f"{a}" if a == b else f"{a} to {b}" for a, b in zip(first, last, strict=True)]
    if not parts:
        return ""
    named = ", ".join(parts[:_MAX_NAMED_STEPS]) + (", …" if len(parts) > _MAX_NAMED_STEPS else "")
    steps = f"step{'s' if len(finding.steps) > 1 else ''}"
    if step.explained_steps in (0, step.steps) or finding.cause == Cause.STEP_DRIFT:
        return f", in {steps} {named} only"
    return f", in {steps} {named} of the {step.explained_steps:,} replayed"


def alternative_texts(finding: Finding, explanation: Explanation) -> list[str]:
    """Return the alternatives to a finding, each with its saving."""
    return [f"{named(other, explanation)}: {saved(other, explanation)}" for other in finding.alternatives]


def joint_causes_text(finding: Finding, explanation: Explanation) -> str:
    """Return the causes that have to go too, in a sentence; empty without any."""
    names = [named(part, explanation) for part in finding.together]
    return f"Only without {' and '.join(names)} as well; alone it saves little." if names else ""


def _ranks_text(ranks: Sequence[int], explanation: Explanation) -> str:
    if not ranks or explanation.step.ranks == 1:
        return ""
    if len(ranks) == explanation.step.ranks:
        return " on all ranks"
    return f" on {named_ranks(ranks, _MAX_NAMED_RANKS)}"


def saved(finding: Finding, explanation: Explanation | None = None) -> str:
    """Return the saving of a finding with its interval and its share of the step, or of the whole capture."""
    if finding.saving_ns is None:
        return "memory, not time" if has_trait(finding.cause, Trait.MEMORY) else "cost unknown"
    whole = explanation is not None and explanation.step.source == CAPTURE
    text = f"{format_ns(finding.saving_ns)} of {_JUDGED_WORK if whole else 'each step'}"
    if finding.share_pct is not None:
        text += f", {finding.share_pct:.1f} %"
    if finding.saving_low_ns is not None and finding.saving_high_ns is not None:
        text += f" (between {format_ns(finding.saving_low_ns)} and {format_ns(finding.saving_high_ns)})"
    return text


def described(finding: Finding, explanation: Explanation) -> list[tuple[str, str]]:
    """Return the details of a finding as pairs of a label and its text."""
    steps = "" if finding.cause == Cause.STEP_SPIKES else _steps_text(finding, explanation.step)
    # The losses name their ranks.
    ranks = "" if finding.cause == Cause.CAPTURE_INCOMPLETE else _ranks_text(finding.ranks, explanation)
    where = f"{_place_name(finding)}{ranks}{steps}"
    pairs = [
        ("cause", finding.cause),
        ("where", where.strip()),
        ("kind", "" if finding.kind is None else _kind_text(finding.kind, explanation.step)),
        ("source", "; ".join(map(written_source, finding.source or ()))),
        ("saving", saved(finding, explanation)),
        ("together", joint_causes_text(finding, explanation)),
        *(("or", other) for other in alternative_texts(finding, explanation)),
        ("remedy", visible(finding.remedy)),
        ("confidence", finding.confidence),
    ]
    return [(label, text) for label, text in pairs if text]


def _kind_text(number: int, step: StepSummary) -> str:
    share = next((f", {kind.share_pct:.0f} % of the steps" for kind in step.kinds if kind.kind == number), "")
    return f"only steps of kind {number} of {len(step.kinds)}{share}"


def written_source(source: Source) -> str:
    """Return a function of the user's code with its place and its share: ``load (train.py:12), 87 %``."""
    place = visible(source.file or "")
    if source.line is not None:
        place = f"{place}:{source.line}" if place else f"line {source.line}"
    return f"{visible(source.function)}{f' ({place})' if place else ''}, {source.share_pct:.0f} %"


def evidence(finding: Finding) -> list[tuple[str, list[str]]]:
    """Return the evidence of a finding: figures by their analysis, of each rank the largest."""
    texts_by_analysis: dict[str, list[str]] = {}
    largest: dict[tuple[str, int | None, str], tuple[str, str]] = {}
    # Explanations of earlier versions have no words.
    texts = finding.evidence_text or map(plain_figure, finding.evidence)
    for cell, text in zip(finding.evidence, texts, strict=True):
        largest.setdefault((cell.analysis, cell.rank, cell.key), (cell.analysis, visible(text)))
    for analysis, text in largest.values():
        texts_by_analysis.setdefault(analysis, []).append(text)
    return list(texts_by_analysis.items())


def hidden_cost(finding: Finding, explanation: Explanation) -> str:
    """Return a hidden cost as one line."""
    cost = "" if finding.cost_ns is None else f": {format_ns(finding.cost_ns)} of host time per step"
    limit = finding.limits_after
    after = "" if limit is None else f"; it limits the step once {cause_of(limit.cause).title} is gone"
    return f"{named(finding, explanation)}{cost}{after}"


def in_short(explanation: Explanation) -> list[str]:
    """Return the conclusion for the head of a report: a line for each finding that is shown.

    Before them it says of which step the savings are where it is not the recorded one of the account.
    """
    lines = []
    for number, finding in enumerate(explanation.shown(), 1):
        lines.append(f"{number}. {named(finding, explanation)}: {saved(finding, explanation)}")
        lines += [f"or: {other}" for other in alternative_texts(finding, explanation)]
        lines.append(f"remedy: {visible(finding.remedy)}")
    step = explanation.step
    takes = [*_timing(step, step.priced_ns)] if step.priced_ns is not None else []
    priced = takes if step.is_alone else takes[1:] if lines else []
    has_saving = any(finding.saving_ns is not None for finding in explanation.shown())
    lost = (REST,) if has_saving or not lines else (REST, *_UNEXPLAINED_TIME)
    uncovered = [f"{capitalized(row.reason)}." for row in explanation.not_judged if row.what in lost]
    return [*_trend_sentences(explanation), *priced, *(lines or [_no_price_text(explanation)]), *uncovered]


def prediction_text(prediction: Prediction, changed: bool, width: int) -> RenderableType:
    """Return a prediction for a terminal of ``width`` characters.

    ``changed`` tells a what-if from the replay of the run as it was.
    """
    lines = [line for sentence in predicted(prediction, changed) for line in _wrapped_lines(sentence, width)]
    return Group(*lines)


def predicted(prediction: Prediction, changed: bool) -> list[str]:
    """Return a prediction in sentences, with the error of the replay."""
    wall, measured = prediction.wall_p50_ns, prediction.measured_p50_ns
    error = _replay_text(prediction.replay_error_pct, prediction.steps, prediction.steps)
    interval = f"between {format_ns(prediction.low_ns)} and {format_ns(prediction.high_ns)}"
    name = "judged work" if prediction.is_capture else "median step"
    elapsed = [] if prediction.is_capture else [_elapsed_text(prediction)]
    if not changed:
        sentence = (
            f"The unchanged {name} takes {format_ns(wall)} ({interval}); measured: {format_ns(measured)}."
        )
        return [sentence, *elapsed, error]
    difference = wall - measured
    share = f"{100 * abs(difference) / measured:.1f} %" if measured else "–"
    word = "more" if difference > 0 else "less"
    comparison = f"That is {format_ns(abs(difference))} or {share} {word} than"
    if share == "0.0 %":
        comparison = "That differs by less than 0.1 % from"
    return [
        f"The {name} would take {format_ns(wall)} ({interval}).",
        f"{comparison} the measured {format_ns(measured)}.",
        *elapsed,
        *([_AS_RECORDED] if prediction.has_profiler_share else []),
        error,
    ]


def _elapsed_text(prediction: Prediction) -> str:
    """Return the elapsed time per step, by which `hpcprof explain` prices causes."""
    times = (format_ns(time) for time in (prediction.elapsed_ns, prediction.measured_elapsed_ns))
    return "Elapsed time per step: {}; measured: {}.".format(*times)


def _heading(text: str, width: int, indent: int = 0) -> Iterator[Text]:
    yield Text()
    yield from _wrapped_lines(text, width, style="bold", indent=indent)


def _labelled_lines(label: str, text: str, width: int) -> Iterator[Text]:
    first, *further_lines = _lines(text, width - _INDENT_WIDTH - _LABEL_WIDTH)
    yield _unbroken_line(f"{'':{_INDENT_WIDTH}}{label:{_LABEL_WIDTH}}{first}")
    yield from (_unbroken_line(f"{'':{_INDENT_WIDTH + _LABEL_WIDTH}}{line}") for line in further_lines)


def _wrapped_lines(text: str, width: int, style: str = "", first: int = 0, indent: int = 0) -> Iterator[Text]:
    lines = _lines(text, width - indent)
    yield _unbroken_line(f"{'':{first}}{lines[0]}", style)
    yield from (_unbroken_line(f"{'':{indent}}{line}", style) for line in lines[1:])


def _lines(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(_MIN_LINE_WIDTH, width), break_on_hyphens=False) or [""]


def _unbroken_line(line: str, style: str = "") -> Text:
    """Return a line that the terminal does not break: a wrapped command cannot be copied."""
    return Text(line, style=style, no_wrap=True, overflow="ignore")
