"""Calls of the OS runtime by what they do."""

from __future__ import annotations

import pytest

from hpcprof.profiles.os_calls import FILES, OTHER, WAITS, kind_of_call


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (FILES, "read write pread64 pwritev fsync fdatasync open64 openat fopen fclose fread __xstat stat64"),
        (WAITS, "futex poll epoll_wait usleep clock_nanosleep pthread_cond_timedwait sem_wait recvmsg"),
        (OTHER, "ioctl mmap64 pthread_create sched_yield reader pthread_mutex_unlock"),
    ],
)
def test_the_name_of_a_call_tells_its_kind(kind: str, names: str) -> None:
    assert {name: kind_of_call(name) for name in names.split()} == dict.fromkeys(names.split(), kind)
