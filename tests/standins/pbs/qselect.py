"""qselect: knows ``-u`` and ``-N``; prints the ids of jobs and whole arrays that have not finished."""

from __future__ import annotations

import sys

import server


def main() -> None:
    server.note_call()
    words = sys.argv[1:]
    wanted = dict(zip(words[::2], words[1::2], strict=True))
    if set(wanted) - {"-u", "-N"}:
        server.stop("qselect: illegal option", "usage: ", code=2)
    for job_id in server.all_ids():
        job = server.load(job_id) or {}
        if job["job_state"] != "F" and job["Job_Name"] == wanted.get("-N", job["Job_Name"]):
            print(job_id)


main()
