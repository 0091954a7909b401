"""Evidence in words."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from hpcprof.analysis.explain.cause import Candidate
from hpcprof.analysis.explain.causes.exposed_communication import EXPOSED_COMMUNICATION
from hpcprof.analysis.explain.causes.host_bound import HOST_BOUND
from hpcprof.analysis.explain.causes.host_sync import HOST_SYNC
from hpcprof.analysis.explain.causes.serial_section import SERIAL_SECTION
from hpcprof.analysis.explain.evidence import evidence_of, in_words, plain_figure, with_distinct_evidence
from hpcprof.analysis.explain.explanation import Evidence
from tests.unit.explanations import finding

MS = 1_000_000

TABLES = {
    "idle_causes": pd.DataFrame(
        {
            "rank": [0, 1, 1],
            "cause": ["host", "host", "sync"],
            "range": ["data", "data", None],
            "api": ["", "cudaMalloc", "cudaStreamSynchronize"],
            "idle_ns_per_step": [13 * MS, 13 * MS, 2 * MS],
        }
    ),
    # Waits are unknown: a column of floats beside integers.
    "step_account": pd.DataFrame(
        {"rank": [0, 0], "step": [3, 4], "idle_ns": [5 * MS, 7 * MS], "wait_for_peer_ns": [float("nan")] * 2}
    ),
    "kernels": pd.DataFrame(
        {
            "rank": [0],
            "name": ["void at::native::add<float>(int)"],
            "instances": [1200],
            "total_ns": [201_500_000],
            "avg_ns": [167_917.0],
        }
    ),
    "skew_summary": pd.DataFrame({"rank": [1], "lateness_p50_ns": [11 * MS]}),
    "mpi_waits": pd.DataFrame(
        {
            "rank": [0],
            "call": ["MPI_Allreduce"],
            "pattern": ["late rank"],
            "wait_ns": [157 * MS],
            "delaying_rank": [2],
            "delaying_range": ["compute"],
        }
    ),
}


@pytest.mark.parametrize(
    ("evidence", "sentence"),
    [
        (
            Evidence("idle_causes", 0, "idle_ns_per_step", 13 * MS),
            "rank 0: the GPU is idle for 13.00 ms of a step while the host is in data",
        ),
        (
            Evidence("idle_causes", 1, "idle_ns_per_step", 13 * MS),
            "rank 1: the GPU is idle for 13.00 ms of a step while the host is in data (cudaMalloc)",
        ),
        (
            Evidence("idle_causes", 1, "idle_ns_per_step", 2 * MS),
            "rank 1: the GPU is idle for 2.000 ms of a step after the host has waited for it outside all "
            "ranges (cudaStreamSynchronize)",
        ),
        (Evidence("step_account", 0, "idle_ns", 7 * MS), "rank 0: the GPU is idle for 7.000 ms of step 4"),
        (
            Evidence("kernels", 0, "total_ns", 201_500_000),
            "rank 0: 1,200 runs of add<float>, 201.5 ms in all",
        ),
        (
            Evidence("kernels", 0, "instances", 1200),
            "rank 0: 1,200 runs of add<float>, 167.9 µs each on average",
        ),
        (
            Evidence("skew_summary", 1, "lateness_p50_ns", 11 * MS),
            "rank 1: its lateness is 11.00 ms in a median step",
        ),
        (
            Evidence("mpi_waits", 0, "wait_ns", 157 * MS),
            "rank 0: it waits 157.0 ms of the whole capture in MPI_Allreduce for rank 2 (compute): late rank",
        ),
    ],
)
def test_a_figure_is_a_sentence_about_its_row(evidence: Evidence, sentence: str) -> None:
    assert in_words(TABLES, evidence) == sentence


def test_a_program_without_work_on_a_gpu_has_none_that_is_idle() -> None:
    idle = Evidence("idle_causes", 0, "idle_ns_per_step", 13 * MS)
    said = "rank 0: no operator and no collective runs for 13.00 ms of a step while the host is in data"
    assert in_words(TABLES, idle, on_host=True) == said
    of_step = in_words(TABLES, Evidence("step_account", 0, "idle_ns", 7 * MS), on_host=True)
    assert of_step == "rank 0: no operator and no collective runs for 7.000 ms of step 4"
    late = Evidence("skew_summary", 1, "lateness_p50_ns", 11 * MS)
    assert in_words(TABLES, late, on_host=True) == in_words(TABLES, late)


def test_a_figure_without_a_sentence_of_its_own_keeps_the_name_of_its_column() -> None:
    unknown = Evidence("roofline", None, "bound_ns", 2 * MS)
    assert in_words(TABLES, unknown) == "bound of 2.000 ms in roofline"
    assert in_words(TABLES, Evidence("other", 3, "verdict", "late")) == "rank 3: verdict of late in other"


def test_a_figure_whose_row_is_gone_is_still_said() -> None:
    gone = Evidence("step_account", 0, "idle_ns", 9 * MS)
    assert in_words(TABLES, gone) == "rank 0: idle of 9.000 ms in step_account"
    assert plain_figure(gone) == "rank 0: idle of 9.000 ms in step_account"


@pytest.mark.parametrize(
    ("of_mpi", "shown"), [(False, ["step_account"]), (True, ["mpi_calls", "step_account"])]
)
def test_barriers_of_mpi_are_no_evidence_about_communication_of_gpus(of_mpi: bool, shown: list[str]) -> None:
    barrier = pd.DataFrame({"rank": [0], "call": ["MPI_Barrier"], "transfer_ns": [98 * MS]})
    account = pd.DataFrame({"rank": [0], "step": [3], "exposed_comm_ns": [4 * MS]})
    candidate = Candidate(EXPOSED_COMMUNICATION, "backward", (0,), lambda times: times, 4.0 * MS)
    tables = {"mpi_calls": barrier, "step_account": account}
    found = evidence_of(tables, candidate, (0,), with_mpi=of_mpi)
    assert [one.analysis for one in found] == shown


def test_waits_for_another_place_and_the_start_of_mpi_are_no_evidence() -> None:
    """Rank 0 comes late to the first collective, which is no serial work in its checkpoint."""
    waits = pd.DataFrame({"rank": [1, 2], "delaying_rank": [0, 0], "wait_ns": [700 * MS, 80 * MS]})
    waits["delaying_range"] = [None, "between MPI_Gatherv and MPI_Barrier"]
    calls = pd.DataFrame({"rank": [0, 0], "call": ["MPI_Init", "MPI_Alltoall"]})
    tables = {"mpi_waits": waits, "mpi_calls": calls.assign(transfer_ns=[900 * MS, 4 * MS])}
    tables |= {name: pd.DataFrame() for name in ("os_calls", "step_account")}
    for cause, where, value in (
        (SERIAL_SECTION, "between MPI_Gatherv and MPI_Barrier", 80),
        (EXPOSED_COMMUNICATION, "", 4),
    ):
        candidate = Candidate(cause, where, (0,), lambda times: times, 4.0 * MS)
        figures = evidence_of(tables, candidate, (0,), with_mpi=True)
        assert [figure.value for figure in figures] == [value * MS]


def test_a_cause_in_several_places_is_shown_by_idle_time_in_one_of_them() -> None:
    idle = pd.DataFrame({"rank": [0, 0, 0], "cause": ["host"] * 3, "range": ["data", "step", "forward"]})
    tables = {
        "idle_causes": idle.assign(idle_ns_per_step=[9 * MS, 3 * MS, MS]),
        "step_account": pd.DataFrame(),
    }
    where = "allreduce 0, model/forward, step"
    candidate = Candidate(HOST_BOUND, where, (0,), lambda times: times, 4.0 * MS)
    figures = evidence_of(tables, candidate, (0,), with_mpi=True)
    assert [figure.value for figure in figures] == [3 * MS, MS]


def test_a_finding_does_not_repeat_the_evidence_of_an_earlier_one() -> None:
    first, second, third = (Evidence("step_account", 0, "idle_ns", value) for value in (3, 2, 1))
    given = [replace(finding(9), evidence=items) for items in ((first, second), (second, third), (first,))]
    distinct = [item.evidence for item in with_distinct_evidence(given)]
    assert distinct == [(first, second), (third,), (first,)]


def test_of_rows_with_one_value_the_evidence_names_that_of_its_cause() -> None:
    """Rebuilt from a public export of Rodinia's gaussian: three copies in each direction."""
    operation = ["[CUDA memcpy Host-to-Device]", "[CUDA memcpy Device-to-Host]"]
    copies = {"rank": [0, 0], "operation": operation, "count": [3, 3], "total_ns": [31 * MS, 28 * MS]}
    said = in_words({"memops": pd.DataFrame(copies)}, Evidence("memops", 0, "count", 3), cause=HOST_SYNC)
    assert said == "rank 0: 3 operations [CUDA memcpy Device-to-Host], 28.00 ms in all"
