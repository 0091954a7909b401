"""What the documentation says is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcprof.analysis.catalogue import ACROSS_RUNS, ANALYSES
from hpcprof.cli.main import COMMANDS
from hpcprof.profilers import PROFILERS
from hpcprof.store_tables import Base

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", {**ANALYSES, **ACROSS_RUNS})
def test_every_analysis_is_documented_with_its_keys(name: str) -> None:
    text = (ROOT / "docs/analyses.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{name}` \| ([^|]*) \|", text, re.MULTILINE)
    assert row is not None
    assert row[1].split(", ") == [column.name for column in (ANALYSES | ACROSS_RUNS)[name].columns]


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| command | what it does |") : text.index("RUN is a run id")]
    assert set(COMMANDS) <= set(re.findall(r"\w+", table))


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CONTRIBUTING.md",
        "docs/kubernetes.md",
        "docs/containers.md",
        "docs/analyses.md",
        "docs/benchmark.md",
        "docs/performance.md",
        "docs/profilers.md",
        "docs/results.md",
        "docs/studies.md",
    ],
)
def test_every_file_that_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:hpcprof|templates|site_configs|examples|docs|benchmarks|tests)/[\w./-]*)`", text
    )
    named += re.findall(r"\]\(([\w./-]+)\)", text)
    for path in (p for p in named if "NAME" not in p):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", [name for name in PROFILERS if PROFILERS[name].settings])
def test_every_option_of_a_profiler_is_documented_with_its_default(name: str) -> None:
    text = (ROOT / "docs/profilers.md").read_text(encoding="utf-8")
    section = text[text.index(f"\n## {name}:") :].split("\n## ")[1]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]*?) ?\|", section, re.MULTILINE))
    assert rows == {key: setting.default for key, setting in PROFILERS[name].settings.items()}


def test_every_table_of_the_store_is_documented() -> None:
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", text, re.MULTILINE))
    for name, table in Base.metadata.tables.items():
        if not name.startswith("analysis_"):
            assert rows[name].split(", ") == [column.name for column in table.columns]
