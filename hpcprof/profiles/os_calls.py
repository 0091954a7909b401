"""Calls of the runtime of the operating system (libc, pthreads) by what they do, as their names tell."""

import re

from hpcprof.profiles.columns.unique import name_matches
from hpcprof.profiles.timeline import OsCalls, Timeline

FILES, WAITS, OTHER = "files", "waits", "other"

_NAME = r"_*(?:{})(?:64)?(?:_unlocked|_chk|_nocancel)?"
_KINDS = {
    # No profile tells whether a read or a write is of a file, a pipe or a socket.
    FILES: _NAME.format(
        r"p?(?:read|write)v?2?|f(?:read|write|gets|puts|flush|sync|datasync|open|close|truncate|allocate)"
        r"|getline|getdelim|freopen|open(?:at|dir)?|readdir|creat|close(?:dir)?|sync(?:fs|_file_range)?|msync"
        r"|truncate|posix_fallocate|sendfile|splice|copy_file_range|x?[fl]?x?stat(?:at)?|fstatat|statx|f?access(?:at)?"
        r"|(?:un)?link(?:at)?|rename(?:at2?)?|mkdir|rmdir|flock|lockf"
        r"|aio_(?:read|write|fsync|suspend)|lio_listio"
    ),
    WAITS: _NAME.format(
        r"u?sleep|(?:clock_)?nanosleep|p?poll|p?select|epoll_p?wait2?|futex|sem_(?:timed|clock)?wait"
        r"|pthread_(?:cond_(?:timed|clock)?wait|mutex_(?:timed|clock)?lock|(?:timed)?join(?:_np)?"
        r"|barrier_wait|rwlock_(?:rd|wr)lock|spin_lock)|wait(?:pid|id|[34])?|sigwait(?:info)?|sigtimedwait"
        r"|pause|accept4?|connect|recv(?:from|m?msg)?|msgrcv|semop"
    ),
}


def kind_of_call(name: str) -> str:
    """Return the kind of a call: it is about `FILES`, it `WAITS` for something else, or `OTHER`."""
    return next((kind for kind, pattern in _KINDS.items() if re.fullmatch(pattern, name)), OTHER)


def file_calls(timeline: Timeline) -> OsCalls:
    """Return the calls that read, write or open files."""
    calls = timeline.os_calls
    return calls.take(name_matches(timeline, calls.name, lambda name: kind_of_call(name) == FILES))
