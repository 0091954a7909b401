"""Requests of an agent that are to have no limit, or to end the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

from hpcprof.cli.main import cli

_LONG = "a" * 100_000


@pytest.mark.parametrize("budget", ["nan", "NaN", "-nan", "inf", "-inf", "infinity", "1e999", "0", "-1", "x"])
def test_a_budget_is_a_positive_number_with_an_end(budget: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("program: [hostname]\n")
    asked = ["mcp", "--runs-dir", str(tmp_path), "--allow-submit", str(job), f"--budget={budget}"]
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 2 and "--budget" in done.output


@pytest.mark.parametrize("percent", ["nan", "inf"])
def test_thresholds_of_other_commands_are_finite_too(percent: str, tmp_path: Path) -> None:
    for command in (["compare", "--threshold"], ["report", "--fail-on-regression"]):
        done = CliRunner().invoke(cli, [*command, percent])
        assert done.exit_code == 2


def server_and_error(runs: Path) -> tuple[Any, type[Exception]]:
    """Return a server of runs and the error of its tools; to import mcp takes each process 2 s."""
    from mcp.server.mcpserver.exceptions import ToolError

    from hpcprof.mcp.server import make_server

    return make_server(runs, None, None), ToolError


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("explain", {"run": _LONG}),
        ("explain", {"run": "a" * 300}),
        ("explain", {"run": "\N{SNOWMAN}" * 100}),
        ("explain", {"run": "../" * 2000}),
        ("explain", {"run": "a\0b"}),
        ("whatif", {"run": _LONG, "changes": []}),
        ("whatif", {"run": "a", "changes": ["rank:0*1"] * 100_000}),
        ("compare", {"run": "a", "baselines": [_LONG]}),
        ("compare", {"run": "a", "baselines": ["b" * 300]}),
        ("history", {"run": "a", "metric": _LONG}),
        ("query", {"run": _LONG, "sql": "SELECT 1"}),
        ("events_around", {"run": "a" * 300, "rank": 0, "step": 1}),
        ("log_excerpt", {"run": "a" * 300}),
        ("find_runs", {"since": "9" * 10_000 + "d"}),
        ("find_runs", {"search": "a" * 30_000}),
        ("history", {"run": "x" * 5000, "metric": "\0"}),
        ("log_excerpt", {"run": "a", "text": "(a+)+$" * 4000}),
    ],
)
def test_a_hostile_request_is_answered_in_a_sentence(
    tool: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    server, tool_error = server_and_error(tmp_path)
    with pytest.raises(tool_error) as raised:
        anyio.run(lambda: server.call_tool(tool, arguments))
    said = str(raised.value)
    assert "This cannot be answered." in said and len(said) <= 9000, said[:300]


def test_a_comparison_with_nothing_says_so(tmp_path: Path) -> None:
    server, tool_error = server_and_error(tmp_path)
    with pytest.raises(tool_error, match="name at least one run to compare with"):
        anyio.run(lambda: server.call_tool("compare", {"run": "a", "baselines": []}))
