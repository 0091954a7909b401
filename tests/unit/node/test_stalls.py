"""The stall watch: progress between two samples, and native stacks of ranks that only poll."""

from __future__ import annotations

import faulthandler
import os
import time
from pathlib import Path

import pytest

from hpcprof.node.hooks import start
from hpcprof.node.stalls import (
    STACKS_SIGNAL,
    Process,
    RankSample,
    StallWatch,
    only_polls,
    progress_between,
    read,
    sample,
)

RANK = RankSample("r", 5, 100.0, 1000)


@pytest.mark.parametrize(
    ("now", "moved", "busy"),
    [
        (RANK, False, []),
        (RANK._replace(done=6), True, []),
        (RANK._replace(moved_bytes=1000 + 16384), True, []),
        (RANK._replace(state="w", moved_bytes=1000 + 16384), False, []),
        (RANK._replace(ticks=RANK.ticks + 1000), False, [0]),
        (RANK._replace(state="w", ticks=RANK.ticks + 1000), False, []),
    ],
)
def test_steps_and_data_are_progress_and_cpu_time_may_be(
    now: RankSample, moved: bool, busy: list[int]
) -> None:
    assert progress_between({0: RANK}, {0: now}, 10) == (moved, busy)


class Recorded(Process):
    """A process with the files of ``/proc`` that are given."""

    def __init__(self, age: float, moved: int, child_faults: int = 0) -> None:
        super().__init__(os.getpid(), {b"HPCPROF_RANK": b"0"})
        began = (time.clock_gettime(time.CLOCK_BOOTTIME) - age) * os.sysconf("SC_CLK_TCK")
        fields = [b"S", *[b"0"] * 7, b"%d" % child_faults, *[b"0"] * 10, b"%d" % began]
        self.files = {"stat": b"1 (bash) " + b" ".join(fields), "io": b"rchar: %d\nwchar: 0\n" % moved}

    def text(self, name: str) -> str:
        return self.files.get(name, b"").decode()

    def progress(self) -> tuple[str, int]:
        return "", 0


def test_a_script_that_asks_for_a_server_again_and_again_makes_no_progress() -> None:
    """The start of curl, some 50 KB with 600 faults of pages, counts for the script in the end."""
    began, later = [Recorded(60, 500_000, 6_000)], [Recorded(70, 980_000, 12_500), Recorded(0.1, 48_000)]
    assert progress_between(sample(began), sample(later), 10) == (False, [])
    copied = [Recorded(70, 54_000_000, 8_000)]
    assert progress_between(sample(began), sample(copied), 10) == (True, [])


def test_a_clock_that_is_set_forward_is_no_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state/pulse").mkdir(parents=True)
    watch = StallWatch(str(tmp_path), "n1", 0, 600, True)
    clock, ticks = time.time(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: clock + 3600)
    watch._judge()
    assert not (tmp_path / "state/stalled").exists()
    monkeypatch.setattr(time, "monotonic", lambda: ticks + 700)
    watch._judge()
    since = int((tmp_path / "state/stalled").read_text())
    assert since == pytest.approx(clock + 3600 - 700, abs=5)


def test_ranks_of_one_sample_have_just_begun_or_ended() -> None:
    assert progress_between({}, {0: RANK}, 10) == (True, [])
    assert progress_between({0: RANK}, {}, 10) == (True, [])


POLLS = """\
TID 10:
#0  0x1 poll - /usr/lib/libc.so.6
#1  0x2 MPIDI_progress - /opt/mpich/lib/libmpi.so.12
#2  0x3 main - /home/user/solver
TID 11:
#0  0x4 futex_wait - /usr/lib/libc.so.6
"""


def test_a_rank_polls_if_each_running_thread_is_in_a_call() -> None:
    assert only_polls(POLLS, {"10"})
    assert not only_polls(POLLS, set())
    assert only_polls(POLLS, {"10", "11"})
    assert not only_polls(f"{POLLS}TID 12:\n#0  0x5 relax - /home/user/solver\n", {"10", "12"})


def test_a_python_program_without_a_pulse_writes_its_stacks_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Process, "progress", lambda _: ("", 0))  # other tests may have left a pulse
    parent = os.memfd_create("hpcprof-stack-1")  # a fork has that of its parent
    assert Process(os.getpid(), {}).stacks_in_memory() == {}
    try:
        start._write_stacks_on_signal()
        for _ in range(2):
            ((file, size),) = Process(os.getpid(), {}).stacks_in_memory().items()
            lines = read(file)[size:].decode().splitlines()
            # After other threads, which earlier tests may have left.
            assert sum(line.startswith("Current thread") for line in lines) == 1
            assert any(line.endswith("in stacks_in_memory") for line in lines)
    finally:
        faulthandler.unregister(STACKS_SIGNAL)
        os.close(parent)
    # The default action of the signal would end it.
    monkeypatch.setattr(Process, "send", lambda *_: None)
    assert Process(os.getpid(), {}).stacks_in_memory() == {}
