"""The questions that an agent may ask. The docstrings of the methods are what it reads about them."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console, RenderableType

from hpcprof.common.decode import last_lines
from hpcprof.common.errors import HpcprofError, UsageError, unknown
from hpcprof.common.masking import masked
from hpcprof.common.paths import packaged_folder
from hpcprof.common.units import counted, format_ns, named_ranks
from hpcprof.mcp.answers import MAX_ANSWER_BYTES, answer, mark_name, mark_text
from hpcprof.report.explanation import explanation_text, predicted, saved
from hpcprof.results.collect.run_names import command_line, find_known_run, typed_run
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run, log_files, typed_name
from hpcprof.serve.catalogue import Catalogue, Filters
from hpcprof.serve.sql import MAX_ROWS, SECONDS, SqlDesk
from hpcprof.submit.remote.mirror import refresh

_WIDTH = 110
_MAX_LISTED_RUNS = 50
_MAX_LOG_BYTES = 4 << 20
_CONTEXT_LINES, _MAX_WHOLE_GUIDE = 5, 7_000
_MAX_HISTORY_ROWS = 25

_EVENTS_AROUND_SQL = """\
WITH place AS ({place}),
found AS (
  SELECT 'kernel' AS kind, name, rank, start_ns, end_ns FROM kernels UNION ALL
  SELECT 'memory', name, rank, start_ns, end_ns FROM memory_operations UNION ALL
  SELECT 'range', name, rank, start_ns, end_ns FROM ranges UNION ALL
  SELECT 'api', name, rank, start_ns, end_ns FROM api UNION ALL
  SELECT 'collective', op, rank, start_ns, end_ns FROM collectives
)
SELECT kind, any_value(name) AS name, count(*) AS events,
  (sum(f.end_ns - f.start_ns) / 1e6)::DECIMAL(18, 3) AS ms,
  (max(f.end_ns - f.start_ns) / 1e6)::DECIMAL(18, 3) AS longest_ms,
  ((arg_max(f.start_ns, f.end_ns - f.start_ns) - p.start_ns) / 1e6)::DECIMAL(18, 3) AS longest_at_ms,
  p.start_ns, p.end_ns
FROM place p LEFT JOIN found f ON f.rank = {rank} AND f.start_ns < p.end_ns AND f.end_ns > p.start_ns
GROUP BY p.start_ns, p.end_ns, kind, name ORDER BY max(f.end_ns - f.start_ns) DESC LIMIT 60"""


class Tools:
    """The questions on the runs of a folder and their results.

    ``collect`` is called with each run whose profiles have not been collected.
    """

    def __init__(
        self,
        runs_dir: Path,
        store: Store,
        catalogue: Catalogue,
        desk: SqlDesk,
        collect: Callable[[Run, Store], None],
    ) -> None:
        self._runs_dir, self._store = runs_dir, store
        self._catalogue, self._desk, self._collect = catalogue, desk, collect

    def find_runs(self, search: str = "", program: str = "", state: str = "", since: str = "") -> str:
        """Find runs, the newest first: id, state, program, ranks, profiler, elapsed time per step, collected.

        search: words that all occur in the id, command, program, site or tags. state: such as completed,
        failed, running or imported. since: a date or an age such as 7d.
        """
        listing = self._catalogue.listing()
        chosen = listing.chosen(Filters(search=search, program=program, state=state, since=since))
        lines = ["run | state | program | ranks | profiler | time per step | collected | submitted"]
        for listed_run in chosen[:_MAX_LISTED_RUNS]:
            row = listed_run.listed
            step = format_ns(row.step_ns) if row.step_ns else "-"
            when = f"{listed_run.when:%Y-%m-%d %H:%M}" if listed_run.when else "-"
            description = (row.run, row.state, listed_run.program, row.ranks, row.profiler)
            values = (*description, step, row.collected.value, when)
            lines.append(" | ".join("-" if value in (None, "") else str(value) for value in values))
        count = min(len(chosen), _MAX_LISTED_RUNS)
        all_runs = counted(len(listing.runs), "run")
        head = f"{len(chosen)} of {all_runs} match; {count} are listed, the newest first."
        return answer(
            [head], lines if chosen else [], "names of runs", [f"All: {self._typed_command('list')}"]
        )

    def explain(self, run: str = "last") -> str:
        """Explain where the step time of a run is lost: causes by their cost, with place, rank and saving.

        Each finding has a saving per step with its interval, a remedy, file and line if stacks were recorded,
        and its evidence by the name of an analysis. Start here.
        """
        from hpcprof.results.ask.explanation import explain
        from hpcprof.results.ask.tables import on_all_cpus

        collected = self._collect_run(run)
        explanation = explain(collected, self._store, None, on_all_cpus)
        step, findings = explanation.step, explanation.shown()
        steps = f"{counted(step.steps, 'step')} on {counted(step.ranks, 'rank')}"
        takes = "no step was found"
        if priced := step.priced_ns:
            recorded = step.recorded_elapsed_ns or priced
            priced_clause = (
                f"; shares are of {format_ns(priced)}" if format_ns(priced) != format_ns(recorded) else ""
            )
            takes = f"a step takes {format_ns(recorded)} ({steps}{priced_clause})"
        head = [f"{mark_name(collected.id)}: {takes}; {counted(len(findings), 'finding')}."]
        for number, finding in enumerate(findings, 1):
            place = f" in {mark_name(finding.where)}" if finding.where else ""
            ranks = f" on {named_ranks(finding.ranks, 8)}" if finding.ranks else ""
            cost = saved(finding, explanation)
            head.append(f"{number}. {finding.cause}{place}{ranks}: {cost}; {finding.confidence} confidence.")
        text = explanation_text(explanation, _WIDTH, partial(self._report, collected))
        page = self._typed_command("report", typed_run(collected), "--html", "report.html")
        pointers = [
            "Evidence: the name of an analysis in a command above is its id; the page of the run has it as "
            f"#table-NAME. Page: {page}"
        ]
        return answer(head, _rendered_lines(text), "the profiles of the run", pointers)

    def whatif(self, run: str, changes: list[str]) -> str:
        """Predict the step time of a run if times were different; an empty list replays it as it was.

        A change: range:NAME*0, range:NAME+40ms, gpu:NAME*0.5, kernel:REGEX*0.5, api:REGEX*0, mpi:CALL*0.5,
        comm*0, copy*0, rank:2=median or bandwidth*2; @RANK at the end restricts it to one rank.
        """
        from hpcprof.analysis.explain.changes import parse_changes
        from hpcprof.results.ask.explanation import what_if

        parse_changes(changes)
        collected = self._collect_run(run)
        sentences = predicted(what_if(collected, self._store, changes), bool(changes))
        words = [word for change in changes for word in ("--set", change)]
        return answer(
            sentences, pointers=[f"The same: {self._typed_command('whatif', typed_run(collected), *words)}"]
        )

    def compare(self, run: str, baselines: list[str], repeats: list[str] | None = None) -> str:
        """Compare a run (the candidate) with one or more baseline runs: is it slower, and what explains it.

        baselines: runs of the same program. repeats: further candidate runs; a verdict takes two on each
        side.
        """
        from hpcprof.report.comparison import compare_runs

        if not baselines:
            raise UsageError("baselines: name at least one run to compare with.")
        candidates = [self._collect_run(typed) for typed in (run, *(repeats or []))]
        before = [*map(self._collect_run, baselines)]
        compared = compare_runs(before, candidates, self._store)
        row = compared.table.rows[0] if compared.table.rows else None
        head = [
            compared.conclusion() or (f"Verdict: {row['verdict']}." if row else "Nothing can be compared.")
        ]
        if compared.waterfall is not None:
            from hpcprof.report.comparison import in_a_sentence

            head.append(in_a_sentence(compared.waterfall))
        lines = ["metric | " + " | ".join(key for key in row if key != "metric")] if row else []
        lines += [" | ".join(map(str, cells.values())) for cells in compared.table.rows[:6]]
        lines += _rendered_lines(compared.explanation(self._store, _WIDTH))
        words = [word for candidate in before for word in ("--a", typed_run(candidate))]
        words += [word for candidate in candidates for word in ("--b", typed_run(candidate))]
        pointers = [f"All metrics: {self._typed_command('compare', *words)}"]
        return answer(head, lines, "the profiles of the runs", pointers)

    def history(self, run: str = "last", metric: str = "step_ns") -> str:
        """Show a metric of all runs like a run over time, and at which run its level changed.

        metric: step_ns, or one of compare such as exposed_comm_per_step_ns.
        """
        from hpcprof.report.history import in_words, table
        from hpcprof.results.across.history import histories

        match = self._find_run(run)
        row = self._store.run(match.id) if self._store.exists() else None
        program = (row.program if row else None) or (match.manifest.job.program if match.manifest else None)
        series = histories(self._store, self._runs_dir, program, metric)
        trend = next((item for item in series if any(point.run == match.id for point in item.points)), None)
        if trend is None:
            raise HpcprofError(f"{match.id} has no {metric}: explain it first.")
        sentences = [*in_words(trend)]
        columns = table(trend)
        rows = [" | ".join(values) for values in zip(*columns.values(), strict=True)]
        changed = sum(point.change_probability is not None for point in trend.points)
        head = f"{counted(len(trend.points), 'run')}, {counted(changed, 'change')} of the level of {metric}."
        lines = [*sentences, " | ".join(columns), *reversed(rows[-_MAX_HISTORY_ROWS:])]
        words = ["--program", program] if program else []
        pointers = [f"All: {self._typed_command('history', *words, '--metric', metric)}"]
        return answer([head], lines, "names of runs, the newest first", pointers)

    async def query(self, run: str, sql: str, events: bool = False) -> str:
        """Ask in SQL: one read-only SELECT on the results database, or with events on those of the run.

        Results: a table analysis_NAME for each analysis with a column run_id, and runs, profiles, gpus,
        facts, losses, reasons. Events (DuckDB): kernels, api, ranges, collectives, steps, memory_operations
        and others, with columns run and rank, times in nanoseconds. how_to("query-events") has examples.
        """
        named = self._collect_run(run) if events else self._find_run(run)
        reply = await self._desk.ask(sql, [named] if events else None)
        results = f"results of all runs; run_id of {mark_name(run)}: {mark_name(named.id)}"
        origin = f"events of {mark_name(named.id)}" if events else results
        more = f" (of more: the limit is {MAX_ROWS:,})" if reply.truncated else ""
        head = [f"{counted(len(reply.rows), 'row')}{more} from the {origin}."]
        rows = (" | ".join(map(_value, row)) for row in reply.rows)
        lines = [*reply.notes, " | ".join(reply.columns), *rows]
        words = ["--events", sql, typed_run(named)] if events else [sql]
        pointers = [f"Limits: {SECONDS} s, {MAX_ROWS:,} rows. All: {self._typed_command('query', *words)}"]
        return answer(head, lines, "profiles", pointers)

    async def events_around(
        self, run: str, rank: int = 0, step: int | None = None, range_name: str = ""
    ) -> str:
        """Show what happened on a rank during one step, or during the longest range of a name.

        Kernels, memory operations, ranges, API calls and collectives, by name, the longest first: how many,
        their time, the longest one and when it began in the window.
        """
        collected = self._collect_run(run)
        place = f"SELECT start_ns, end_ns FROM steps WHERE rank = {rank:d}"
        where = "the longest step" if step is None else f"step {step}"
        if range_name:
            quoted = range_name.replace("'", "''")
            place = f"SELECT start_ns, end_ns FROM ranges WHERE rank = {rank:d} AND name = '{quoted}'"
            where = f"the longest {mark_name(range_name)}"
        elif step is not None:
            place += f" AND step = {step:d}"
        place += " ORDER BY end_ns - start_ns DESC LIMIT 1"
        reply = await self._desk.ask(_EVENTS_AROUND_SQL.format(place=place, rank=rank), [collected])
        if not reply.rows:
            raise HpcprofError(f"rank {rank} of {collected.id} has no {where.removeprefix('the longest ')}.")
        start, end = reply.rows[0][-2:]
        window_ns = f"{format_ns(end - start)}, {start} to {end} ns"
        head = f"{mark_name(collected.id)}, rank {rank}, {where}: {window_ns}; times in ms."
        lines = [" | ".join(reply.columns[:-2]), *(" | ".join(map(_value, row[:-2])) for row in reply.rows)]
        pointers = [
            "Names may nest, so times do not add up. More: the tool query with events=true and this window."
        ]
        return answer([head], lines, "the profile of the rank", pointers)

    def log_excerpt(
        self, run: str = "last", rank: int | None = None, search: str = "", lines: int = 60
    ) -> str:
        """Show the end of the output of a run, or the lines that contain a text; secrets are ``***``.

        rank: of this rank; by default of the job script and rank 0. search: a text, upper or lower case.
        """
        named = self._find_run(run)
        excerpt = refresh(named)
        files = log_files(named, rank)
        lines_per_file = max(1, min(lines, 400) // len(files))
        for path in files:
            text, _ = last_lines(path, _MAX_LOG_BYTES)
            picked = [*_matching_lines(text, search)] if search else [*enumerate(text, 1)]
            excerpt.append(f"==> {path.name}: {len(text)} lines, {min(lines_per_file, len(picked))} shown")
            excerpt += [f"{number}: {masked(line)}" for number, line in picked[-lines_per_file:]]
        head = [f"Output of {mark_name(named.id)}: {', '.join(path.name for path in files)}."]
        words = [typed_name(named.path), *(["--rank", str(rank)] if rank is not None else [])]
        return answer(head, excerpt, "the logs of the run", [f"All: {self._typed_command('logs', *words)}"])

    def how_to(self, topic: str) -> str:
        """Read hpcprof's own guide to a topic, such as explain-a-run or query-events#Tables; "" lists them.

        Without a guide of that name, those are listed that contain the words.
        """
        guides = {path.stem: path for path in sorted(_guides().glob("*.md"))}
        wanted, _, heading = topic.partition("#")
        words = wanted.lower().replace("-", " ").split()
        wanted = "-".join(words)
        if wanted not in guides:
            texts = {stem: path.read_text(encoding="utf-8") for stem, path in guides.items()}
            hits = {
                stem: (_mentions(f"{stem} {_title(text)}", words), _mentions(text, words))
                for stem, text in texts.items()
            }
            order = sorted((stem for stem in guides if any(hits[stem])), key=hits.__getitem__, reverse=True)
            lines = [f"{stem}: {_title(texts[stem])}" for stem in order or guides]
            return answer(["Guides, the fitting ones first; call how_to with one of these names:", *lines])
        text = guides[wanted].read_text(encoding="utf-8")
        sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
        headings = [section.partition("\n")[0].removeprefix("## ") for section in sections[1:]]
        if heading:
            if heading not in headings:
                raise unknown("section", heading, headings, f" of {wanted}")
            text = sections[1 + headings.index(heading)]
        pointer = f"Sections (how_to NAME#SECTION): {'; '.join(headings)}"
        if len(text) < _MAX_WHOLE_GUIDE:
            return answer(text.splitlines(), pointers=[pointer])
        size = MAX_ANSWER_BYTES - 100 - len(pointer.encode())
        return f"{text.encode()[:size].decode('utf-8', 'ignore')}\n(cut)\n{pointer}"

    def _find_run(self, reference: str) -> Run:
        if "/" in reference or reference in ("", ".", ".."):
            raise UsageError(f"run {reference!r}: give the id of a run, its beginning, its name, or last.")
        run = find_known_run(reference, self._runs_dir, self._store)
        if run.manifest is None and not (self._store.exists() and self._store.profiles(run.id)):
            raise UsageError(f"{reference!r} is not a run: find_runs lists them.")
        return run

    def _collect_run(self, reference: str) -> Run:
        from hpcprof.results.collect.missing import collect_missing

        run = self._find_run(reference)
        collect_missing([run], self._store, self._collect)
        return run

    def _typed_command(self, command: str, *words: str) -> str:
        return mark_text(command_line(self._store, command, *words))

    def _report(self, run: Run, analysis: str) -> str:
        return command_line(self._store, "report", run.id, "--analysis", analysis)


def _rendered_lines(text: RenderableType) -> Iterator[str]:
    out = io.StringIO()
    Console(file=out, width=_WIDTH, color_system=None).print(text, crop=False)
    yield from filter(None, (line.rstrip() for line in out.getvalue().splitlines()))


def _value(value: object) -> str:
    return "null" if value is None else str(value)


def _matching_lines(lines: Sequence[str], text: str) -> Iterator[tuple[int, str]]:
    hits_unmasked = [number for number, line in enumerate(lines) if text.lower() in line.lower()]
    # A line that contains the text in a secret alone would reveal it.
    hits = [number for number in hits_unmasked if text.lower() in masked(lines[number]).lower()]
    places = sorted({at for hit in hits for at in range(hit - _CONTEXT_LINES, hit + _CONTEXT_LINES + 1)})
    yield from ((at + 1, lines[at]) for at in places if 0 <= at < len(lines))


def _guides() -> Path:
    inside = packaged_folder("how_to")
    return inside if inside.is_dir() else inside.parent / "docs" / "how-to"


def _mentions(text: str, words: Sequence[str]) -> int:
    return sum(len(re.findall(rf"\b{re.escape(word)}", text.lower())) for word in words if len(word) > 2)


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")
