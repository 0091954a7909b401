"""The documentation agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES, FULL_REPORT
from hpcprof.cli.main import COMMANDS, cli
from hpcprof.results.store.tables import METADATA
from hpcprof.submit.profilers import PROFILERS

ROOT = Path(__file__).parents[2]
CONTEXT = click.Context(cli)


@pytest.mark.parametrize("name", sorted({*ANALYSES, *ACROSS_RUNS}))
def test_every_analysis_is_documented_with_its_keys(name: str) -> None:
    text = (ROOT / "docs/reference/analyses.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{name}` \| ([^|]*) \|", text, re.MULTILINE)
    assert row is not None
    assert row[1].split(", ") == [column.name for column in (ANALYSES | ACROSS_RUNS)[name].columns]


def test_the_guide_to_the_report_explains_every_table_of_it() -> None:
    text = (ROOT / "docs/how-to/read-the-report.md").read_text(encoding="utf-8")
    headings = "".join(re.findall(r"^## .*", text, re.MULTILINE))
    assert set(FULL_REPORT) <= set(re.findall(r"`(\w+)`", headings))


def test_the_overview_of_commands_names_every_command() -> None:
    text = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*) \|", text.partition("## Conventions")[0], re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == sorted(COMMANDS)


DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
named = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


@named
def test_every_file_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    files = re.findall(
        r"`((?:hpcprof|templates|site_configs|examples|docs|benchmarks|tests)/[\w./-]*)`", text
    )
    for path in (p for p in files if "NAME" not in p):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"\]\(([\w./-]+)(?:#[\w-]*)?\)", text):
        assert (document.parent / path).exists(), path


def find_command(words: list[str]) -> click.Command:
    """Take the words off the front that name a command, and return it."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and words[0] in command.list_commands(CONTEXT):
        inner = command.get_command(CONTEXT, words.pop(0))
        assert inner is not None
        command = inner
    return command


@named
def test_every_command_of_a_document_has_the_options_given_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"\bhpcprof ([a-z][^`\n#|]*)", text):
        words = line.partition(" -- ")[0].split()
        command = find_command(words)
        known = {flag for parameter in command.params for flag in parameter.opts} | {"--help"}
        given = {word.partition("=")[0] for word in words if re.match("--?[a-zA-Z]", word)}
        assert command is cli or given <= known, line


@named
def test_every_command_at_a_prompt_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for name in re.findall(r"^\$ hpcprof ([a-z][\w-]*)", text, re.MULTILINE):
        assert name in COMMANDS


@pytest.mark.parametrize("name", [name for name in PROFILERS if PROFILERS[name].settings])
def test_every_option_of_a_profiler_is_documented_with_its_default(name: str) -> None:
    text = (ROOT / "docs/reference/profilers.md").read_text(encoding="utf-8")
    section = text[text.index(f"\n## {name}:") :].split("\n## ")[1]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]*?) ?\|", section, re.MULTILINE))
    assert rows == {key: setting.default for key, setting in PROFILERS[name].settings.items()}


def test_every_table_of_the_store_is_documented() -> None:
    text = (ROOT / "docs/reference/results.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", text, re.MULTILINE))
    for name, table in METADATA.tables.items():
        if not name.startswith("analysis_"):
            assert rows[name].split(", ") == [column.name for column in table.columns]


@pytest.mark.parametrize("path", sorted((ROOT / "docs/how-to").glob("*.md")), ids=lambda path: path.stem)
def test_a_how_to_begins_with_what_it_needs_and_how_long_it_takes(path: Path) -> None:
    _, empty, needs = path.read_text().splitlines()[:3]
    assert (empty, needs[:11], needs[-1]) == ("", "*You need: ", "*")
    assert re.search(r"minutes?|hour", needs)
