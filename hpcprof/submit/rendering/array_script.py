"""The script of a job array, which starts the job.sh of the member that the scheduler's index names.

A sweep's directory holds it; the members' run directories stand beside that directory, under its name, a
dot and their index.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcprof.common.errors import UsageError
from hpcprof.submit.rendering.templates import render_text
from hpcprof.submit.sites.model import SchedulerName

TEMPLATE = "job/array.sh.j2"


@dataclass(frozen=True)
class _Dialect:
    mark: str
    array: str
    index: str
    """The variable that holds a member's index."""
    index_in_path: str
    """What becomes the index in the path of a log."""


_DIALECTS = {
    SchedulerName.SLURM: _Dialect("#SBATCH", "#SBATCH --array={}", "SLURM_ARRAY_TASK_ID", "%a"),
    # PBS takes no array that may not run again; the tag was seen to work on OpenPBS 23.06.
    SchedulerName.PBS: _Dialect("#PBS", "#PBS -r y\n#PBS -J {}", "PBS_ARRAY_INDEX", "^array_index^"),
}


def member_directory(sweep_directory: Path, index: int | str) -> Path:
    """Return the run directory of one member."""
    return sweep_directory.with_name(f"{sweep_directory.name}.{index}")


def array_script(
    scheduler: SchedulerName,
    job_scripts: Sequence[str],
    sweep_directory: Path,
    command_line: Sequence[str],
    at_once: int | None = None,
    template: Path | None = None,
) -> str:
    """Return the text of array.sh for members that were rendered for their own run directories.

    Parameters
    ----------
    scheduler : SchedulerName
        Slurm or PBS.
    job_scripts : sequence of str
        The members' job.sh, in the order of their indices.
    sweep_directory : Path
        Where array.sh will stand; its name is the sweep's id.
    command_line : sequence of str
        What the user asked for.
    at_once : int, optional
        How many members may run together.
    template : Path, optional
        The template of job.sh, whose folder comes first.

    Raises
    ------
    UsageError
        If the members' directives differ in more than where their logs go: an array has one set of them.
    """
    values = _values(_DIALECTS[scheduler], job_scripts, sweep_directory, command_line, at_once)
    return render_text(TEMPLATE, values, template)


def check_array_template(file: Path) -> None:
    """Render a template of array.sh with a plain array.

    Raises
    ------
    UsageError
        If it is broken, or uses a name that does not exist.
    """
    values = _values(_DIALECTS[SchedulerName.SLURM], ["#!/bin/bash\n"] * 2, Path("/sweep"), ["hpcprof"], None)
    render_text(file.name, values, file)


def _values(
    dialect: _Dialect,
    job_scripts: Sequence[str],
    sweep_directory: Path,
    command_line: Sequence[str],
    at_once: int | None,
) -> dict[str, Any]:
    """Return what the template gets."""
    directory = sweep_directory.absolute()
    sets = []
    for index, text in enumerate(job_scripts):
        own, common = (f"{member_directory(directory, part)}/" for part in (index, dialect.index_in_path))
        sets.append([line.replace(own, common) for line in _directives(text, dialect.mark)])
    for other in sets[1:]:
        if other != sets[0]:
            raise UsageError(f"--array: {_difference(sets[0], other)}.")
    if any(re.fullmatch(r"#PBS\s+-r\s*n", line.strip()) for line in sets[0]):
        raise UsageError("--array: PBS takes no array that may not run again (-r n); leave --array out.")
    span = f"0-{len(job_scripts) - 1}"
    throttle = f"%{at_once}" if at_once is not None and at_once < len(job_scripts) else ""
    shebang = job_scripts[0].partition("\n")[0]
    return {
        "shebang": shebang if shebang.startswith("#!") else "#!/bin/bash",
        "command_line": shlex.join(command_line),
        "directives": [*sets[0], *dialect.array.format(span + throttle).split("\n")],
        "sweep_directory": str(directory),
        "index": dialect.index,
        "span": span,
    }


def _directives(script: str, mark: str) -> list[str]:
    """Return the directives of a script, which both batch systems read up to the first command."""
    found = []
    for line in script.split("\n"):
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith(mark):
            found.append(line)
    return found


def _difference(first: Sequence[str], other: Sequence[str]) -> str:
    ours = [line for line in first if line not in other]
    theirs = [line for line in other if line not in first]
    named = " and ".join(filter(None, (", ".join(ours), ", ".join(theirs)))) or "the order of directives"
    return f"the runs differ in {named}, but all of an array have the same; make it so, or leave --array out"
