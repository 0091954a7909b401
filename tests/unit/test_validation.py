"""A job against its site, before anything is submitted."""

from __future__ import annotations

from typing import Any

import pytest

from hpcprof.errors import UsageError
from hpcprof.job import Job, make_job
from hpcprof.site import load_site

GIVEN: dict[str, Any] = {
    "arguments": ["x"],
    "account": "me",
    "queue": "debug",
    "options": {"filesystems": "home:eagle"},
}


def polaris(**changes: Any) -> Job:
    return make_job(load_site("polaris"), **{**GIVEN, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"account": ""}, "site polaris requires --account"),
        ({"queue": ""}, "site polaris requires --queue"),
        ({"options": {}}, r"needs the option filesystems .*Valid: home, eagle"),
        ({"options": {"filesystems": "home:grand"}}, r"grand"),
        ({"queue": "debgu"}, "unknown queue 'debgu' of site polaris; did you mean 'debug'"),
        ({"nodes": 3}, "queue debug of polaris takes 1 to 2 nodes, not 3"),
        ({"walltime": "2h"}, "queue debug of polaris takes at most 01:00:00, not 02:00:00"),
        ({"walltime": "2m"}, "queue debug of polaris takes at least 00:05:00, not 00:02:00"),
        ({"queue": "prod", "nodes": 4}, "queue prod of polaris takes 10 to 496 nodes, not 4"),
        (
            {"queue": "prod", "nodes": 10, "walltime": "24h"},
            "no queue behind prod .*small takes at most 03:00:00.*medium takes 25 to 99 nodes",
        ),
        ({"ranks_per_node": 5}, "a node of polaris has 4 GPUs"),
    ],
)
def test_what_polaris_would_refuse_or_lose_is_refused_before(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        polaris(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"queue": "prod", "nodes": 10, "walltime": "3h"},
        {"queue": "prod", "nodes": 100, "walltime": "24h"},
        {"queue": "capacity", "nodes": 4, "walltime": "168h"},
    ],
)
def test_what_polaris_runs_is_accepted(changes: dict[str, Any]) -> None:
    assert polaris(**changes).account == "me"


@pytest.mark.parametrize(("walltime", "nearest"), [("20s", "00:01:00"), ("90s", "00:01:00 or 00:02:00")])
def test_a_walltime_that_slurm_would_round_up_is_refused_with_the_nearest(
    walltime: str, nearest: str
) -> None:
    with pytest.raises(UsageError, match=rf"would round it up; write {nearest}\."):
        make_job(load_site("generic-slurm"), arguments=["x"], walltime=walltime)
