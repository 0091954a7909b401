"""Declarations: the slowdown of kernels while communication runs."""

from hpcprof.analysis.framework.declaration import (
    IN_RANGES,
    OPERATIONS,
    RANGES,
    SHAPES,
    Activity,
    Events,
    Scope,
    declare,
)

_RATIO = (
    "alone_n alone_med_ns:float overlapped_n overlapped_med_ns:float "
    "slowdown:float ci_low:float ci_high:float"
)
_MAIN_COLUMNS = "rank name overlapped_n overlapped_med_ns slowdown ci_low ci_high"

ANALYSES = (
    declare(
        "slowdown",
        "Kernel slowdown while communication runs",
        f"rank name:text grid:text block:text {_RATIO}",
        _MAIN_COLUMNS,
        70,
        function="slowdown.within_run:slowdown",
        events=Events(OPERATIONS | RANGES, fields=SHAPES),
        about=Activity.GPU,
        first_rank_only=True,
        memory_heavy=True,
    ),
    declare(
        "slowdown_pairs",
        "Kernel slowdown against runs without communication",
        f"rank name:text grid:text block:text {_RATIO} overlap_pct:float",
        _MAIN_COLUMNS,
        scope=Scope.PAIR,
        function="slowdown.against_baseline:slowdown_pairs",
        events=Events(IN_RANGES, fields=SHAPES),
    ),
    declare(
        "slowdown_by_overlap",
        "Kernel slowdown by family and overlap",
        f"rank family:text covered:text overlap_pct:float {_RATIO}",
        "rank family covered overlap_pct overlapped_n slowdown ci_low ci_high",
        scope=Scope.PAIR,
        function="slowdown.by_overlap:slowdown_by_overlap",
        events=Events(IN_RANGES, fields=SHAPES),
    ),
)
