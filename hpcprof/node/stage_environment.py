"""An environment of Python, packed once for a job and unpacked on the own disk of each of its nodes.

Hundreds of ranks that import at the same time wait for a shared file system, and not for the node's disk.

1. ``pack ENVIRONMENT RUN`` makes one archive: of a conda or pixi environment by conda-pack, of a virtual
   environment (venv, uv) as it is, with the Python that it is based on unless this is the system's.
2. ``unpack RUN FOLDER`` extracts the archive on a node and puts the new place into the files that name the
   old one: scripts and ``pyvenv.cfg``; for conda ``conda-unpack`` does it.

``job.sh`` runs both, and both note what they did in ``state/environment/`` of the run.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import time
from typing import Any, Dict, List, Optional

ARCHIVE = "environment.tar"
NOTES = os.path.join("state", "environment")
PACKED, FAILED = "packed.json", "failed.json"
_SYSTEM = ("/", "/usr", "/usr/local")
_READY_FILE = "ready"
"""The file in an unpacked folder that says that it is complete."""
_MAX_WAIT_SECONDS = 900
"""Maximum time in seconds that a node waits for another node with the same disk."""
_PACKAGES = re.compile(r"python/lib/python[^/]+/(site-packages|test)(/|$)")
_MAX_SCRIPT_BYTES = 1 << 20
"""Maximum size of a file in ``bin`` that is taken for a script."""
_MAX_SHEBANG_BYTES = 127


def is_conda(environment: str) -> bool:
    """Return whether a folder is an environment of conda or pixi."""
    return os.path.isdir(os.path.join(environment, "conda-meta"))


def is_environment(environment: str) -> bool:
    """Return whether a folder is an environment of conda, pixi, venv or uv."""
    return is_conda(environment) or os.path.isfile(os.path.join(environment, "pyvenv.cfg"))


def pack(environment: str, run: str) -> None:
    """Make the archive of an environment in the folder of a run, and note its kind, size and time."""
    begin = time.time()
    archive = os.path.join(run, ARCHIVE)
    note: Dict[str, Any] = {"environment": environment, "kind": "conda", "base": ""}
    if is_conda(environment):
        _conda_pack(environment, archive)
    else:
        python = os.path.realpath(os.path.join(environment, "bin", "python"))
        base = os.path.dirname(os.path.dirname(python))
        if base == os.path.realpath(environment):  # it has a copy of the program alone
            base = os.path.dirname(_setting(environment, "home"))
        base = "" if base in _SYSTEM else base
        note.update(kind="venv", base=base)
        with tarfile.open(archive, "w") as tar:
            tar.add(environment, "env")
            if base:
                sees_base = _setting(environment, "include-system-site-packages") == "true"
                tar.add(base, "python", filter=None if sees_base else _without_packages)
    note.update(bytes=os.path.getsize(archive), seconds=round(time.time() - begin, 3))
    _note(run, PACKED, note)


def _setting(environment: str, key: str) -> str:
    """Return a value of the configuration of a virtual environment; empty if it is not there."""
    with open(os.path.join(environment, "pyvenv.cfg"), encoding="utf-8") as file:
        values = [line.partition("=")[2].strip() for line in file if line.partition("=")[0].strip() == key]
    return values[0] if values else ""


def _without_packages(member: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
    return None if _PACKAGES.match(member.name) else member


def _conda_pack(environment: str, archive: str) -> None:
    program = shutil.which("conda-pack", path=os.path.join(environment, "bin")) or shutil.which("conda-pack")
    if program is None:
        raise OSError("conda-pack is neither in the environment nor on the PATH of the job: install it")
    options = ["--prefix", environment, "--output", archive, "--format", "tar", "--force", "--quiet"]
    lenient = ["--ignore-editable-packages", "--ignore-missing-files"]
    _run(program, *options, *lenient)


def _run(*command: str) -> None:
    """Run a command; raise OSError with the line of its errors that has the cause if it fails."""
    result = subprocess.run(command, stderr=subprocess.PIPE)
    if result.returncode:
        lines = result.stderr.decode("utf-8", "replace").strip().split("\n")
        first = lines[-1 if lines[0].startswith("Traceback") else 0]
        causes = [line for line in lines if "No space left" in line or "quota" in line]
        raise OSError([*causes, first or "%s ended with exit code %d" % (command[0], result.returncode)][0])


def unpack(run: str, folder: str) -> None:
    """Extract a run's archive to a new folder, and note the time; OSError if the disk is full."""
    begin = time.time()
    with open(os.path.join(run, NOTES, PACKED), encoding="utf-8") as file:
        packed = json.load(file)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        _wait_for(folder)
        return
    environment = os.path.join(folder, "env")
    top = environment if packed["kind"] == "conda" else folder
    os.makedirs(top, exist_ok=True)
    _run("tar", "-xf", os.path.join(run, ARCHIVE), "-C", top)
    python = os.path.join(environment, "bin", "python")
    if packed["kind"] == "conda":
        _run(python, os.path.join(environment, "bin", "conda-unpack"))
    else:
        _move(packed["environment"], environment, packed["base"], os.path.join(folder, "python"))
    if not os.path.exists(python):
        raise OSError("this node lacks %s" % os.readlink(python))
    open(os.path.join(folder, _READY_FILE), "w").close()
    name = os.uname().nodename + "." + os.environ.get("SLURMD_NODENAME", "")
    _note(run, name.rstrip(".") + ".json", {"seconds": round(time.time() - begin, 3)})


def _wait_for(folder: str) -> None:
    """Wait until another node that shares the disk has unpacked the environment."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise OSError("%s is not a folder of this user" % folder)
    end = time.time() + _MAX_WAIT_SECONDS
    while not os.path.exists(os.path.join(folder, _READY_FILE)):
        if time.time() > end:
            raise OSError("no node has unpacked %s in %d s" % (folder, _MAX_WAIT_SECONDS))
        time.sleep(0.2)


def _move(old: str, new: str, old_base: str, new_base: str) -> None:
    """Put the new places of a virtual environment and of its Python into the files that name the old ones."""
    folder = os.path.join(new, "bin")
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        target = os.path.realpath(os.path.join(folder, os.readlink(path))) if os.path.islink(path) else ""
        if old_base and target.startswith(old_base + "/"):
            os.remove(path)
            os.symlink(new_base + target[len(old_base) :], path)
        elif not target and os.path.getsize(path) <= _MAX_SCRIPT_BYTES:
            _replace(path, old, new)
    if old_base:
        configuration = os.path.join(new, "pyvenv.cfg")
        with open(configuration, encoding="utf-8") as file:
            lines = file.readlines()
        home = "home = %s\n" % os.path.join(new_base, "bin")
        with open(configuration, "w", encoding="utf-8") as file:
            file.writelines(home if line.partition("=")[0].strip() == "home" else line for line in lines)


def _replace(path: str, old: str, new: str) -> None:
    """Replace a folder in a text; programs are left alone. After #! the kernel takes one short word."""
    with open(path, "rb") as file:
        text = file.read()
    if old.encode() in text and b"\0" not in text:
        text = text.replace(old.encode(), new.encode())
        first, _, remainder = text.partition(b"\n")
        if first.startswith(b"#!" + new.encode()) and (len(first) > _MAX_SHEBANG_BYTES or b" " in first):
            text = b"#!/bin/sh\n'''exec' \"%s\" \"$0\" \"$@\"\n' '''\n%s" % (first[2:], remainder)
        with open(path, "wb") as file:
            file.write(text)


def _note(run: str, name: str, note: Dict[str, Any]) -> None:
    folder = os.path.join(run, NOTES)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with open("%s.%d" % (path, os.getpid()), "w", encoding="utf-8") as file:
        json.dump(note, file)
    os.replace(file.name, path)


def main(arguments: List[str]) -> int:
    """Run one of the two steps; return the exit code. A failure is one line on standard error, and a note."""
    step = {"pack": pack, "unpack": unpack}[arguments[0]]
    run = arguments[2] if step is pack else arguments[1]
    try:
        step(arguments[1], arguments[2])
    except (OSError, tarfile.TarError) as error:
        reason = "%s: %s" % (os.uname().nodename, error)
        sys.stderr.write("hpcprof: the environment is not staged: %s.\n" % reason)
        _note(run, FAILED, {"step": arguments[0], "reason": reason})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
