"""qdel: a queued job ends at once, a running one shows R for a while more."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import server


def survivor(names: list[str]) -> str | None:
    """Return the last of several members if another member of their array was deleted before: it runs on."""
    if len(names) < 2 or server.index_of(names[-1]) is None:
        return None
    array = server.array_of(names[-1])
    submitted = server.indices((server.load(array) or {}).get("array_indices_submitted", "-"))
    members = [server.member_of(array, index) for index in submitted]
    deleted = any(
        (job := server.load(member)) is not None and job["substate"] == 91
        for member in members
        if member not in names
    )
    return names[-1] if deleted else None


def main() -> None:
    server.note_call()
    code = 0
    spared = survivor(sys.argv[1:])
    for name in sys.argv[1:]:
        if name == spared:
            continue
        job_id = server.whole_id(name, "qdel")
        job = server.load(job_id)
        index = server.index_of(job_id)
        if index is not None and job is None:
            if server.take(server.array_of(job_id), index) is None:
                print(f"qdel: Request invalid for finished array subjob {job_id}", file=sys.stderr)
                code = server.FINISHED_MEMBER
        elif index is not None and job is not None and job["job_state"] in "XF":
            print(f"qdel: Request invalid for finished array subjob {job_id}", file=sys.stderr)
            code = server.FINISHED_MEMBER
        elif job is None:
            print(f"qdel: Unknown Job Id {job_id}", file=sys.stderr)
            code = server.UNKNOWN_JOB
        elif job["job_state"] == "F":
            print(f"qdel: Job has finished {job_id}", file=sys.stderr)
            code = server.FINISHED_JOB
        else:
            if job["job_state"] == "R":
                server.change(job_id, comment=f"{job['comment']} and terminated by {server.USER}")
            with suppress(ProcessLookupError):
                os.kill(job["runner"], signal.SIGTERM)
    sys.exit(code)


main()
