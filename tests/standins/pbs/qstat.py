"""qstat: knows ``-f -F json``, with ``-x`` for finished jobs, ``-t`` for members of arrays; ``-B``."""

from __future__ import annotations

import json
import sys
import time

import server

HIDDEN = "runner"
OF_THE_ARRAY = ("array", "array_state_count", "array_indices_submitted", "array_indices_remaining")


def shown(job: server.Job, without: tuple[str, ...] = ()) -> server.Job:
    return {key: value for key, value in job.items() if key not in (HIDDEN, *without)}


def member(array: server.Job, array_id: str, index: int) -> server.Job:
    """Return a member: a job of its own once it has run, else its array's attributes with its state."""
    own = server.load(server.member_of(array_id, index))
    if own is not None:
        return shown(own)
    state, comment = array["job_state"], array.get("comment")
    if state == "F":
        comment = "Subjob finished"
    elif state == "B":
        waits = index in server.indices(array["array_indices_remaining"])
        state, comment = ("Q", comment) if waits else ("X", "Subjob finished")
    return {**shown(array, OF_THE_ARRAY), "job_state": state, "comment": comment}


def main() -> None:
    server.note_call()
    words = sys.argv[1:]
    history, full, as_json = "-x" in words, "-f" in words, "-F" in words and "json" in words
    if as_json and not full:
        server.stop("qstat: conflicting options.", "usage: ", code=2)
    if "-B" in words:
        attributes = {"default_queue": "workq", "max_array_size": 20} | (
            {"job_history_enable": "True"} if server.history() else {}
        )
        print(json.dumps({"Server": {server.SERVER: attributes}}, indent="\t", separators=(",", ":\t")))
        return
    named = [word for word in words if not word.startswith("-") and word != "json"]
    jobs: dict[str, server.Job] = {}
    errors: list[str] = []
    code = 0
    if history and not server.history():
        errors.append("PBS is not configured to maintain job history")
        named, code = [], 0
    for name in named or ([] if errors else server.all_ids()):
        job_id = server.whole_id(name, "qstat")
        job, index = server.load(job_id), server.index_of(job_id)
        if index is not None:
            array = server.load(server.array_of(job_id))
            job = member(array, server.array_of(job_id), index) if array else None
        if job is None or (job["job_state"] == "F" and not server.history()):
            errors.append(f"qstat: Unknown Job Id {job_id}")
            code = server.UNKNOWN_JOB
        elif job["job_state"] == "F" and not history:
            if named:
                errors.append(
                    f"qstat: {job_id} Job has finished, use -x or -H to obtain historical job information"
                )
                code = server.FINISHED_JOB
        elif not named or not jobs:  # of several ids the JSON has the first alone
            jobs[job_id] = shown(job)
            if "-t" in words and "array" in job:
                every = server.indices(job["array_indices_submitted"])
                jobs |= {server.member_of(job_id, i): member(job, job_id, i) for i in every}
    document: dict[str, object] = {
        "timestamp": int(time.time()),
        "pbs_version": "23.06.06",
        "pbs_server": server.SERVER,
    }
    if jobs:
        document["Jobs"] = jobs
    print(json.dumps(document, indent="\t", separators=(",", ":\t")))
    print("\n".join(errors), file=sys.stderr, end="\n" if errors else "")
    sys.exit(code)


main()
