"""Tables in terminals of several widths."""

from __future__ import annotations

import pytest
from rich.console import Console

from hpcprof.analysis.framework.outcome import Row
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
from hpcprof.report.terminal import main_table, whole_table

BREAKDOWN = ANALYSES["breakdown"]
ROW: Row = {column.name: 12.5 for column in BREAKDOWN.columns} | {"rank": 0, "span_ns": 123_456_789}
MAIN = ("rank", "span_ns", "compute_pct", "exposed_comm_pct", "exposed_mem_pct", "idle_pct")


def printed(width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as output:
        console.print(main_table(BREAKDOWN, [ROW], MAIN, width).table)
    return [line.rstrip() for line in output.get().splitlines()]


def test_a_wide_terminal_has_every_header_on_one_line() -> None:
    assert printed(100) == [
        "Rank      Span  Compute (%)  Exposed comm. (%)  Exposed memory (%)  Idle (%)",
        "   0  123.5 ms         12.5               12.5                12.5      12.5",
    ]


def test_a_narrow_terminal_breaks_headers_before_it_leaves_columns_out() -> None:
    assert printed(60) == [
        "                Compute    Exposed     Exposed  Idle",
        "Rank      Span      (%)  comm. (%)  memory (%)   (%)",
        "   0  123.5 ms     12.5       12.5        12.5  12.5",
    ]


@pytest.mark.parametrize(("width", "columns"), [(60, 6), (40, 4), (20, 2), (1, 1)])
def test_the_last_columns_are_left_out_where_they_do_not_fit(width: int, columns: int) -> None:
    assert main_table(BREAKDOWN, [ROW], MAIN, width).keys == MAIN[:columns]


def test_all_columns_are_shown_where_they_fit_and_the_main_ones_elsewhere() -> None:
    assert whole_table(BREAKDOWN, [ROW], MAIN, 200).keys == tuple(ROW)
    assert whole_table(BREAKDOWN, [ROW], MAIN, 100).keys == MAIN
    assert whole_table(BREAKDOWN, [ROW | {"idle_pct": None}], MAIN, 100).keys == MAIN[:-1]


def test_a_kernel_takes_one_line_though_its_signature_has_short_words() -> None:
    kernels = ANALYSES["kernels"]
    row: Row = dict.fromkeys(column.name for column in kernels.columns)
    rows = [
        {**row, "name": f"void {name}<(type)12, 128>(char const*, {'int, ' * 30}int)", "total_ns": 5_000}
        for name in ("multiply", "normalize")
    ]
    console = Console(width=60)
    with console.capture() as output:
        console.print(main_table(kernels, rows, ("name", "total_ns"), 60).table)
    lines = [" ".join(line.split()) for line in output.get().splitlines()]
    assert lines == ["Name Total", "multiply<12, 128> 5.000 µs", "normalize<12, 128> 5.000 µs"]
    # Tensile's names have no brackets.
    tensile = [{**row, "name": f"Cijk_Ailk_Bljk_{'GLVWA4_' * 30}{end}", "total_ns": 5_000} for end in "ab"]
    with console.capture() as output:
        console.print(main_table(kernels, tensile, ("name", "total_ns"), 60).table)
    assert len(output.get().splitlines()) == 3


@pytest.mark.parametrize("width", [60, 50, 40])
def test_names_of_metrics_break_between_their_words(width: int) -> None:
    compare = ACROSS_RUNS["compare"]
    metrics = ("exposed_communication_pct", "max_memory_allocated_bytes")
    row: Row = dict.fromkeys(column.name for column in compare.columns)
    rows = [{**row, "metric": name, "a": 12.3, "b": 13.4, "verdict": "inconclusive"} for name in metrics]
    console = Console(width=width)
    with console.capture() as output:
        console.print(main_table(compare, rows, ("metric", "a", "b", "verdict"), width).table)
    lines = output.get().splitlines()
    words = [word for line in lines for word in line.split()]
    assert "communication" in "".join(words) and not any("…" in word for word in words)
    assert {"communication", "allocated"} <= {*words}
    assert max(map(len, lines)) <= width
