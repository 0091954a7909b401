"""Native stacks as debuggers print them."""

from __future__ import annotations

import pytest

from hpcprof.profiles.readers.flight_recorder import CodeLine
from hpcprof.profiles.readers.native_stacks import NativeStack, parse_native_stack

GDB_WAITS = """\
[New LWP 13636]
0x00007f62c6291987 in ?? () from /opt/mpich/lib/libmpi.so.12

Thread 2 (Thread 0x7f62c54d26c0 (LWP 9601) "async"):
#0  0x00007f62c5f26f36 in epoll_wait (epfd=..., events=...) at ../sysdeps/unix/sysv/linux/epoll_wait.c:30
#1  0x00007f62c5bb4330 in ucs_event_set_wait () from /opt/mpich/lib/libucs.so.0
#2  0x00007f62c5ea71f5 in start_thread (arg=...) at ./nptl/pthread_create.c:442

Thread 1 (Thread 0x7f62c5a91780 (LWP 9549) "solver"):
#0  0x00007f62c6291992 in ?? () from /opt/mpich/lib/libmpi.so.12
#1  0x00007f62c6295ac2 in ?? () from /opt/mpich/lib/libmpi.so.12
#2  0x00007f62c6074f72 in PMPI_Barrier () from /opt/mpich/lib/libmpi.so.12
#3  0x000055def8382222 in exchange (n=...) at halo.c:41
#4  0x000055def8382301 in main () at solver.c:9
[Inferior 1 (process 9549) detached]
"""
GDB_LATE = """\
Thread 1 (Thread 0x7fe4696e1780 (LWP 13627) "solver"):
#0  0x00007fe4684ed545 in __GI___clock_nanosleep (id=...) at ../sysdeps/unix/sysv/linux/clock_nanosleep.c:48
#1  0x00007fe4684f1d8a in __sleep (seconds=...) at ../sysdeps/posix/sleep.c:55
#2  load_batch (n=...) at io.c:5
#3  0x000055d5966a4255 in main ()
"""
EU_STACK = """\
PID 77 - process
TID 77:
#0  0x00007f1a2b3c4d5e - /usr/lib64/libcuda.so.550.54.14
#1  0x00007f1a2b3c4d60 cuStreamSynchronize - /usr/lib64/libcuda.so.550.54.14
#2  0x00007f1a2b3c4d61 cudaStreamSynchronize - /usr/lib64/libcudart.so.12
#3  0x0000000000401136 step - /home/me/solver
"""
EU_STACK_WITH_SOURCE = """\
PID 4011 - process
TID 4011:
#0  0x00007f08d034e444 - /usr/lib/x86_64-linux-gnu/libuct.so.0.0.0
#1  0x00007f08d0a934eb - /usr/lib/x86_64-linux-gnu/libmpich.so.12.2.2
#2  0x00007f08d08b31c6 PMPI_Barrier - /usr/lib/x86_64-linux-gnu/libmpich.so.12.2.2
#3  0x0000562313f88482 main - /home/me/solver
    /home/me/solver.c:23:5
#4  0x00007f08d064524a __libc_start_call_main - /usr/lib/x86_64-linux-gnu/libc.so.6
    ../sysdeps/nptl/libc_start_call_main.h:58:16
"""
PY_SPY = """\
Process 88: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 88 (active): "MainThread"
    MPIDI_progress (libmpi.so.12)
    PMPI_Allreduce (libmpi.so.12)
    reduce (train.py:12)
"""
EU_STACK_OF_PYTHON = """\
TID 2848:
#0  0x00007fc4cab1a26f __poll - /usr/lib/x86_64-linux-gnu/libc.so.6
    ../sysdeps/unix/sysv/linux/poll.c:29:10
#1  0x00007fc4ca54ba5e select_poll_poll - /opt/lib-dynload/select.cpython-311-x86_64-linux-gnu.so
    /tmp/Python-3.11.7/Modules/selectmodule.c:654:23
#2  0x00007fc4cacfdf34 _PyEval_EvalFrameDefault - /opt/lib/libpython3.11.so.1.0
    Python/ceval.c:5325:29
#3  0x00007fc4cae50a40 _PyEval_Vector - /usr/bin/python3.11
#4  0x0000562313f88482 main - /home/me/solver
"""
PY_SPY_LATE = """\
Thread 88 (idle)
    clock_nanosleep (libc.so.6)
    ffi_call (libffi.so.8.1.2)
    PyCFuncPtr_call (_ctypes.c:4201)
    __call__ (torch/_ops.py:1269)
    load_shard (train.py:7)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GDB_WAITS, NativeStack("MPI_Barrier", CodeLine("exchange", "halo.c", 41))),
        (GDB_LATE, NativeStack("", CodeLine("load_batch", "io.c", 5))),
        (
            EU_STACK,
            NativeStack("cuStreamSynchronize", CodeLine("step", "/home/me/solver", 0)),
        ),
        (EU_STACK_WITH_SOURCE, NativeStack("MPI_Barrier", CodeLine("main", "/home/me/solver.c", 23))),
        (PY_SPY, NativeStack("MPI_Allreduce", CodeLine("reduce", "train.py", 12))),
        (EU_STACK_OF_PYTHON, NativeStack("", CodeLine("main", "/home/me/solver", 0))),
        (EU_STACK_OF_PYTHON.rpartition("#4")[0], NativeStack("", None)),
        (PY_SPY_LATE, NativeStack("", CodeLine("load_shard", "train.py", 7))),
        (GDB_WAITS.replace("PMPI_Barrier", "??"), NativeStack("libmpi", CodeLine("exchange", "halo.c", 41))),
        ("ptrace: Operation not permitted.\n", None),
        ("", None),
    ],
    ids=[
        "gdb",
        "gdb, late",
        "eu-stack",
        "eu-stack, lines",
        "Python",
        "Python alone",
        "py-spy",
        "py-spy, late",
        "no names",
        "refused",
        "empty",
    ],
)
def test_the_call_in_which_a_process_waits_and_the_line_that_made_it(
    text: str, expected: NativeStack | None
) -> None:
    assert parse_native_stack(text) == expected
