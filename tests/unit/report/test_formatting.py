"""Headers and values of the tables."""

from __future__ import annotations

import re

import pytest

from hpcprof.analysis.framework.declaration import Analysis
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
from hpcprof.report.formatting import cell, format_value, header, metric_label, thread_names
from hpcprof.study import slowdown_tables

EVERY = [*ANALYSES.values(), *ACROSS_RUNS.values()]
TABLES = {a.name: [column.name for column in a.columns] for a in EVERY}
TABLES["study"] = [column.name for column in slowdown_tables.COLUMNS]
UNITS = ("%", "ns", "µs", "ms", "s", "B", "kB", "MB", "GB", "GB/s", "FLOP/s")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("pct_last", "Last (%)"),
        ("in_situ_ns", "In situ"),
        ("algbw_gbps", "Effective bandwidth"),
        ("busbw_p50_gbps", "Bus bandwidth p50"),
        ("p50_ns", "p50"),
        ("exposed_comm_pct", "Exposed comm. (%)"),
        ("exposed_comm_ns", "Exposed comm."),
        ("kernel_time_us", "Kernel time (µs)"),
        ("idle_time_pctg", "Idle time (%)"),
        ("num_calls", "Calls"),
        ("pid", "PID"),
    ],
)
def test_a_header_is_written_as_people_write_it(key: str, expected: str) -> None:
    assert header(key) == expected


@pytest.mark.parametrize("name", TABLES)
def test_the_headers_of_every_analysis_are_words_and_differ(name: str) -> None:
    headers = [header(key) for key in TABLES[name]]
    assert len(set(headers)) == len(headers)
    for text in headers:
        assert re.fullmatch(r"(p\d+|n|[A-Z])[A-Za-z0-9./ -]*( \((%|µs|A|B)\))?", text), text
        assert not {"ns", "us", "pct", "pctg", "gbps"} & set(text.lower().split()), text


@pytest.mark.parametrize("name", TABLES)
def test_a_unit_is_in_the_header_or_in_the_cell_but_not_in_both(name: str) -> None:
    for key in TABLES[name]:
        in_header = header(key).endswith(("(%)", "(µs)"))
        in_cell = cell(key, 12.5).split()[-1] in UNITS
        assert not (in_header and in_cell), key


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("time_pct", 12.34, "12.3"),
        ("pct_of_bound", 85.0, "85.0"),
        ("kernel_time_us", 1234, "1,234"),
        ("p50_ns", 3_649_123, "3.649 ms"),
        ("bytes", 134_217_728, "134.2 MB"),
        ("busbw_gbps", 285.8485, "285.8 GB/s"),
        ("achieved_flops", 4.536e13, "45.36 TFLOP/s"),
        ("ratio", 1.23456, "1.235"),
        ("usual", 0.0456, "0.046"),
        ("then", 45.62, "45.6"),
        ("count", 1024, "1,024"),
        ("write_s", 0.0456, "0.046"),
        ("write_s", 12.571, "12.6"),
        ("peak_per_s", 4.8e12, "4,800,000,000,000.0"),
        ("count", None, "–"),
        ("name", "clear \x1b[2J", r"clear \x1b[2J"),
    ],
)
def test_a_cell_holds_its_unit_where_the_header_does_not(key: str, value: object, expected: str) -> None:
    assert cell(key, value) == expected


def test_outside_a_table_every_value_holds_its_unit() -> None:
    assert format_value("overlap_pct", 85.04) == "85.0 %"
    assert [format_value("p_value", value) for value in (1.0, 0.0123, 2e-5)] == ["1", "0.012", "< 0.001"]
    assert format_value("kernel_time_us", 3) == "3 µs"


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("step_ns", "step"),
        ("own_elapsed_per_step_ns", "elapsed per step, noted by the program"),
        ("gpu_memory_peak_bytes", "GPU memory peak"),
        ("cpu_wait_s", "CPU wait"),
        ("phase data_load p50_ns", "phase data_load p50"),
    ],
)
def test_a_metric_has_a_label_in_words(metric: str, label: str) -> None:
    assert metric_label(metric) == label


def test_no_two_analyses_have_one_title() -> None:
    titles: dict[str, Analysis] = {analysis.title: analysis for analysis in EVERY}
    assert len(titles) == len({analysis.name for analysis in EVERY})


def test_numbers_that_no_system_gives_a_thread_are_not_shown() -> None:
    made_up = [(1 << 30) - 1, 1 << 31]
    assert [*thread_names([7, *made_up]).values()] == ["thread 7", "unnamed thread", "unnamed thread 2"]
