"""Pages for sharing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hpcprof.analysis.explain.explanation import Source
from hpcprof.report.contents import Contents
from hpcprof.report.page.page import html_report
from hpcprof.report.page.page_scrub import SAID
from hpcprof.results.analysis_table import AnalysisTable
from hpcprof.results.store.tables import ProfileRow
from hpcprof.submit.runs.directory import Run
from hpcprof.submit.runs.failures import RankFailure
from tests.page_blocks import blocks
from tests.unit.explanations import explained, finding
from tests.unit.report.page.test_page import tables

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
        "hpcprof report secret-project-a6c369c0 --analysis {}".format,
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
    assert SAID in text
    assert "<path " in text and "<host 1>" in text and "gemm" in text
    assert "rank 0: exit code 1" in text
    assert "load_batch (line 12), 87 %" in text


def test_a_page_that_is_not_scrubbed_holds_them(contents: Contents) -> None:
    text = everything(html_report(contents))
    assert "load_batch (secret-project/train.py:12), 87 %" in text
    assert {word for word in PRIVATE if word not in text} == set()
    assert SAID not in text


def test_scrubbing_leaves_the_script_and_its_policy_alone(contents: Contents) -> None:
    head = re.compile(r"<meta http-equiv.*?>|<script>.*?</script>", re.DOTALL)
    assert head.findall(html_report(contents)) == head.findall(html_report(contents, scrub=True))
