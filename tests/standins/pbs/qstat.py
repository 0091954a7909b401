"""qstat: knows ``-f -F json``, with ``-x`` for finished jobs."""

from __future__ import annotations

import json
import sys
import time

import server

HIDDEN = "runner"


def main() -> None:
    server.note_call()
    server.refuse_if_down("qstat")
    words = sys.argv[1:]
    history, full, as_json = "-x" in words, "-f" in words, "-F" in words and "json" in words
    if as_json and not full:
        server.stop("qstat: conflicting options.", "usage: ", code=2)
    named = [word for word in words if not word.startswith("-") and word != "json"]
    jobs: dict[str, server.Job] = {}
    errors: list[str] = []
    code = 0
    for name in named or server.all_ids():
        job_id = server.whole_id(name, "qstat")
        job = server.load(job_id)
        if job is None:
            errors.append(f"qstat: Unknown Job Id {job_id}")
            code = server.UNKNOWN_JOB
        elif job["job_state"] == "F" and not history:
            if named:
                errors.append(
                    f"qstat: {job_id} Job has finished, use -x or -H to obtain historical job information"
                )
                code = server.FINISHED_JOB
        elif not named or not jobs:  # of several ids the JSON has the first alone
            jobs[job_id] = {key: value for key, value in job.items() if key != HIDDEN}
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
