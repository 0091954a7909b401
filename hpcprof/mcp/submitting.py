"""The two tools that start work: only job files that a person named, within node-hours that a person set.

A word ``{NAME}`` in the program of a job file is a parameter. An agent gives values for parameters, but no
command line. The server reads the files when it starts, so later changes to them have no effect. A submission
is charged nodes times the requested walltime, however long the job runs. The ledger of charges lies beside
the runs, so that they count after a restart too.
"""

import fcntl
import hmac
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

import msgspec

from hpcprof.common.decode import from_json, read_file
from hpcprof.common.errors import HpcprofError, UsageError, unknown, writing
from hpcprof.common.masking import masked_command
from hpcprof.common.units import counted
from hpcprof.mcp.answers import answer, mark_name
from hpcprof.runs.directory import Run, find_run
from hpcprof.runs.job import Job
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.job_file import load_job_file
from hpcprof.submit.jobs.request import resolve
from hpcprof.submit.jobs.walltime import format_walltime
from hpcprof.submit.rendering.job_scripts import draft_directory, render_masked
from hpcprof.submit.runs.captures import request_capture
from hpcprof.submit.schedulers.command import Refused
from hpcprof.submit.schedulers.scheduler import JOB_SCRIPT
from hpcprof.submit.sites.model import Site
from hpcprof.submit.submission import submit

LEDGER = "agent-node-hours.jsonl"
"""File in the folder of runs with a line for each submission of an agent."""

_PARAMETER = re.compile(r"\{([A-Za-z_]\w*)\}")
_PARAMETER_VALUE = re.compile(r"[\w.,:+=@%/ -]{1,200}")
_SCRIPT_LINES = 60
_MAX_CAPTURE_STEPS = 20


class Charge(msgspec.Struct, frozen=True):
    """A submission: the run, its job file, and the maximum node-hours that it can use."""

    run: str
    job_file: str
    node_hours: float
    time: str


class Budget:
    """Maximum ``node_hours`` that all submissions in the ledger may request together, from all servers."""

    def __init__(self, node_hours: float, runs_dir: Path) -> None:
        self.node_hours = node_hours
        self._path = runs_dir / LEDGER

    def spent(self) -> float:
        """Return the node-hours requested so far; raise HpcprofError if the ledger cannot be read."""
        return sum(charge.node_hours for charge in self.charges())

    def charges(self) -> list[Charge]:
        """Return the submissions so far."""
        if not self._path.exists():
            return []
        try:
            return [from_json(line, Charge) for line in read_file(self._path).splitlines()]
        except (OSError, msgspec.MsgspecError) as error:
            raise HpcprofError(f"{self._path} cannot be read: {error}.") from None

    def check(self, node_hours: float) -> None:
        """Refuse a request that exceeds what is left."""
        spent = self.spent()
        if spent + node_hours > self.node_hours:
            raise UsageError(
                f"the job may take {node_hours:.3g} node-hours by its walltime, and "
                f"{self.node_hours - spent:.3g} of {self.node_hours:g} are left: only the person who started "
                "this server can give more."
            )

    @contextmanager
    def charging(self, job_file: str, node_hours: float) -> Iterator[list[Run]]:
        """Charge a submission that the block makes and whose run it adds to the list.

        The charge is written first, so that it counts even if the server is killed in the block. It is
        removed if no job was submitted; a scheduler that did not answer may have the job.
        """
        with self._locked() as file:
            self.check(node_hours)
            size = file.seek(0, os.SEEK_END)
            self._write(file, Charge("?", job_file, node_hours, _now_text()))
            submitted_runs: list[Run] = []
            try:
                yield submitted_runs
            except (UsageError, Refused):
                file.truncate(size)
                raise
            file.truncate(size)
            self._write(file, Charge(submitted_runs[0].id, job_file, node_hours, _now_text()))

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        with writing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("a+b")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    @staticmethod
    def _write(file: IO[bytes], charge: Charge) -> None:
        file.write(msgspec.json.encode(charge) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _now_text() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class _PreparedJob(msgspec.Struct, frozen=True):
    job_file: str
    spec: JobSpec
    site: Site
    job: Job

    @property
    def node_hours(self) -> float:
        attempts = 2 if self.job.on_stall == "resubmit" else 1
        return attempts * self.job.nodes * self.job.walltime / 3600


class Submitting:
    """Submits the job files that a person has allowed."""

    def __init__(self, job_files: Sequence[Path], budget: Budget, runs_dir: Path) -> None:
        self._budget, self._runs_dir = budget, runs_dir
        self._secret = secrets.token_bytes()
        self._specs: dict[str, JobSpec] = {}
        for path in job_files:
            if path.stem in self._specs:
                raise UsageError(f"--allow-submit {path}: another file is called {path.stem} too.")
            self._specs[path.stem] = replace(load_job_file(path), runs_dir=runs_dir)

    def submit(self, job_file: str, parameters: dict[str, str] | None = None, confirm: str = "") -> str:
        """Submit one of the allowed job files; the first call is a dry run, whose answer has a confirmation.

        job_file: its name without .yaml; a wrong name lists them. parameters: a value for each {NAME} in its
        program. confirm: what the dry run returned, to submit exactly that job. Its node-hours count in full.
        """
        prepared = self._prepare(job_file, parameters or {})
        token = self._token(prepared)
        remaining = self._budget.node_hours - self._budget.spent()
        cost = f"{prepared.node_hours:.3g} of the {remaining:.3g} node-hours that"
        job = prepared.job
        size = f"{counted(job.nodes, 'node')} x {counted(job.ranks_per_node, 'rank')}"
        extent = f"{size} for {format_walltime(job.walltime)}"
        if not confirm:
            self._budget.check(prepared.node_hours)
            draft = draft_directory(prepared.site, self._runs_dir)
            typed = ["hpcprof", "mcp"]
            texts = render_masked(prepared.site, job, draft, typed, template=prepared.spec.template)
            head = (
                f"Dry run of {mark_name(job_file)}: {extent}, {cost} are left. To submit it: confirm={token}"
            )
            script = texts[JOB_SCRIPT].splitlines()
            # The program, which comes last in the script, must not be cut off.
            lines = [f"Program: {masked_command(job.words)}", *script[:_SCRIPT_LINES]]
            return answer(
                [head], lines, "the script of the job", [f"The script has {len(script)} lines in all."]
            )
        if not hmac.compare_digest(confirm.encode(), token.encode()):
            raise UsageError(
                "confirm does not match this job, its parameters and this server: make a dry run first."
            )
        with self._budget.charging(prepared.job_file, prepared.node_hours) as submitted_runs:
            command_line = ["hpcprof", "submit", *prepared.spec.to_arguments()]
            submitted_runs.append(
                submit(prepared.site, job, self._runs_dir, command_line, prepared.spec.template)
            )
        run = submitted_runs[0]
        return answer(
            [f"Submitted {run.id}: {extent}, {cost} were left. Follow it with find_runs and log_excerpt."]
        )

    def capture(self, run: str, steps: int = 5) -> str:
        """Let a running job record some of its next steps; only jobs that this server's job files submitted.

        The traces are there some seconds after these steps; then explain the run.
        """
        charged = None if "/" in run else find_run(run, self._runs_dir)
        if charged is None or charged.id not in {charge.run for charge in self._budget.charges()}:
            raise UsageError(f"{run!r} was not submitted by an agent, so agents cannot capture it.")
        if not 0 < steps <= _MAX_CAPTURE_STEPS:
            raise UsageError(f"steps {steps}: give a number from 1 to {_MAX_CAPTURE_STEPS}.")
        request, ranks_recording = request_capture(charged, steps)
        last = request.first + request.steps - 1
        ranks = counted(len(ranks_recording), "rank")
        return answer([f"{mark_name(charged.id)} records steps {request.first} to {last} on {ranks}."])

    def _prepare(self, job_file: str, parameters: dict[str, str]) -> _PreparedJob:
        spec = self._specs.get(job_file)
        if spec is None:
            raise unknown("job file", job_file, self._specs)
        declared = {name for word in spec.program for name in _PARAMETER.findall(word)}
        if declared != parameters.keys():
            names = ", ".join(sorted(parameters)) or "none"
            wanted = ", ".join(sorted(declared)) or "none"
            raise UsageError(f"{job_file} has the parameters {wanted}; given: {names}.")
        for key, value in parameters.items():
            if not _PARAMETER_VALUE.fullmatch(value) or value.startswith("-"):
                raise UsageError(
                    f"{key} = {value!r}: use letters, digits, spaces and _ . , : + = @ % / -, no - first."
                )
        program = tuple(_PARAMETER.sub(lambda match: parameters[match[1]], word) for word in spec.program)
        spec = replace(spec, program=program)
        return _PreparedJob(job_file, spec, *resolve(spec))

    def _token(self, prepared: _PreparedJob) -> str:
        content = msgspec.json.encode([prepared.job, prepared.site])
        return hmac.new(self._secret, content, "sha256").hexdigest()[:16]
