"""One job's life: waits for its dependency, runs, is ended by its walltime or by qdel, leaves its output.

An array's is to start its members, each with a life of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import server

QUEUED_SECONDS = 0.3
EXITING_SECONDS = 0.3
DELETED_SECONDS = 1.0  # how long a killed job still shows R
OUTPUT_SECONDS = 0.3  # how long after its end the output comes
STEP = 0.05


class _Deleted(Exception):
    pass


def deleted(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Deleted


def dependency_holds(job_id: str) -> bool:
    """Wait for the jobs that this one depends on; one that is not known counts as failed."""
    depend = (server.load(job_id) or {}).get("depend", "")
    for other in [name for name in depend.split("@")[0].split(":")[1:] if name]:
        while True:
            job = server.load(server.whole_id(other, "qsub"))
            if job is None:
                return False
            if job["job_state"] == "F":
                if job.get("Exit_status") != 0 or job["substate"] != 92:
                    return False
                break
            time.sleep(STEP)
    return True


def seconds(walltime: str) -> float:
    total = 0
    for part in walltime.split(":"):
        total = total * 60 + int(part)
    return float(total)


def run(job_id: str) -> None:
    while "Can Never Run" in (server.load(job_id) or {}).get("comment", ""):
        time.sleep(STEP)
    if not dependency_holds(job_id):
        server.finish(job_id, 92, "", None)
        return
    server.change(job_id, job_state="Q", substate=10, Hold_Types="n")
    time.sleep(QUEUED_SECONDS)
    if "[]" in job_id:
        run_members(job_id)
    else:
        run_script(job_id)


def run_members(array_id: str) -> None:
    """Run the members; the array's exit status is that of the one that ended last."""
    array = server.change(
        array_id,
        job_state="B",
        substate=70,
        comment=f"Job Array Began at {time.strftime('%a %b %d at %H:%M')}",
    )
    kept = [key for key in array if not key.startswith("array") and key not in ("runner", "depend")]
    own = {key: array[key] for key in kept}
    running: dict[str, subprocess.Popen[bytes]] = {}
    started: list[str] = []
    ending, substate = "finished", 92
    try:
        while True:
            for member, process in list(running.items()):
                if process.poll() is not None:
                    del running[member]
                    if (server.load(member) or {})["job_state"] != "X":  # ended before it could tell
                        server.finish(member, 91, "terminated", 271)
                    code = (server.load(member) or {}).get("Exit_status")
                    server.change(array_id, Exit_status=1 if code else 0)
                    if code:
                        ending, substate = "failed", 93
            room = len(running) < array.get("max_run_subjobs", len(running) + 1)
            index = server.take(array_id) if room else None
            if index is not None:
                member = server.member_of(array_id, index)
                paths = {
                    key: array[key].replace("^array_index^", str(index))
                    for key in ("Output_Path", "Error_Path")
                }
                # A start and its record are one step: qdel must find the process of what it finds.
                with server.locked():
                    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
                    process = subprocess.Popen([sys.executable, __file__, member], start_new_session=True)
                    server.write(
                        member,
                        {**own, **paths, "array_id": array_id, "array_index": index, "runner": process.pid},
                    )
                running[member] = process
                started.append(member)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            elif not running and not server.indices((server.load(array_id) or {})["array_indices_remaining"]):
                break
            else:
                time.sleep(STEP)
    except _Deleted:
        ending, substate = f"terminated by {server.USER}", 91
        while server.take(array_id) is not None:
            pass
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    for member in started:
        server.change(member, job_state="F")
    server.finish(array_id, substate, ending, (server.load(array_id) or {}).get("Exit_status"))


def run_script(job_id: str) -> None:
    comment = f"Job run at {time.strftime('%a %b %d at %H:%M')} on (pn1:ncpus=1)"
    job = server.change(job_id, job_state="R", substate=42, comment=comment, exec_vnode="(pn1:ncpus=1)")
    nodes = server.FOLDER / f"{job_id}.nodes"
    nodes.write_text("localhost\n")
    files = [server.FOLDER / f"{job_id}.{suffix}" for suffix in ("OU", "ER")]
    with files[0].open("wb") as out, files[1].open("wb") as err:
        process = subprocess.Popen(
            ["/bin/bash", str(server.FOLDER / f"{server.array_of(job_id)}.SC")],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            cwd=os.environ.get("HOME", "/"),
            env={
                **os.environ,
                **({"PBS_ARRAY_INDEX": str(job["array_index"])} if "array_index" in job else {}),
                "PBS_JOBID": job_id,
                "PBS_NODEFILE": str(nodes),
                "PBS_ENVIRONMENT": "PBS_BATCH",
            },
        )
        substate, ending, code = 92, "finished", 0
        try:
            code = process.wait(timeout=seconds(job["Resource_List"]["walltime"]))
            # By a signal is 256 and its number; what a shell reports as 128 and more stays.
            code = 256 - code if code < 0 else code
            if code:
                substate, ending = 93, "failed"
            time.sleep(EXITING_SECONDS)
        except subprocess.TimeoutExpired:
            limit = f"{seconds(job['Resource_List']['walltime']):.0f}"
            err.write(f"=>> PBS: job killed: walltime {limit} exceeded limit {limit}\n".encode())
            err.flush()
            end(process)
            substate, ending, code = 93, "exceeded resource walltime", -29
        except _Deleted:
            end(process)
            time.sleep(DELETED_SECONDS)
            substate, ending, code = 91, f"terminated by {server.USER}", 271
    server.change(job_id, job_state="E", substate=53, Exit_status=code)
    time.sleep(EXITING_SECONDS)
    server.finish(job_id, substate, ending, code)
    time.sleep(OUTPUT_SECONDS)
    for file, attribute in zip(files, ("Output_Path", "Error_Path"), strict=True):
        wanted = job[attribute].partition(":")[2]
        if wanted and Path(wanted).parent.is_dir():
            shutil.copy(file, wanted)


def end(process: subprocess.Popen[bytes]) -> None:
    for number, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 10.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience)
            return


def main() -> None:
    signal.signal(signal.SIGTERM, deleted)
    job_id = sys.argv[1]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if server.index_of(job_id) is None:
            run(job_id)
        else:
            run_script(job_id)
    except _Deleted:
        server.finish(job_id, 91, "terminated", None)


main()
