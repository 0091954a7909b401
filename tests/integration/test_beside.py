"""The process beside the ranks, with real processes: progress, the end of a stall, and leftovers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcprof.node import stalls
from hpcprof.node.beside import Launches, Leftovers, Signals
from hpcprof.node.stalls import StallWatch, processes, programs, progress_between, sample
from tests.waiting import until


@contextmanager
def program(run: Path, *command: str, rank: int = 0, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program of a rank, once it has the environment of one."""
    marks = {"HPCPROF_RUN_DIR": str(run), "HPCPROF_RANK": str(rank), "HPCPROF_PROGRAM": "x"}
    with subprocess.Popen(command, env={**os.environ, **marks, **variables}) as process:
        try:
            until(lambda: any(one.pid == process.pid for one in programs(str(run))))
            yield process
        finally:
            process.kill()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path


def test_a_rank_that_hardly_gets_a_cpu_computes(run: Path) -> None:
    cpu = str(min(os.sched_getaffinity(0)))
    loop = ["taskset", "--cpu-list", cpu, "sh", "-c", "while :; do :; done"]
    # This one leaves a hundredth of the CPU to the other.
    with subprocess.Popen(loop) as owner:
        try:
            with program(run, "nice", "-n", "19", *loop, rank=1) as process:
                before = sample(programs(str(run)))
                # The system adds what the rank waited when it gets a CPU: after long on a busy machine.
                until(lambda: progress_between(before, sample(programs(str(run))), 2) == (False, [1]))
                fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        finally:
            owner.kill()
    assert (before[1].state, before[1].done) == ("", 0)
    # Its own CPU time alone would not count as computing.
    assert sum(map(int, fields[11:13])) < 2 * os.sysconf("SC_CLK_TCK") * stalls._BUSY_SHARE


def test_a_stall_ends_all_that_the_programs_have_started(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StallWatch, "_await_end", lambda watch, seconds: time.sleep(0.2))
    script = "(trap '' TERM; exec sleep 1000) & exec sleep 1000"
    with program(run, "sh", "-c", script) as started:
        until(lambda: len(processes(str(run))) == 2)
        StallWatch(str(run), "n", 0, 10, stops=True)._end()
        assert started.wait(10) == -15
    until(lambda: not processes(str(run)))


def test_what_a_program_leaves_behind_is_ended_after_its_grace_period(run: Path) -> None:
    leftovers = Leftovers(str(run), 0.5)
    scratch = run / "hpcprof.scratch"
    scratch.mkdir()
    marks = {"HPCPROF_RUN_DIR": str(run), "HPCPROF_RANK": "3", "TMPDIR": str(scratch)}
    profiler = subprocess.Popen(["sleep", "1000"], env={**os.environ, **marks})
    with profiler, program(run, "sleep", "1000", rank=3) as daemon:
        until(lambda: len(processes(str(run))) == 2)
        leftovers.look(processes(str(run)))  # its program has not ended
        assert not (run / "state/rank00003.left").exists()
        (scratch / "code").write_text("0\n")
        leftovers.look(processes(str(run)))
        assert (run / "state/rank00003.left").read_text() == f"sleep ({daemon.pid})\n"
        assert daemon.poll() is None
        time.sleep(0.6)
        leftovers.look(processes(str(run)))
        assert daemon.wait(10) == -15
        assert profiler.poll() is None
        profiler.kill()


def test_what_a_program_leaves_is_ended_once_all_ranks_of_the_node_have_ended(run: Path) -> None:
    # Without a profiler: Hydra waits for all that has the descriptors of a rank.
    leftovers = Leftovers(str(run), 0)
    with program(run, "sleep", "1000", rank=3) as daemon, program(run, "sleep", "1000", rank=4) as other:
        until(lambda: len(processes(str(run))) == 2)
        (run / "state/rank00003.exit").write_text("0\n")
        leftovers.look(processes(str(run)))
        assert daemon.poll() is None  # which may serve the other ranks
        (run / "state/rank00004.exit").write_text("0\n")
        leftovers.look(processes(str(run)))
        assert (daemon.wait(10), other.wait(10)) == (-15, -15)


def test_what_a_program_leaves_is_ended_if_it_has_ended_before_the_process_beside_it_began(run: Path) -> None:
    (run / "state/rank00003.exit").write_text("0\n")
    beside = [sys.executable, "-c", "from hpcprof.node.beside import main; main()", str(run), "n"]
    # The wrapper has it ignore the signal, which comes before anything is read.
    ignore = "trap '' TERM; kill $$; exec \"$@\""
    with program(run, "sleep", "1000", rank=3) as daemon:
        asked = f"{os.getpid()} 3 1 0 0 0 0 0 0".split()
        with subprocess.Popen(["sh", "-c", ignore, "sh", *beside, *asked]) as process:
            assert process.wait(20) == 0  # the wrapper waits for no more
        assert daemon.wait(10) == -15


def test_a_launcher_that_a_program_starts_is_noted(run: Path) -> None:
    script = run / "torchrun"
    script.write_text("import time\ntime.sleep(1000)\n")
    with (
        program(run, sys.executable, str(script), "a.py", rank=2),
        program(run, "bash", "-c", "exec -a /usr/bin/srun sleep 1000"),
        program(run, "bash", "-c", "exec -a srun.py sleep 1000", rank=1),
    ):
        notes = {"rank00000.launcher": "srun\n", "rank00002.launcher": "torchrun\n"}

        def noted() -> dict[str, str]:
            Launches(str(run)).look(processes(str(run)))
            return {path.name: path.read_text() for path in (run / "state").glob("*.launcher")}

        until(lambda: noted() == notes)


def test_a_rank_whose_program_has_ended_never_stalls(run: Path) -> None:
    watch = StallWatch(str(run), "n", 0, 10, stops=False)
    with program(run, "sleep", "1000"):
        assert watch._computes(processes(str(run)), set())  # it has just begun
        assert not watch._computes(processes(str(run)), set())
        for _ in range(3):
            assert watch._computes(processes(str(run)), {0})


def test_a_signal_of_another_node_reaches_the_programs_once(run: Path) -> None:
    signals = Signals(str(run))
    with (run / "state/signals").open("w") as noted, program(run, "sleep", "1000") as rank:
        noted.write(f"KILL {os.uname().nodename}\nUSR1 oth")
        noted.flush()
        signals.look(processes(str(run)))  # job.sh signals its own node, and a line is not complete
        assert rank.poll() is None
        noted.write("er\n")
        noted.flush()
        signals.look(processes(str(run)))
        assert rank.wait(10) == -10
    with program(run, "sleep", "1000") as later:
        signals.look(processes(str(run)))
        Signals(str(run)).look(processes(str(run)))
        assert later.poll() is None
