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
UNKNOWN_JOB, FINISHED_JOB = 153, 35

Job = dict[str, Any]


def note_call() -> None:
    with (FOLDER / "calls").open("a") as file:
        file.write(json.dumps([Path(sys.argv[0]).name, *sys.argv[1:]]) + "\n")


def refuse_if_down(program: str) -> None:
    """Behave as where no server answers, while there is a file ``down``."""
    if (FOLDER / "down").exists():
        stop("Connection refused", f"{program}: cannot connect to server {SERVER} (errno=111)", code=111)


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


def new_id() -> str:
    with locked():
        counter = FOLDER / "counter"
        number = int(counter.read_text()) + 1 if counter.exists() else 1
        counter.write_text(str(number))
    return f"{number}.{SERVER}"


def load(job_id: str) -> Job | None:
    try:
        job: Job = json.loads((FOLDER / f"{job_id}.json").read_text())
    except FileNotFoundError:
        return None
    return job


def all_ids() -> list[str]:
    return sorted((path.stem for path in FOLDER.glob("*.json")), key=lambda name: int(name.split(".")[0]))


def change(job_id: str, **attributes: Any) -> Job:
    """Set attributes of a job (None removes one) and return it."""
    with locked():
        job = load(job_id) or {}
        job.update(attributes)
        job = {name: value for name, value in job.items() if value is not None}
        job["mtime"] = stamp()
        temporary = FOLDER / f".{job_id}.{os.getpid()}"
        temporary.write_text(json.dumps(job))
        temporary.rename(FOLDER / f"{job_id}.json")
    return job


def finish(job_id: str, substate: int, ending: str, exit_status: int | None) -> None:
    """Move a job into the history; the comment grows by how it ended."""
    comment = (load(job_id) or {}).get("comment")
    change(
        job_id,
        job_state="F",
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
