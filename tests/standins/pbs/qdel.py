"""qdel: a queued job ends at once, a running one shows R for a while more."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import server


def main() -> None:
    server.note_call()
    server.refuse_if_down("qdel")
    code = 0
    for name in sys.argv[1:]:
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
