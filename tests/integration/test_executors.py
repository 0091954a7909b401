"""Tasks in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.results.collect.executors.interface import Lost, serially
from hpcprof.results.collect.executors.processes import Processes
from tests.waiting import until


def square(number: int) -> int:
    return number * number


def own_process(number: int) -> int:
    return os.getpid()


def die_on_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def fail_on_three(number: int) -> int:
    if number == 3:
        raise DamagedInput("three is damaged.")
    return number


KEPT: list[bytearray] = []


def keep_memory(number: int) -> int:
    KEPT.append(bytearray(b"1" * (4 << 20)))
    return os.getpid()


def linger(folder: Path) -> None:
    (folder / f"{os.getpid()}.running").touch()
    time.sleep(600)


def test_every_task_comes_back_with_its_result() -> None:
    for executor in (serially, Processes(3)):
        assert sorted(executor(square, range(8))) == [(n, n * n) for n in range(8)]


def test_the_workers_start_once_and_take_many_tasks() -> None:
    found = {process for _, process in Processes(2)(own_process, range(40))}
    assert 1 <= len(found) <= 2
    assert os.getpid() not in found


def test_in_a_context_the_workers_stay_from_call_to_call_and_end_with_it() -> None:
    with Processes(2) as processes:
        first = {process for _, process in processes(own_process, range(40)) if isinstance(process, int)}
        assert [*processes(square, [3])] == [(3, 9)]
        assert {process for _, process in processes(own_process, range(40, 80))} <= first
        os.kill(next(iter(first)), signal.SIGKILL)
        until(lambda: len(multiprocessing.active_children()) < len(first))
        # Nobody had a task, so none is lost.
        assert sorted(processes(square, range(8))) == [(n, n * n) for n in range(8)]
        with pytest.raises(DamagedInput, match="three is damaged"):
            list(processes(fail_on_three, range(6)))
        assert sorted(processes(square, range(8))) == [(n, n * n) for n in range(8)]
    assert multiprocessing.active_children() == []


def test_workers_that_are_expected_share_little_work_too() -> None:
    processes = Processes(2, work=lambda task: 0.1 * task, if_quicker=True)
    assert {process for _, process in processes(own_process, [1, 2])} == {os.getpid()}
    assert processes.expect([20, 20])
    assert os.getpid() not in {process for _, process in processes(own_process, [1, 2])}


def test_where_workers_save_no_time_none_starts() -> None:
    quick = Processes(2, work=lambda task: 0.01, if_quicker=True)
    assert {process for _, process in quick(own_process, range(40))} == {os.getpid()}
    assert not quick.expect(range(40))
    slow = Processes(2, work=lambda task: 1.0, if_quicker=True)
    assert slow.expect(range(4))
    assert os.getpid() not in {process for _, process in slow(own_process, range(4))}


def test_a_worker_that_has_grown_is_replaced_and_no_task_is_lost() -> None:
    found = dict(Processes(2)(keep_memory, range(48)))
    assert found.keys() == {*range(48)}
    assert len({*found.values()}) > 2


def test_a_single_task_and_a_single_job_need_no_other_process() -> None:
    assert list(Processes(4)(own_process, [0])) == [(0, os.getpid())]
    assert list(Processes(1)(own_process, [0, 1])) == [(0, os.getpid()), (1, os.getpid())]


def test_a_task_whose_process_is_killed_is_lost_and_the_others_are_not() -> None:
    results = dict(Processes(2)(die_on_three, range(6)))
    assert results.pop(3) == Lost("its process was killed, as happens when memory runs out")
    assert results == {n: n for n in (0, 1, 2, 4, 5)}


def test_a_worker_that_is_killed_loses_one_task_of_its_chunk() -> None:
    results = dict(Processes(2)(die_on_three, range(100)))
    assert isinstance(results.pop(3), Lost)
    assert results == {n: n for n in range(100) if n != 3}


def test_what_a_task_raises_is_raised_here() -> None:
    with pytest.raises(DamagedInput, match="three is damaged"):
        list(Processes(2)(fail_on_three, range(6)))


def test_ctrl_c_while_a_process_starts_ends_that_process_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ForkServerProcess.start

    def interrupted(process: ForkServerProcess) -> None:
        start(process)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ForkServerProcess, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(Processes(2)(linger, [tmp_path] * 2))
    assert multiprocessing.active_children() == []


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from hpcprof.results.collect.executors.processes import Processes
from tests.integration.test_executors import linger
if __name__ == "__main__":
    try:
        list(Processes(2)(linger, [Path(sys.argv[1])] * 4))
    except KeyboardInterrupt:
        sys.exit(130)
"""


def alive(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_first_however_it_ends(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    first = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), str(Path(__file__).parents[2])], start_new_session=True
    )
    until(lambda: len(list(tmp_path.glob("*.running"))) == 2)
    others = [int(path.stem) for path in tmp_path.glob("*.running")]
    # A terminal sends Ctrl-C to all processes.
    os.killpg(first.pid, how) if how is signal.SIGINT else first.send_signal(how)
    assert first.wait(120) == (130 if how is signal.SIGINT else -how)
    until(lambda: not any(map(alive, others)))
    assert len(list(tmp_path.glob("*.running"))) == 2
