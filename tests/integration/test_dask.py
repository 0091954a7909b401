"""Collecting on Dask: real workers in processes of this machine; batch jobs are in ``test_schedulers.py``."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil  # type: ignore[import-untyped]  # Dask brings it
import pytest
from pyarrow import parquet

from hpcprof.common.errors import DamagedInput, HpcprofError, UsageError
from hpcprof.profiles.event_folders import EVENTS
from hpcprof.results.collect.collection import Collected, collect
from hpcprof.results.collect.executors.dask import OnDask, existing_cluster, local_cluster
from hpcprof.results.collect.executors.interface import Executor, Lost, serially
from hpcprof.results.collect.executors.processes import Processes
from hpcprof.results.collect.rank_task import PRELOAD, ProfileTask, RankOutcome, analyze_profile, work_of
from hpcprof.results.collect.run_names import find_known_run
from hpcprof.results.store.store import Store, open_store
from hpcprof.runs.directory import Run, all_runs
from hpcprof.submit.launchers import find_mpiexec
from tests.conftest import INTERRUPTED, Hpcprof
from tests.data.many_ranks import write_all, write_program
from tests.data.parallel_program import Program
from tests.integration.conftest import Database
from tests.integration.test_collect_processes import start_collect
from tests.waiting import until

WorkerPlugin: Any = pytest.importorskip("distributed", reason="there is no Dask").WorkerPlugin
pytestmark = pytest.mark.slow

RANKS = 6
HOST = os.uname().nodename
ONE_THREAD: dict[str, Any] = {
    "n_workers": 1,
    "processes": False,
    "protocol": "tcp",
    "dashboard_address": "127.0.0.1:0",
}
"""A cluster that starts quickly, since its worker is in this process."""


@pytest.fixture(scope="module")
def listening_before() -> set[tuple[str, int]]:
    """The sockets on which this process listened before there was a cluster."""
    return listening(psutil.Process())


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    return {tuple(one.laddr) for one in process.net_connections() if one.status == psutil.CONN_LISTEN}


@pytest.fixture(scope="module")
def dask(listening_before: set[tuple[str, int]]) -> Iterator[OnDask]:
    """A cluster of two workers."""
    with local_cluster(2) as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Profiles of some ranks in a folder that hpcprof did not make."""
    write_all(tmp_path / "profiles", RANKS, 200)
    return tmp_path / "profiles"


def square(number: int) -> int:
    return number * number


def samples_its_threads(_: int) -> bool:
    from dask import config

    return bool(config.get("distributed.worker.profile.enabled"))


def fail_on_three(number: int) -> int:
    if number == 3:
        raise DamagedInput("three is damaged.")
    return number


def fill_the_disk(number: int) -> int:
    with Path("/dev/full").open("w", buffering=1) as file:
        file.write(f"{number}\n")
    return number


def analyze_with_deaths(deaths: Path, deadly: Sequence[int], task: ProfileTask) -> RankOutcome:
    """Analyze a profile, but kill the worker at ``deadly`` ranks, and at the first attempt at rank 4."""
    if task.rank in (4, *deadly):
        died = deaths / f"rank {task.rank}"
        first = not died.exists()
        with died.open("a") as file:
            file.write("x")
        if task.rank in deadly or first:
            os.kill(os.getpid(), signal.SIGKILL)
    return analyze_profile(task)


def with_deaths(dask: OnDask, deaths: Path, deadly: Sequence[int] = ()) -> Executor:
    """Return an executor whose workers are killed while they read certain profiles."""

    def dying(function: Any, tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        reading = function is analyze_profile
        return dask(partial(analyze_with_deaths, deaths, deadly) if reading else function, tasks)

    return dying


def over_mpi(run: Run, store: Store) -> None:
    """Collect on three ranks of MPI."""
    # The mpiexec of mpi4py, whatever the PATH has.
    command = [find_mpiexec() or "", "-n", "3", sys.executable, "-m", "mpi4py.futures", "-m", "hpcprof"]
    words = ["collect", "--executor", "mpi", "--db", str(store.url.database), str(run.path)]
    subprocess.run([*command, *words], check=True, capture_output=True, timeout=480)


def kept_events(run: Run) -> dict[str, Any]:
    """Return the tables of events that a collect kept, by file, and forget them."""
    folder = run.path / EVENTS
    found = {str(path.relative_to(folder)): parquet.read_table(path) for path in folder.rglob("*.parquet")}
    shutil.rmtree(folder)
    return found


@pytest.mark.skipif(find_mpiexec() is None, reason="there is no mpiexec")
def test_one_process_several_mpi_and_dask_with_a_killed_worker_leave_the_same_store_and_events(
    dask: OnDask, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    assert hpcprof("submit", "--site", "local", "--wait", "--", "true").returncode == 0
    (run,) = all_runs(tmp_path / "runs")
    write_program(run.path / "profiles", Program(8, 300, tensor=2, pipeline=2, slow={5: 4.0}))
    executors: dict[str, Executor | None] = {
        "one": serially,
        "several": Processes(2, PRELOAD, work_of),
        "dask": with_deaths(dask, tmp_path),
        "mpi": None,
    }
    stores, events = {}, {}
    for name, executor in executors.items():
        store = open_store(str(tmp_path / f"{name}.db"), tmp_path)
        store.prepare()
        if executor is None:
            over_mpi(run, store)
        else:
            assert not collect(run, store, executor=executor).skipped
        stores[name], events[name] = Database(str(tmp_path / f"{name}.db")).dump(), kept_events(run)
    # It may have waited on a worker that another one ended.
    assert (tmp_path / "rank 4").read_text() in ("xx", "xxx")
    assert len(stores["one"]) > 1000 and len(events["one"]) > 50
    for name in ("several", "dask", "mpi"):
        assert stores[name] == stores["one"], name
        assert events[name] == events["one"], name


def test_every_task_comes_back_with_its_result(dask: OnDask) -> None:
    assert sorted(dask(square, range(40))) == [(n, n * n) for n in range(40)]
    assert list(dask(square, [])) == []


def test_a_cluster_of_this_machine_listens_on_this_machine_only(
    dask: OnDask, listening_before: set[tuple[str, int]]
) -> None:
    # Another may just take the place of one that ended.
    dask.client.wait_for_workers(2)
    workers = map(psutil.Process, dask.client.run(os.getpid).values())
    opened = [listening(psutil.Process()) - listening_before, *map(listening, workers)]
    assert len(opened) == 3 and all(opened)
    assert {address for sockets in opened for address, _ in sockets} == {"127.0.0.1"}
    assert all("tls://" in address for address in dask.client.nthreads())


def test_workers_do_not_sample_their_threads_which_could_stop_them_for_ever(dask: OnDask) -> None:
    assert list(dask(samples_its_threads, [1])) == [(1, False)]


def test_what_a_task_raises_is_raised_here(dask: OnDask) -> None:
    with pytest.raises(DamagedInput, match="three is damaged"):
        list(dask(fail_on_three, range(6)))


def test_a_full_disk_of_a_worker_is_named_with_its_host(dask: OnDask) -> None:
    ((_, lost),) = dask(fill_the_disk, [1])
    assert lost == Lost(f"No space left on device on {HOST}")


def test_a_profile_that_kills_four_workers_is_named_and_the_store_is_that_of_one_process(
    dask: OnDask, folder: Path, tmp_path: Path
) -> None:
    def collected(name: str, executor: Executor) -> Collected:
        store = open_store(str(tmp_path / name), tmp_path)
        store.prepare()
        run = find_known_run(str(folder), tmp_path, store)
        return collect(run, store, lambda n, *_: done.append(n), executor, dask.workers)

    done: list[int] = []
    found = collected("dask.db", with_deaths(dask, tmp_path, [2])).skipped
    assert len(found) == 1, found
    (skipped,) = found
    assert "rank00002.sqlite was not collected: four Dask workers died on it" in skipped
    assert done == list(range(1, RANKS + 1))
    # Rank 4 may have ended the worker on which rank 2 still waited; the last time rank 2 was alone.
    assert (tmp_path / "rank 2").read_text() in ("xxx", "xxxx")
    (folder / "rank00002.sqlite").unlink()
    collected("one.db", serially)
    assert Database(str(tmp_path / "dask.db")).dump() == Database(str(tmp_path / "one.db")).dump()


class EndsBetweenTasks(WorkerPlugin):  # type: ignore[misc]
    """Ends workers that have a result which the scheduler does not know of yet, the first times."""

    def __init__(self, deaths: Path, times: int) -> None:
        self.deaths, self.times = deaths, times

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        if finish == "memory":
            before = len(self.deaths.read_text())
            if before < self.times:
                self.deaths.write_text("x" * (before + 1))
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def ended_between_tasks(dask: OnDask, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file with the number of workers that ended between tasks."""
    deaths = tmp_path / "deaths"
    deaths.touch()
    dask.client.register_plugin(EndsBetweenTasks(deaths, request.param), name="ends between tasks")
    yield deaths
    dask.client.unregister_worker_plugin("ends between tasks")


@pytest.mark.parametrize("ended_between_tasks", [4], indirect=True)
def test_a_task_is_not_lost_because_its_worker_ended_when_it_was_over(
    dask: OnDask, ended_between_tasks: Path
) -> None:
    assert list(dask(square, [3])) == [(3, 9)]
    assert ended_between_tasks.read_text() == "xxxx"


@pytest.mark.parametrize("ended_between_tasks", [100], indirect=True)
def test_workers_that_keep_ending_between_tasks_are_given_up(
    dask: OnDask, ended_between_tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcprof.results.collect.executors.dask._MAX_IDLE_DEATHS", 1)
    submit = Mock(wraps=dask.client.submit)
    monkeypatch.setattr(dask.client, "submit", submit)
    with pytest.raises(HpcprofError, match=r"the workers of the Dask cluster on this machine keep ending"):
        list(dask(square, [3]))
    # On a slow machine, Dask itself may have ended one of the workers that were lost.
    assert submit.call_count == 4
    assert 1 <= len(ended_between_tasks.read_text()) <= 4


def test_ctrl_c_ends_the_workers_and_says_one_line(folder: Path) -> None:
    collecting, stuck = start_collect(folder, "--executor", "dask")
    until(stuck.exists)
    worker = int(stuck.read_text())
    os.killpg(collecting.pid, signal.SIGINT)
    _, said = collecting.communicate(timeout=480)
    assert collecting.returncode in INTERRUPTED, said
    assert said.splitlines()[-1] == "hpcprof: interrupted."
    assert "Traceback" not in said, said
    until(lambda: not Path(f"/proc/{worker}/exe").exists())


def full_disk(folder: Path) -> list[str]:
    """Return the words before a command that give it a full disk at ``folder``, seen by it alone."""
    script = (
        'mount -t tmpfs -o size=64k tmpfs "$0" && mkdir "$0/timeline" && '
        '{ head -c 1M /dev/zero >"$0/filled"; exec "$@"; } 2>&1'
    )
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(folder)]


def test_collect_prints_the_dashboard_its_progress_and_a_full_disk(
    hpcprof: Hpcprof, folder: Path, tmp_path: Path
) -> None:
    assert hpcprof("submit", "--site", "local", "--wait", "--", "true").returncode == 0
    (run,) = all_runs(tmp_path / "runs")
    shutil.rmtree(run.path / "profiles")
    folder.rename(run.path / "profiles")
    timelines = run.path / "timeline"
    timelines.mkdir()
    command = [sys.executable, "-m", "hpcprof", "collect", "--executor", "dask", "--jobs", "2"]
    done = subprocess.run([*full_disk(timelines), *command], capture_output=True, text=True, cwd=tmp_path)
    if "unshare" in done.stderr or "mount" in done.stdout:
        pytest.skip("no file system can be mounted here")
    assert done.returncode == 1, done.stdout
    assert re.search(r"^hpcprof: Dask dashboard: http://127\.0\.0\.1:\d+/status$", done.stdout, re.MULTILINE)
    assert "was not collected: " in done.stdout
    assert f"No space left on device (and {RANKS - 1} more files" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a cluster of somebody else."""
    import distributed

    with distributed.LocalCluster(
        n_workers=1, processes=False, protocol="tcp", dashboard_address=None
    ) as own:
        yield own.scheduler_address


def test_a_cluster_that_runs_is_used_by_address_or_scheduler_file(address: str, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(f'{{"type": "Scheduler", "address": "{address}"}}')
    for where in (address, str(file)):
        with existing_cluster(where, [tmp_path]) as dask:
            assert sorted(dask(square, range(3))) == [(0, 0), (1, 1), (2, 4)]


def test_a_worker_without_the_profiles_is_named_with_the_folder(address: str, tmp_path: Path) -> None:
    with (
        existing_cluster(address, [tmp_path / "elsewhere"]) as dask,
        pytest.raises(
            HpcprofError, match=f"the Dask worker on {os.uname().nodename} cannot read .*/elsewhere"
        ),
    ):
        list(dask(square, range(3)))


def test_an_address_without_a_scheduler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcprof.results.collect.executors.dask._CONNECT_SECONDS", 1)
    for wrong in ("tcp://127.0.0.1:1", "nonsense://x"):
        with (
            pytest.raises(UsageError, match=f"--dask-address {wrong}: no Dask scheduler answers"),
            existing_cluster(wrong),
        ):
            pass


def test_results_that_went_with_their_worker_are_computed_again_by_another() -> None:
    import distributed

    with distributed.LocalCluster(**ONE_THREAD) as own, own.get_client() as client:

        def replace_lost() -> bool:
            own.scale(2)
            return False

        results = OnDask(client, 1, look_after=replace_lost)(square, range(2))
        first = next(results)
        until(lambda: not any(client.processing().values()))
        own.sync(own.workers[0].close)
        assert sorted([first, *results]) == [(0, 0), (1, 1)]


def test_a_cluster_without_workers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    monkeypatch.setattr("hpcprof.results.collect.executors.dask._MAX_SECONDS_WITHOUT_WORKER", 0.1)
    monkeypatch.setattr("hpcprof.results.collect.executors.dask._LOOK_SECONDS", 0.1)
    with distributed.LocalCluster(**{**ONE_THREAD, "n_workers": 0}) as own, own.get_client() as client:
        queued = iter([True] * 3)
        dask = OnDask(client, 1, look_after=lambda: next(queued, False), name="the Dask cluster at X")
        with pytest.raises(HpcprofError, match=r"the Dask cluster at X has had no worker for .* are kept"):
            list(dask(square, [1]))
        assert not [*queued]


def test_a_scheduler_that_is_lost_is_named(tmp_path: Path) -> None:
    import distributed
    from dask import config

    own = distributed.LocalCluster(**ONE_THREAD)
    quickly = config.set({"distributed.comm.timeouts.connect": "1s"})
    with quickly, existing_cluster(own.scheduler_address) as dask:
        results = dask(partial(_signal_and_wait, tmp_path), [0])
        closing = threading.Thread(target=_close_when, args=(tmp_path / "began", own))
        closing.start()
        with pytest.raises(HpcprofError, match=r"the connection to the Dask scheduler tcp://.* was lost"):
            next(results)
        (tmp_path / "end").touch()
        closing.join()
        own.close()


def _close_when(begun: Path, cluster: Any) -> None:
    until(begun.exists)
    # To close the cluster itself takes until its worker has given up the task.
    cluster.sync(cluster.scheduler.close)


def _signal_and_wait(folder: Path, number: int) -> int:
    (folder / "began").touch()
    until((folder / "end").exists)
    return number
