"""qsub: takes a script, its directives and the options that hpcprof uses."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import server

LIMITED = ("debug", "workq")  # queues with a limit; prod takes what the nodes can never hold
QUEUES = (*LIMITED, "prod")
DISABLED = "stopped"
NODES = 4


def options(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    found, rest = [], []
    while words:
        word = words.pop(0)
        if word.startswith("-") and len(word) == 2 and word[1] in "NAqloeWvrJS":
            if not words:
                server.stop(f"qsub: illegal {word} value", "usage: qsub [-a date_time]", code=2)
            found.append((word[1], words.pop(0)))
        elif word.startswith("-"):
            server.stop(
                f"/opt/pbs/bin/qsub: invalid option -- '{word[1]}'", "usage: qsub [-a date_time]", code=2
            )
        else:
            rest.append(word)
    return found, rest


def directives(script: str) -> list[str]:
    """Return the words of the #PBS lines up to the first command."""
    words: list[str] = []
    mark = os.environ.get("PBS_DPREFIX", "#PBS")
    for line in script.splitlines():
        if line.startswith(mark):
            words += shlex.split(line.removeprefix(mark))
        elif line.strip() and not line.startswith("#"):
            break
    return words


def array_attributes(text: str) -> server.Job:
    span = re.fullmatch(r"(\d+)-(\d+)(?:%(\d+))?", text)
    if span is None or int(span[1]) >= int(span[2]):
        server.stop("qsub: illegal -J value", "usage: qsub [-a date_time]", code=2)
    submitted = f"{span[1]}-{span[2]}"
    return {
        "array": "True",
        "array_state_count": f"Queued:{int(span[2]) - int(span[1]) + 1} Running:0 Exiting:0 Expired:0",
        "array_indices_submitted": submitted,
        "array_indices_remaining": submitted,
        "max_run_subjobs": int(span[3]) if span[3] else None,
    }


def main() -> None:
    server.note_call()
    given, rest = options(sys.argv[1:])
    try:
        script = Path(rest[0]).read_text()
    except OSError:
        server.stop("qsub: script file:: No such file or directory", code=1)
    written, _ = options(directives(script))
    values = [*written, *given]  # an option of the command comes before a directive
    single = dict(values)
    resources = dict(text.partition("=")[::2] for key, text in values if key == "l")
    queue = single.get("q", "workq")
    if queue == DISABLED:
        server.stop("qsub: Queue is not enabled", code=173)
    if queue not in QUEUES:
        server.stop("qsub: Unknown queue", code=170)
    nodes = resources.get("select", "1").partition(":")[0]
    if not nodes.isdigit():
        server.stop("qsub: Illegal attribute or resource value Resource_List.select", code=166)
    if int(nodes) > NODES and queue in LIMITED:
        server.stop("qsub: Job violates queue and/or server resource limits", code=188)
    array = array_attributes(single["J"]) if "J" in single else {}
    if array and single.get("r") == "n":
        server.stop("qsub: cannot submit non-rerunable Array Job", code=1)
    depend = dict(text.partition("=")[::2] for key, text in values if key == "W").get("depend", "")
    job_id = server.new_id("[]" if array else "")
    (server.FOLDER / f"{job_id}.SC").write_text(script)  # the script is copied at submit
    variables = {"PBS_O_WORKDIR": str(Path.cwd()), "PBS_O_QUEUE": queue, "PBS_O_HOST": server.SERVER}
    variables |= {
        pair.partition("=")[0]: pair.partition("=")[2] for pair in single.get("v", "").split(",") if pair
    }
    server.change(
        job_id,
        Job_Name=single.get("N", Path(rest[0]).name),
        Job_Owner=server.USER,
        job_state="H" if depend else "Q",
        queue=queue,
        server=server.SERVER,
        ctime=server.stamp(),
        depend=f"{depend}@{server.SERVER}" if depend else None,
        Error_Path=f"{server.SERVER}:{single.get('e', '')}",
        Hold_Types="s" if depend else "n",
        Output_Path=f"{server.SERVER}:{single.get('o', '')}",
        Priority=0,
        Submit_arguments=" ".join(sys.argv[1:]),
        Resource_List={"nodect": int(nodes), "walltime": resources.get("walltime", "01:00:00")},
        substate=22 if depend else 10,
        Variable_List={name: server.coerced(value) for name, value in variables.items()},
        **array,
        comment="Can Never Run: Not enough total nodes available" if int(nodes) > NODES else None,
    )
    # A qdel that comes before the runner is ready for it waits: the runner inherits this.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    runner = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("job.py")), job_id],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(server.FOLDER / f"{job_id}.log").open("wb"),
        start_new_session=True,
        # The shell's environment stays behind, as it does without -V.
        env={name: os.environ[name] for name in ("PATH", "HOME", "PBS_STANDIN", "LANG") if name in os.environ}
        | {"PBS_O_WORKDIR": str(Path.cwd())},
    )
    server.change(job_id, runner=runner.pid)
    print(job_id)


main()
