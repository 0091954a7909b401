"""Checks before Dask gets a task."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.results.collect.executors.dask import _check_versions, local_cluster


def node(python: str = "3.11.7", hpcprof: str | None = "1.0") -> dict[str, Any]:
    return {
        "host": {"python": f"{python}.final.0"},
        "packages": {"distributed": "2026.8.0", "hpcprof": hpcprof},
    }


def client(worker: dict[str, Any]) -> Any:
    """Return a client of a cluster with one worker."""
    found = {"client": node(), "workers": {"tcp://node7:4000": worker}}
    return SimpleNamespace(get_versions=lambda packages: found)


def test_workers_with_the_same_versions_are_accepted() -> None:
    _check_versions(client(node("3.11.9")))


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        (node("3.12.1"), r"python 3\.12 \(here 3\.11\)"),
        (node(hpcprof="0.9"), r"hpcprof 0\.9 \(here 1\.0\)"),
        (node(hpcprof=None), r"hpcprof missing \(here 1\.0\)"),
    ],
)
def test_a_worker_with_another_version_is_named(worker: dict[str, Any], says: str) -> None:
    with pytest.raises(HpcprofError, match=f"the Dask worker tcp://node7:4000 has {says}: start the workers"):
        _check_versions(client(worker))


def test_without_dask_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(UsageError, match=r"--executor dask needs pip install 'hpcprof\[dask\]'"),
        local_cluster(2),
    ):
        pass
