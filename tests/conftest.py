"""Fixtures that many tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from hpcprof.submit.launchers import ROOT_VARIABLES
from tests.command_server import AT_START, READ_AT_START, CommandServer
from tests.shared_server import begin_session

# How long an example takes says nothing on a machine that others use too.
settings.register_profile(
    "patient", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

# A shell that runs the tests in the background has them, and all that they start, ignore Ctrl-C, and
# nohup the end of the terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

Hpcprof = Callable[..., "subprocess.CompletedProcess[str]"]
INTERRUPTED = (130, -signal.SIGINT)
"""Exit statuses of a command at Ctrl-C; a shell shows 130 for both.

``python -m`` ends by the signal itself if that met code which ``exec`` made from text, as dataclasses do.
"""
_PATIENCE_SECONDS = 480


# All that is imported and rewritten for the tests stays: to look for garbage takes longer than half of that.
gc.disable()


def pytest_collection(session: pytest.Session) -> None:
    """Import the files of a whole suite, from another one on in each worker.

    On a fresh clone, workers that begin with the same file would all compile the same ones at the same time.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    folders = [Path(name) for name in session.config.args if Path(name).is_dir()]
    files = sorted({file.resolve() for folder in folders for file in folder.rglob("test_*.py")})
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in [*files[first:], *files[:first]]:
        # Collection says what cannot be imported.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Leave all that was imported out of later searches for garbage: torch alone has a million objects."""
    # Not searched before either: that takes a second in each worker, and the garbage of imports is little.
    gc.freeze()
    # Searches as often as in a program of a few objects take a tenth of the time of the unit tests.
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes that run tests share servers, until the process that started them ends."""
    if not hasattr(config, "workerinput"):
        config.add_cleanup(begin_session())


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Keep the tester's own configuration, and a launcher around the tests, out of them."""
    # Most tests need no folder, and making one takes longer than they do. Nothing can be made in a device.
    home = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else Path(os.devnull)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "no-config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "no-cache"))
    # Dask sets some that Python reads at its start, with which the command server would serve no more.
    strays = [name for name in os.environ if name.startswith(READ_AT_START) and name not in AT_START]
    others = ("HPCPROF_", "PMI", "OMPI_", "SLURM_", "PALS_", "FLUX_")
    for name in (*strays, *(name for name in list(os.environ) if name.startswith(others) or name == "RANK")):
        monkeypatch.delenv(name)
    # Commands of a Slurm that is installed but not set up look for its configuration for a minute.
    monkeypatch.setenv("SLURM_CONF", os.devnull)
    # Where mpiexec is Open MPI's, it refuses root and more ranks than cores.
    for name, value in ROOT_VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMPI_MCA_rmaps_base_oversubscribe", "1")
    monkeypatch.setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")


@pytest.fixture(scope="session")
def command_server() -> Iterator[CommandServer]:
    """The server that runs the commands of ``hpcprof``; it starts with the first of them."""
    with CommandServer() as server:
        yield server


@pytest.fixture
def new_hpcprof(tmp_path: Path) -> Hpcprof:
    """Run the ``hpcprof`` command in ``tmp_path`` and in an interpreter of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hpcprof", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
        )

    return run


@pytest.fixture
def hpcprof(tmp_path: Path, command_server: CommandServer, new_hpcprof: Hpcprof) -> Hpcprof:
    """Run the ``hpcprof`` command in ``tmp_path`` and return what it printed."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        if command_server.serves():
            done = command_server.run([*arguments], tmp_path, _PATIENCE_SECONDS)
        else:
            done = new_hpcprof(*arguments)
        if "no mpiexec beside" in done.stderr and not os.environ.get("CI"):
            pytest.skip("this test starts several ranks, and no mpiexec is installed")
        return done

    return run
