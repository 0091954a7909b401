"""Declarations: the slowdown of kernels while communication runs."""

from __future__ import annotations

from hpcprof.analysis.framework.declaration import (
    IN_RANGES,
    OPERATIONS,
    RANGES,
    SHAPES,
    Activity,
    Analysis,
    Events,
    Scope,
    columns,
)

_RATIO = (
    "alone_n alone_med_ns:float overlapped_n overlapped_med_ns:float "
    "slowdown:float ci_low:float ci_high:float"
)
_MAIN_COLUMNS = ("rank", "name", "overlapped_n", "overlapped_med_ns", "slowdown", "ci_low", "ci_high")

ANALYSES = (
    Analysis(
        "slowdown",
        "Kernel slowdown while communication runs",
        Scope.RANK,
        columns(f"rank name:text grid:text block:text {_RATIO}"),
        "hpcprof.analysis.slowdown.within_run:slowdown",
        events=Events(OPERATIONS | RANGES, fields=SHAPES),
        main_columns=_MAIN_COLUMNS,
        report_position=70,
        about=Activity.GPU,
        first_rank_only=True,
        memory_heavy=True,
    ),
    Analysis(
        "slowdown_pairs",
        "Kernel slowdown against runs without communication",
        Scope.PAIR,
        columns(f"rank name:text grid:text block:text {_RATIO} overlap_pct:float"),
        "hpcprof.analysis.slowdown.against_baseline:slowdown_pairs",
        events=Events(IN_RANGES, fields=SHAPES),
        main_columns=_MAIN_COLUMNS,
    ),
    Analysis(
        "slowdown_by_overlap",
        "Kernel slowdown by family and overlap",
        Scope.PAIR,
        columns(f"rank family:text covered:text overlap_pct:float {_RATIO}"),
        "hpcprof.analysis.slowdown.by_overlap:slowdown_by_overlap",
        events=Events(IN_RANGES, fields=SHAPES),
        main_columns=(
            *("rank", "family", "covered", "overlap_pct", "overlapped_n", "slowdown", "ci_low", "ci_high"),
        ),
    ),
)
