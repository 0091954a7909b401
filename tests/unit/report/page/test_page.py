"""The tables of the HTML page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replace_struct
from rich.console import Console

from hpcprof.analysis.explain.explanation import Source
from hpcprof.analysis.framework.declaration import Column, Kind
from hpcprof.analysis.framework.outcome import AnalysisTable, Row
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.report.contents import Contents
from hpcprof.report.page.page import SCRUB_NOTE, html_report
from hpcprof.report.page.page_tables import analysis_tables, page_table
from hpcprof.report.terminal import analysis_report, full_report
from hpcprof.results.across.predictions import KeptPrediction
from hpcprof.results.store.analysis_version import ANALYSIS_VERSION
from hpcprof.results.store.tables import ProfileRow
from hpcprof.runs.directory import Run
from hpcprof.submit.runs.failures import RankFailure
from tests.page_blocks import blocks
from tests.unit.explanations import explained, finding

MAX_REPORT_ROWS = 2030
FULL = "hpcprof report r {} {}".format


def profile_of(devices: str, host: str | None) -> ProfileRow:
    return ProfileRow(
        *("r", 0, "rank0.sqlite", "0" * 64, 1, "nsys", host, devices, "2025.3", None),
        analysis_version=ANALYSIS_VERSION,
    )


@pytest.fixture(scope="module")
def page() -> str:
    """The page of a run whose tables hold the same value in every row."""
    profile = profile_of("NVIDIA H200", "n1")
    return html_report(Contents(Run("r", Path("r")), None, [], {0: profile}, tables(), [], [], FULL))


def tables() -> dict[str, AnalysisTable]:
    made = {}
    for name, analysis in ANALYSES.items():
        rows = MAX_REPORT_ROWS if name == "kernels" else 1
        columns = {
            c.name: ["x" if c.kind is Kind.TEXT else 0 if c.name == "rank" else 12] * rows
            for c in analysis.columns
        }
        made[name] = AnalysisTable(columns, {})
    return made


def test_predictions_of_the_run_are_on_its_page(tmp_path: Path) -> None:
    profiles = {0: profile_of("NVIDIA H200", "n1")}
    assert 'id="predictions"' not in html_report(
        Contents(Run("r", tmp_path / "r"), None, [], profiles, tables(), [], [], FULL)
    )
    made = KeptPrediction(
        "r", 2, 64, "weak", 12_000_000, 11_000_000, 14_000_000, 10_000_000, 13_000_000, "now"
    )
    kept = [made, replace_struct(made, ranks=8, actual=12_500_000), replace_struct(made, run="other")]
    file = tmp_path / "predictions.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in kept))
    contents = Contents(Run("r", tmp_path / "r"), None, [], profiles, tables(), [], [], FULL)
    section = html_report(contents).partition('id="predictions"')[2].partition("</section>")[0]
    assert section.count("<tr><td>2</td>") == 2
    assert "12.00 ms (11.00 ms to 14.00 ms)" in section
    assert "<td>-4.0 %</td><td>-20.0 %</td><td>+4.0 %</td>" in section
    file.write_text("{")
    assert 'id="predictions"' not in html_report(contents)


def rows_of(page: str, name: str) -> dict[str, Any]:
    """Return the data of a table of the page."""
    made: dict[str, dict[str, Any]] = {
        table["name"]: table for table in json.loads(blocks(page)["tables-data"])
    }
    return made[name]


def headers(page: str, name: str) -> list[str]:
    return [column["header"] for column in rows_of(page, name)["columns"]]


@pytest.mark.parametrize(
    "name", ["breakdown", "overlap", "phases", "steps_summary", "skew", "collectives_summary"]
)
def test_the_page_and_the_terminal_have_the_same_headers(name: str, page: str) -> None:
    console = Console(width=400)
    with console.capture() as output:
        console.print(analysis_report(ANALYSES[name], tables()[name], 400))
    first = output.get().splitlines()[0]
    assert re.split(r" {2,}", first.strip()) == headers(page, name)


def test_what_the_profiles_lack_is_said_once_on_page_and_terminal_and_beside_a_single_table() -> None:
    lost = ("rank 3: 57 of 172 kernels have no valid end and are left out", "rank 1: <b>")
    made = {name: replace(one, losses=lost) for name, one in tables().items()}
    profile = profile_of("NVIDIA H200", "n1")
    contents = Contents(Run("r", Path("r")), None, [], {0: profile}, made, [], [], FULL, losses=lost)
    console = Console(width=200)
    with console.capture() as output:
        console.print(full_report(contents, 200))
    page = html_report(contents)
    for sentence in lost:
        assert output.get().count(sentence) == 1
        assert page.count(escape(sentence, quote=False)) == 1
    with console.capture() as output:
        console.print(analysis_report(ANALYSES["breakdown"], made["breakdown"], 200))
    assert output.get().splitlines().count(f"losses: {'; '.join(lost)}") == 1


def test_rows_that_the_page_leaves_out_are_counted(page: str) -> None:
    assert "Kernel time by name <small>2,030 rows</small>" in page
    assert "the page holds the first 2,000; all: hpcprof report r --analysis kernels" in page
    assert len(rows_of(page, "kernels")["columns"][0]["values"]) == 2000


def test_a_column_has_values_to_sort_and_texts_to_show(page: str) -> None:
    columns = {column["name"]: column for column in rows_of(page, "kernels")["columns"]}
    assert (columns["total_ns"]["values"][0], columns["total_ns"]["texts"][0]) == (12, "12.00 ns")
    assert columns["name"]["values"][0] == "x" and "texts" not in columns["name"]


def test_a_column_without_any_value_is_left_out() -> None:
    columns = [
        Column(name, kind) for name, kind in (("node", Kind.TEXT), ("bytes", Kind.INT), ("n", Kind.INT))
    ]
    rows: list[Row] = [{"node": "", "bytes": None, "n": 0}, {"node": None, "bytes": None, "n": None}]
    made = page_table("host_memory", "Memory", columns, rows, "")
    assert made.data and [column["name"] for column in made.data["columns"]] == ["n"]


def test_a_long_name_has_a_short_one() -> None:
    name = "void at::native::elementwise_kernel<128, 4, at::native::AddFunctor<float>>(int, Params)"
    columns = (Column("name", Kind.TEXT), Column("total_ns", Kind.INT))
    rows: list[Row] = [{"name": name, "total_ns": 1}, {"name": None, "total_ns": None}]
    data = page_table("kernels", "Kernels", columns, rows, "").data
    assert data
    made = data["columns"]
    assert made[0]["values"] == [name, None]
    assert made[0]["short"][name].startswith("elementwise_kernel<") and len(made[0]["short"][name]) <= 48
    assert made[1] == {"name": "total_ns", "header": "Total", "values": [1, None], "texts": ["1.000 ns", "–"]}


def test_of_many_ranks_the_page_shows_how_they_differ() -> None:
    made = {
        "step_times": AnalysisTable({"rank": [0], "step": [0], "wall_ns": [1], "gpu_span_ns": [1]}),
        "phases": AnalysisTable(
            {
                column.name: list(range(20))
                if column.name == "rank"
                else ["fwd"] * 20
                if column.kind is Kind.TEXT
                else [100] * 19 + [900]
                for column in ANALYSES["phases"].columns
            }
        ),
    }
    contents = Contents(Run("r", Path("r")), None, [], {}, made, [], [], FULL)
    spread, apart = analysis_tables("phases", contents)
    assert (spread.title, spread.count) == ("Phase time over 20 ranks", "5 rows")
    assert spread.notes[-1] == "all 20 rows: hpcprof report r --analysis phases"
    assert apart.name == "phases-deviating"
    assert apart.data is not None and apart.data["columns"][0]["values"] == [19]


def test_the_profiler_is_named_with_its_version(page: str) -> None:
    assert "1 rank, nsys 2025.3" in page


def test_the_findings_are_the_first_thing_on_the_page_with_their_evidence() -> None:
    profile = profile_of("NVIDIA H200", "n1")
    hostile = replace(finding(13), where="<script>", remedy="<b>")
    contents = Contents(Run("r", Path("r")), None, [], {0: profile}, tables(), [], [], FULL)
    made = html_report(replace(contents, explanation=explained(hostile)))
    body = made[made.index("<body>") :]
    assert body.index('id="account"') < body.index('id="findings"') < body.index("<dt>profile</dt>")
    assert body.index("<dt>profile</dt>") < body.index('id="table-kernels"')
    number = '<a href="#finding-1">1.</a>'
    assert f"<h3>{number} The step waits for work of the host: in &lt;script&gt; on all ranks</h3>" in body
    assert "<b>Saves 13.00 ms of each step" in body
    table = '<a href="#table-idle_causes">Idle time of the mean step by what the next operation waits for</a>'
    assert f"rank 0: the GPU is idle for 13.00 ms of a step while the host is in data {table}" in body
    assert 'id="table-idle_causes"' in body
    assert "contention with communication: one rank was profiled" in body
    assert "<dt>findings</dt>" not in body


def test_a_page_without_findings_says_so_and_how_sure_that_is() -> None:
    profile = profile_of("NVIDIA H200", None)
    contents = Contents(Run("r", Path("r")), None, [], {0: profile}, tables(), [], [], FULL)
    made = html_report(replace(contents, explanation=explained()))
    assert ">No findings</h2>" in made
    assert "Nothing was found that would shorten a step by 3 % or more." in made
    assert "A replay of 6 steps without any change is 0.4 % off the measured time" in made


def test_a_page_without_an_explanation_names_the_command() -> None:
    contents = Contents(Run("r", Path("r")), None, [], {}, {}, [], [], FULL, explaining="hpcprof explain r")
    assert "<dt>findings</dt><dd>hpcprof explain r computes them</dd>" in html_report(contents)


FOLDER = Path("/home/ada/secret-project")
HOST = "gpunode17.cluster.example"
PRIVATE = (
    "ada",
    "secret-project",
    "gpunode17",
    "cluster.example",
    "hush",
    "hpcprof report",
)


def profile(rank: int) -> ProfileRow:
    return ProfileRow("r", rank, "rank0.sqlite", "0", 1, "nsys", HOST, "NVIDIA H200", "2025.3", None, 1)


@pytest.fixture(scope="module")
def contents() -> Contents:
    made = tables()
    names = ["gemm", "/home/ada/kernels/my_kernel.cu", f"send to {HOST}", "wait for gpunode17"]
    kernels = {
        # More rows than a page holds: it names the command that shows all.
        name: (names * len(values))[: len(values)] if name == "name" else values
        for name, values in made["kernels"].columns.items()
    }
    made["kernels"] = AnalysisTable(kernels)
    # Where a range is the finding's place, it is also on the first screen.
    source = (Source("secret-project/train.py", 12, "load_batch", 87.0),)
    found = replace(finding(13), where="load /home/ada/data/part-1", source=source)
    return Contents(
        Run("secret-project-a6c369c0", FOLDER),
        None,
        [RankFailure(0, 1, ["Traceback", "token hush"])],
        {0: profile(0), 1: profile(1)},
        made,
        [],
        [f"damaged: {FOLDER}/rank1.sqlite on {HOST}"],
        "hpcprof report secret-project-a6c369c0 {} {}".format,
        explaining="hpcprof explain secret-project-a6c369c0",
        explanation=explained(found),
    )


def everything(page: str) -> str:
    """Return the text of a page, without its script, and the data inside it."""
    text = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)
    return "\n".join([text, *blocks(page).values()])


def test_a_scrubbed_page_holds_no_host_user_path_command_or_log(contents: Contents) -> None:
    text = everything(html_report(contents, scrub=True))
    assert {word for word in PRIVATE if word in text} == set()
    assert SCRUB_NOTE in text
    assert "<path " in text and "<host 1>" in text and "gemm" in text
    assert "rank 0: exit code 1" in text
    assert "load_batch (line 12), 87 %" in text


def test_a_page_that_is_not_scrubbed_holds_them(contents: Contents) -> None:
    text = everything(html_report(contents))
    assert "load_batch (secret-project/train.py:12), 87 %" in text
    assert {word for word in PRIVATE if word not in text} == set()
    assert SCRUB_NOTE not in text


def test_scrubbing_leaves_the_script_and_its_policy_alone(contents: Contents) -> None:
    head = re.compile(r"<meta http-equiv.*?>|<script>.*?</script>", re.DOTALL)
    assert head.findall(html_report(contents)) == head.findall(html_report(contents, scrub=True))
