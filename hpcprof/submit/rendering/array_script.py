"""The script of a job array, array.sh, which starts the job.sh of the member with the scheduler's index.

It is in the directory of the sweep. The run directories of the members are beside that directory; their names
are its name, a dot and the index.
"""

import re
import shlex
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from hpcprof.common.errors import UsageError
from hpcprof.common.paths import from_root
from hpcprof.submit.rendering.templates import render_text
from hpcprof.submit.schedulers.scheduler import JobArrays

ARRAY_TEMPLATE = "job/array.sh.j2"


def member_directory(sweep_directory: Path, index: int | str) -> Path:
    """Return the run directory of one member."""
    return sweep_directory.with_name(f"{sweep_directory.name}.{index}")


def render_array_script(
    arrays: JobArrays,
    job_scripts: Sequence[str],
    sweep_directory: Path,
    command_line: Sequence[str],
    at_once: int | None = None,
    template: Path | None = None,
    name: str = ARRAY_TEMPLATE,
) -> str:
    """Return the text of array.sh.

    ``job_scripts`` are the texts of the members' job.sh, rendered for their run directories, in the order of
    the indices; they may differ in the paths of logs alone, since an array has one set of directives. The
    name of ``sweep_directory`` is the sweep's id. Templates are searched first in the folder of ``template``,
    the one of job.sh; ``name`` is rendered.
    """
    directory = from_root(sweep_directory)
    sets = []
    names = [f"/{member_directory(directory, index).name}/" for index in range(len(job_scripts))]
    pattern = f"/{member_directory(directory, arrays.index_in_path).name}/"
    shared = (arrays.shared,) if arrays.shared else ()
    for member, text in zip(names, job_scripts, strict=True):
        lines = _directives(text, arrays.mark)
        sets.append(
            [line.replace(member, names[0] if line.startswith(shared) else pattern) for line in lines]
        )
    for other in sets[1:]:
        if other != sets[0]:
            raise UsageError(f"--array: {_difference(sets[0], other)}.")
    if arrays.forbidden and any(re.fullmatch(arrays.forbidden, line.strip()) for line in sets[0]):
        raise UsageError(f"--array: {arrays.forbidden_reason}; leave --array out.")
    span = f"0-{len(job_scripts) - 1}"
    throttle = f"%{at_once}" if at_once is not None and at_once < len(job_scripts) else ""
    shebang = job_scripts[0].partition("\n")[0]
    values = {
        "shebang": shebang if shebang.startswith("#!") else "#!/bin/bash",
        "command_line": shlex.join(command_line),
        "directives": [*sets[0], *arrays.directives.format(span + throttle).split("\n")],
        "sweep_directory": str(directory),
        "index": arrays.index_variable,
        "span": span,
    }
    return render_text(name, values, template)


def check_array_template(file: Path) -> None:
    """Render a template of array.sh with a simple array."""
    arrays = JobArrays("#BATCH", "#BATCH --array={}", "INDEX", "%i")
    scripts = ["#!/bin/bash\n"] * 2
    render_array_script(arrays, scripts, Path("/sweep"), ["hpcprof"], template=file, name=file.name)


def _directives(script: str, mark: str) -> list[str]:
    """Return the directives of a script: batch systems read them up to the first command."""
    head = takewhile(lambda line: not line.strip() or line.startswith("#"), script.split("\n"))
    return [line for line in head if line.startswith(mark)]


def _difference(first: Sequence[str], other: Sequence[str]) -> str:
    ours = [line for line in first if line not in other]
    theirs = [line for line in other if line not in first]
    named = " and ".join(filter(None, (", ".join(ours), ", ".join(theirs)))) or "the order of directives"
    return f"the runs differ in {named}, but those of an array share their directives; leave --array out"
