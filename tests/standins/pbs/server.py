"""The stand-in's server: one JSON file of attributes a job, in the folder ``$PBS_STANDIN``."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

FOLDER = Path(os.environ["PBS_STANDIN"])
SERVER = "pbshost"
USER = f"tester@{SERVER}"
UNKNOWN_JOB, FINISHED_JOB, FINISHED_MEMBER = 153, 35, 55

Job = dict[str, Any]


def note_call() -> None:
    with (FOLDER / "calls").open("a") as file:
        file.write(json.dumps([Path(sys.argv[0]).name, *sys.argv[1:]]) + "\n")


def history() -> bool:
    """Return true if finished jobs are kept: a file ``nohistory`` turns that off."""
    return not (FOLDER / "nohistory").exists()


def stop(*lines: str, code: int) -> NoReturn:
    print("\n".join(lines), file=sys.stderr)
    sys.exit(code)


def whole_id(text: str, program: str) -> str:
    """Complete a job id by the server's name."""
    if not re.match(r"\d+(\[\d*\])?(\.|$)", text):
        stop(f"{program}: illegally formed job identifier: {text}", code=1)
    return text if "." in text else f"{text}.{SERVER}"


@contextmanager
def locked() -> Iterator[None]:
    with (FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def new_id(brackets: str = "") -> str:
    with locked():
        counter = FOLDER / "counter"
        number = int(counter.read_text()) + 1 if counter.exists() else 1
        counter.write_text(str(number))
    return f"{number}{brackets}.{SERVER}"


def load(job_id: str) -> Job | None:
    try:
        job: Job = json.loads((FOLDER / f"{job_id}.json").read_text())
    except FileNotFoundError:
        return None
    return job


def all_ids() -> list[str]:
    """Return the ids of all jobs in order; of an array the array's own alone."""
    ids = [path.stem for path in FOLDER.glob("*.json")]
    return sorted(
        (name for name in ids if "[" not in name or "[]" in name),
        key=lambda name: int(re.split(r"[.\[]", name)[0]),
    )


def array_of(job_id: str) -> str:
    return re.sub(r"\[\d+\]", "[]", job_id)


def index_of(job_id: str) -> int | None:
    """Return a member's index; None of any other job."""
    found = re.search(r"\[(\d+)\]", job_id)
    return int(found[1]) if found else None


def member_of(array_id: str, index: int) -> str:
    return array_id.replace("[]", f"[{index}]")


def indices(text: object) -> list[int]:
    """Return what ``0-3`` or ``1,3`` names; nothing is left of an array where it is ``-``."""
    found: list[int] = []
    for part in str(text).split(","):
        first, _, last = part.partition("-")
        if first:
            found += range(int(first), int(last or first) + 1)
    return found


def take(array_id: str, index: int | None = None) -> int | None:
    """Take a member that waits, the first or this one, out of its array; None if there is none."""
    with locked():
        job = load(array_id) or {}
        waiting = indices(job.get("array_indices_remaining", "-"))
        index = waiting[0] if index is None and waiting else index
        if index not in waiting:
            return None
        waiting.remove(index)
        job["array_indices_remaining"] = coerced(",".join(map(str, waiting)) or "-")
        write(array_id, job)
    return index


def change(job_id: str, **attributes: Any) -> Job:
    """Set attributes of a job (None removes one) and return it."""
    with locked():
        job = load(job_id) or {}
        job.update(attributes)
        job = {name: value for name, value in job.items() if value is not None}
        job["mtime"] = stamp()
        write(job_id, job)
    return job


def write(job_id: str, job: Job) -> None:
    temporary = FOLDER / f".{job_id}.{os.getpid()}"
    temporary.write_text(json.dumps(job))
    temporary.rename(FOLDER / f"{job_id}.json")


def finish(job_id: str, substate: int, ending: str, exit_status: int | None) -> None:
    """Move a job into the history; the comment grows by how it ended."""
    comment = (load(job_id) or {}).get("comment")
    change(
        job_id,
        job_state="F" if index_of(job_id) is None else "X",  # a member, until its array has ended
        substate=substate,
        comment=f"{comment} and {ending}" if comment and ending not in comment else comment,
        Exit_status=exit_status,
        Stageout_status=None if exit_status is None else 1,
        history_timestamp=int(time.time()),
        runner=None,
    )


def stamp() -> str:
    return time.strftime("%a %b %d %H:%M:%S %Y")


def coerced(text: str) -> Any:
    """Return a value as qstat's JSON has it: 007 is 7, 1e5 is 100000, true is true."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", text):
        number = float(text)
        return int(number) if number.is_integer() and abs(number) < 2**53 else number
    return text
