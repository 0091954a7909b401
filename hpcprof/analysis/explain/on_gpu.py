"""Explains a run whose profiles have work of GPUs and no launch of it, as ``rocprofv3 --kernel-trace`` has.

The GPU's own time tells exposed communication and the largest kernel. Why the GPU is idle, and what a change
saves, takes the calls of the host.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.evidence import Tables, largest
from hpcprof.analysis.explain.explanation import IDLE, Finding, MainKernel, NotJudged, unpriced_finding
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.explain.whole_run import rest_of_capture
from hpcprof.analysis.steps.run_step import account_of_all_steps
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.common.units import format_ns
from hpcprof.profiles.columns.unique import name_matches
from hpcprof.profiles.kernel_names import plain_name
from hpcprof.profiles.losses import LAUNCH_KINDS
from hpcprof.profiles.timeline import Gpu, Timeline

_MIN_COMMUNICATION_PCT, _MIN_IDLE_PCT = 10.0, 25.0
"""Minimum shares of a step for exposed communication to be a finding, and for a sentence on idle time."""

MIN_MAIN_KERNEL_PCT = 30.0
"""Minimum share of a step, in percent, of the kernels of one name for the summary to name them."""

_NCU_UNSUPPORTED = re.compile("AMD|HIP|gfx|roc|Intel|unitrace|TPU|ascend")
"""Names of profilers and GPUs whose kernels Nsight Compute does not measure."""

_OTHER_RUNTIMES = re.compile("hip[A-Z]|hsa_|ze[A-Z]|ur[A-Z]|acl[a-z]")
"""Calls of the runtimes of other GPUs, which tell of a GPU without a name."""

_MOSTLY_COMPUTE_PCT = 50.0
"""Minimum share of a step for compute to be most of it, in percent."""

_REMEDY = (
    "Overlap it with compute: start it as soon as its data is ready, asynchronously on a stream of its own. "
    "Part of it may be waiting for other ranks, which only the profiles of all ranks show."
)


def explain_on_gpu(
    inputs: ExplainInputs, first: Timeline, findings: Sequence[Finding], in_steps_ns: float
) -> tuple[list[Finding], MainKernel | None, tuple[NotJudged, ...]]:
    """Return the findings with those of the GPU's own time, its main kernel, and what could not be judged.

    ``first`` is the timeline of the first rank, and ``in_steps_ns`` the time of all steps, 0 without steps.
    Where GPUs mostly compute, the missing calls of the host are no finding: the reason tells of them.
    """
    tables = inputs.tables
    kernel = _main_kernel(tables, first)
    complete = {loss.kind for loss in inputs.losses_of_all} <= LAUNCH_KINDS and not inputs.coverage
    if complete and _share_pct(_account(tables)[0], "compute_ns") >= _MOSTLY_COMPUTE_PCT:
        findings = [item for item in findings if item.cause != Cause.CAPTURE_INCOMPLETE]
    notes = [*_idle_gpu(tables)]
    if in_steps_ns:
        notes += rest_of_capture(tables["device_breakdown"], in_steps_ns, steps_of(first).source)
    return [*_communication(tables, inputs.ranks), *findings], kernel, tuple(notes)


def _communication(tables: Tables, ranks: tuple[int, ...]) -> Iterator[Finding]:
    """Yield the finding about communication that no compute hides, if it is much of a step or capture."""
    account, whole = _account(tables)
    time, share = account["exposed_comm_ns"], _share_pct(account, "exposed_comm_ns")
    if share < _MIN_COMMUNICATION_PCT:
        return
    analysis = "step_account" if len(tables["step_account"]) else "breakdown"
    evidence = [(item, "") for item in largest(analysis, "exposed_comm_ns", tables[analysis])[:1]]
    kernels = _times_of_kernels(tables["kernels"], "comm")
    most = f", most in {kernels.idxmax()}" if len(kernels) else ""
    where = f"{whole}, of which it is {share:.0f} % ({format_ns(time)}{most})"
    yield unpriced_finding(Cause.EXPOSED_COMMUNICATION, ranks, where, evidence, _REMEDY, "medium")


def _idle_gpu(tables: Tables) -> Iterator[NotJudged]:
    """Yield the idle time of the GPU, if it is much; nothing tells its cause."""
    account, whole = _account(tables)
    share = _share_pct(account, "idle_ns")
    if share >= _MIN_IDLE_PCT:
        time = format_ns(account["idle_ns"])
        reason = f"the GPU is idle for {time} of {whole} ({share:.0f} %), and only calls of the host tell why"
        yield NotJudged(IDLE, reason)


def _main_kernel(tables: Tables, first: Timeline) -> MainKernel | None:
    """Return the kernel with most of the time, if it is much; ``first`` is the timeline of the first rank.

    Its share of the compute of a step is taken to be that of the capture.
    """
    kernels = _times_of_kernels(tables["kernels"], "comp")
    if not kernels.sum():
        return None
    share = _share_pct(_account(tables)[0], "compute_ns") * float(kernels.max() / kernels.sum())
    name = str(kernels.idxmax())
    measurable = measured_by_ncu(name, first, first.origin.gpus)
    return MainKernel(name, round(share, 3), "", measurable) if share >= MIN_MAIN_KERNEL_PCT else None


def measured_by_ncu(kernel: str, timeline: Timeline, gpus: Iterable[Gpu]) -> bool:
    """Return whether Nsight Compute measures a kernel of a timeline, which ran on some GPUs."""
    device = " ".join([timeline.origin.kind, *(gpu.name for gpu in gpus)])
    other = name_matches(timeline, timeline.calls.name, lambda name: bool(_OTHER_RUNTIMES.match(name)))
    return not (kernel.startswith("CUDA graph ") or _NCU_UNSUPPORTED.search(device) or other.any())


def _account(tables: Tables) -> tuple[dict[str, float], str]:
    """Return the mean time of a step, or of the capture without steps, with its parts; and its name."""
    if len(tables["step_kinds"]):
        return account_of_all_steps(tables["step_kinds"]), "a step"
    breakdown = tables["breakdown"]
    parts = {"elapsed_ns": "span_ns"} | {name: name for name in ("compute_ns", "exposed_comm_ns", "idle_ns")}
    means = {
        name: float(breakdown[column].astype(float).mean()) if len(breakdown) else 0.0
        for name, column in parts.items()
    }
    return means, "the capture"


def _share_pct(account: dict[str, float], part: str) -> float:
    return 100 * account[part] / max(account["elapsed_ns"], 1.0)


def _times_of_kernels(kernels: pd.DataFrame, class_name: str) -> "pd.Series[float]":
    if not len(kernels):
        return pd.Series(dtype=float)
    rows = kernels[kernels["class"] == class_name]
    times: pd.Series[float] = rows["total_ns"].astype(float).groupby(rows["name"].map(plain_name)).sum()
    return times
