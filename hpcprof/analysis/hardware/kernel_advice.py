"""The blocks of launches on the multiprocessors of the GPU, and the advice of Nsight Compute's rules."""

from typing import Any

from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows
from hpcprof.analysis.hardware.kernel_counters import OCCUPANCY, first_metric
from hpcprof.profiles.kernel_report import Advice, KernelReport, MeasuredKernel

_WAVES = "launch__waves_per_multiprocessor"
_LIMIT = "launch__occupancy_limit_"
_RESOURCES = {
    "blocks": "blocks of an SM",
    "registers": "registers",
    "shared_mem": "shared memory",
    "warps": "warps of an SM",
    "barriers": "barriers",
}


def ncu_occupancy(report: KernelReport) -> Outcome:
    """List, for each launch, its waves, the blocks that an SM holds at once and what limits these.

    A value that was not collected is None.
    """
    rows = [_fill(kernel) for kernel in report.kernels]
    measured = [row for row in rows if any(value is not None for value in [*row.values()][2:])]
    if not measured:
        file = report.origin.path.name
        return no_rows(f"no occupancy in {file}; ncu collects it in the sections LaunchStats and Occupancy")
    return Outcome(columns_of(measured))


def _fill(kernel: MeasuredKernel) -> dict[str, object]:
    metrics = kernel.metrics
    limits = {text: metrics[_LIMIT + name] for name, text in _RESOURCES.items() if _LIMIT + name in metrics}
    least = min(limits.values(), default=None)
    waves = metrics.get(_WAVES)
    percent = {name: first_metric(metrics, alternatives) for name, alternatives in OCCUPANCY.items()}
    return {
        "id": kernel.id,
        "name": kernel.name,
        "waves_per_sm": None if waves is None else round(waves, 2),
        "blocks_per_sm": None if least is None else round(least),
        "limited_by": ", ".join(text for text, limit in limits.items() if limit == least) or None,
        **{name: None if value is None else round(value, 2) for name, value in percent.items()},
    }


def ncu_rules(report: KernelReport) -> Outcome:
    """List what ncu's rules advise, one row for each kernel and rule, with the number of its launches.

    The text is that of the launch with the largest estimate; ``speedup_pct`` is None where ncu gives none
    for the whole kernel.
    """
    results: dict[tuple[str, str], list[Advice]] = {}
    for kernel in report.kernels:
        for advice in kernel.advice:
            results.setdefault((kernel.name, advice.rule), []).append(advice)
    rows: list[dict[str, Any]] = []
    for (name, rule), all_advice in results.items():
        most = max(all_advice, key=lambda advice: advice.speedup_pct or 0.0)
        launches = {"name": name, "rule": rule, "count": len(all_advice)}
        rows.append({**launches, "speedup_pct": most.speedup_pct, "advice": most.text})
    if not rows:
        file = report.origin.path.name
        return no_rows(f"no advice of ncu's rules in {file}; reports have it, and ncu --csv --page details")
    rows.sort(key=lambda row: -(row["speedup_pct"] or 0.0))
    return Outcome(columns_of(rows))
