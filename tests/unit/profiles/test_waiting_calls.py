"""The names of API calls tell the kinds of synchronizations."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.profiles.timeline import NO_CORRELATION, NO_NAME, ApiCalls, SyncKind
from hpcprof.profiles.waiting_calls import QUERY, UNKNOWN, kinds_by_call


def calls(*rows: tuple[int, int, int]) -> ApiCalls:
    """Build calls from their processes, correlation ids and names."""
    process, correlation, name = np.array(rows, np.int64).reshape(-1, 3).T
    zeros = np.zeros(len(rows), np.int64)
    return ApiCalls(zeros, zeros, process, zeros, name, correlation)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaStreamSynchronize_v3020", SyncKind.STREAM),
        ("cudaStreamSynchronize_ptsz_v7000", SyncKind.STREAM),
        ("cuStreamSynchronize", SyncKind.STREAM),
        ("cudaDeviceSynchronize", SyncKind.DEVICE),
        ("cuCtxSynchronize", SyncKind.DEVICE),
        ("cudaThreadSynchronize_v3020", SyncKind.DEVICE),
        ("cudaEventSynchronize_v3020", SyncKind.EVENT),
        ("cuEventSynchronize", SyncKind.EVENT),
        ("block_until_ready", SyncKind.EVENT),
        ("CommonPjRtBuffer::Await", SyncKind.EVENT),
        ("cudaStreamWaitEvent_v3020", SyncKind.STREAM_WAIT),
        ("cuStreamWaitEvent_ptsz", SyncKind.STREAM_WAIT),
        ("cudaEventQuery_v3020", QUERY),
        ("cuStreamQuery", QUERY),
        ("cudaMemcpy_v3020", UNKNOWN),
        ("cudaStreamSynchronizer", UNKNOWN),
        ("my_cudaEventQuery", UNKNOWN),
    ],
)
def test_a_name_tells_the_kind_in_all_its_versions(name: str, kind: int) -> None:
    ones = np.ones(1, np.int64)
    assert kinds_by_call(ones, ones, calls((1, 1, 0)), [name]).tolist() == [kind]


def test_a_call_is_found_by_its_process_and_correlation() -> None:
    names = ["cudaEventQuery", "cudaStreamSynchronize", "cudaLaunchKernel"]
    table = calls((1, 5, 0), (2, 5, 1), (2, 6, 2), (2, NO_CORRELATION, 1), (2, 7, NO_NAME))
    process = np.array([2, 1, 2, 2, 2, 3])
    correlation = np.array([5, 5, 6, NO_CORRELATION, 7, 5])
    found = kinds_by_call(process, correlation, table, names).tolist()
    assert found == [SyncKind.STREAM, QUERY, *[UNKNOWN] * 4]


def test_a_telling_call_inside_one_that_does_not_tell_decides() -> None:
    ones = np.ones(1, np.int64)
    table = calls((1, 1, 0), (1, 1, 1))
    for names in (["cudaMemcpy", "cuStreamSynchronize"], ["cuStreamSynchronize", "cudaMemcpy"]):
        assert kinds_by_call(ones, ones, table, names).tolist() == [SyncKind.STREAM]
