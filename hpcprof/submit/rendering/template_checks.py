"""Checks of a user's template: what renders without an error can still profile nothing."""

import re
import shlex
from pathlib import Path

from jinja2 import nodes

from hpcprof.common.errors import UsageError, unknown
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.request import make_job
from hpcprof.submit.rendering.inheritance import ParsedTemplate, inheritance
from hpcprof.submit.rendering.job_scripts import check_directives
from hpcprof.submit.rendering.templates import render, template_environment, template_files
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import JOB_SCRIPT, WRAPPER, Rendering
from hpcprof.submit.sites.files import load_site

_KEEPS_STATUS = re.compile(r"\bstatus=\$\?")
_RECORDS_END = re.compile(r"^[^#\n]*\brecord\s+finished\b", re.MULTILINE)


def check_template(file: Path) -> None:
    """Render a template of job.sh with a simple job, and check what its blocks replace."""
    elsewhere = [name for name in template_files() if Path(name).name == file.name]
    if elsewhere and not elsewhere[0].endswith(".sh.j2"):
        raise UsageError(f"{file} is not a template of a script: only those (*.sh.j2) can be checked.")
    site = load_site("local")
    job = make_job(site, JobSpec(("true",)))
    texts = render(site, job, Rendering(Path("/run"), ["hpcprof"], ["mpiexec", "-n", "1"], ["true"], file))
    check_directives(texts[JOB_SCRIPT], ("#SBATCH ", "#PBS "), file)
    chain = inheritance(template_environment(file, find_scheduler(site.scheduler)), file.name)
    valid = {block.name for template in chain[1:] for block in template.tree.find_all(nodes.Block)}
    for statement in chain[0].tree.body if valid else ():
        # Jinja drops a block that replaces none without a word.
        if isinstance(statement, nodes.Block) and statement.name not in valid:
            raise unknown("block", statement.name, valid, f" in {chain[0].file}, line {statement.lineno}")
    if any(template.name == "job/base.sh.j2" for template in chain[1:]):
        _check_launch(chain[0], texts[JOB_SCRIPT])


def _check_launch(template: ParsedTemplate, script: str) -> None:
    """Check that a job.sh starts the wrapper, and keeps and records its exit code."""
    lines = script.replace("\\\n", " ").split("\n")
    starts = [i for i, line in enumerate(lines) if WRAPPER in line and not line.lstrip().startswith("#")]
    launch = _line_of(template, "launch")
    if not starts:
        raise UsageError(
            f"template {launch}: block launch does not start the wrapper, so no rank would be profiled; "
            f'start the program with {{{{ launch | launch_argv }}}} /bin/sh "$run_dir/{WRAPPER}" '
            "{{ program | argv }}."
        )
    command, following = lines[starts[-1]], lines[starts[-1] + 1 :]
    after = next((line for line in following if line.strip() and not line.lstrip().startswith("#")), "")
    if not _KEEPS_STATUS.search(f"{command}\n{after}"):
        lost = "block launch loses the exit code, so a failed run would not be noticed"
        raise UsageError(f"template {launch}: {lost}; put status=$? on the line after the command.")
    if "|" in _operators(command) and "pipefail" not in script:
        lost = "in block launch the exit code is that of the last command of the pipe"
        raise UsageError(f"template {launch}: {lost}; put set -o pipefail before it.")
    if not _RECORDS_END.search("\n".join(following)):
        raise UsageError(
            f"template {_line_of(template, 'epilogue')}: block epilogue does not record the exit code; add "
            'record finished "$status", or {{ super() }}.'
        )


def _operators(command: str) -> list[str]:
    words = shlex.shlex(command, posix=False, punctuation_chars=True)
    words.whitespace_split = True
    try:
        return [word for word in words if word and not word.strip("|&;<>()")]
    except ValueError:
        return []  # quotes over several lines


def _line_of(template: ParsedTemplate, block: str) -> str:
    node = next((b for b in template.tree.find_all(nodes.Block) if b.name == block), None)
    return f"{template.file}, line {node.lineno}" if node else template.file
