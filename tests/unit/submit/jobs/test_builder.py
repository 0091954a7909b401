"""Jobs are checked before they are submitted."""

from __future__ import annotations

from typing import Any

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.sites.files import load_site
from tests.jobs import make_job

LOCAL = load_site("local")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {},
            r"nothing to run: .*after -- \(--script and --template need one too\)",
        ),
        ({"workload": "sequence-paralel"}, "unknown workload .*did you mean 'sequence-parallel'"),
        (
            {"arguments": ["x"], "profiler": "nsight"},
            "unknown profiler 'nsight'.*ncu, none, nsys, rocprofv3, scorep, scorep-preload, torch",
        ),
        ({"arguments": ["x"], "nodes": 2}, "--nodes 2: site local is this machine alone"),
        ({"arguments": ["x"], "queue": "debug"}, "--queue debug: site local has no batch system"),
        ({"arguments": ["x"], "account": "abc"}, "--account abc: site local has no batch system"),
        ({"arguments": ["x"], "options": {"qos": "a"}}, "unknown option 'qos' of site local"),
        ({"arguments": ["x"], "walltime": "5"}, "walltime '5' is minutes to Slurm"),
        ({"arguments": ["x"], "profile_ranks": "3"}, "there is no rank 3"),
    ],
)
def test_a_wrong_value_is_refused_and_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_job(LOCAL, **options)


def test_a_sequence_that_ranks_do_not_divide_is_refused_with_the_nearest_valid_lengths() -> None:
    with pytest.raises(UsageError, match=r"999.*1002"):
        make_job(
            LOCAL, workload="sequence-parallel", ranks_per_node=3, arguments=["--sequence-length", "1000"]
        )


def test_a_job_without_a_name_is_named_by_what_it_runs() -> None:
    assert make_job(LOCAL, arguments=["/usr/bin/env", "true"]).name == "true"
    assert make_job(LOCAL, workload="sequence-parallel").name == "sequence-parallel"


def test_no_rank_is_profiled_without_a_profiler() -> None:
    assert make_job(LOCAL, arguments=["x"], profile_ranks="all").profiled_ranks == []
