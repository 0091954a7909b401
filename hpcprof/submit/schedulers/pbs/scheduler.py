"""PBS Pro and OpenPBS."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcprof.submit.schedulers.scheduler import JobArrays, Scheduler, Shortcoming, batch_job_name
from hpcprof.submit.sites.model import LauncherName, Site

if TYPE_CHECKING:
    from hpcprof.submit.schedulers.pbs.client import PbsClient
    from hpcprof.submit.sites.machine import Ask, Machine

# How PBS names the queues of reservations (PBS Professional Reference Guide: reservation ID).
_RESERVATION = re.compile(r"[RMS]\d+(\..*)?")


class PbsScheduler(Scheduler):
    """PBS, by qsub, qstat and qdel."""

    name = "pbs"
    title = "PBS"
    commands = ("qsub", "qstat", "qdel")
    silence_remedy = "Ask the operators whether PBS is running."
    arrays = JobArrays(
        "#PBS",
        # PBS accepts no array that cannot be run again.
        "#PBS -r y\n#PBS -J {}",
        "PBS_ARRAY_INDEX",
        "^array_index^",  # seen to work on OpenPBS 23.06
        least_members=2,
        forbidden=r"#PBS\s+-r\s*n",
        forbidden_reason="PBS accepts no array that cannot be run again (-r n)",
    )
    starters = (LauncherName.PALS, LauncherName.MPICH, LauncherName.OPENMPI)

    def client(self) -> PbsClient:
        """Return the client of this machine's default server."""
        from hpcprof.submit.schedulers.pbs.client import PbsClient

        return PbsClient()

    def accepts_queue(self, queue: str) -> bool:
        """Whether a queue is that of a reservation."""
        return _RESERVATION.fullmatch(queue) is not None

    def job_name(self, name: str) -> str:
        """Return the name without spaces, and at most 15 characters long for old versions."""
        return batch_job_name(name)

    def question(self, site: Site) -> list[str]:
        """Return the command that asks for the server and its settings."""
        return ["qstat", "-B", "-f", "-F", "json"]

    def shortcoming(self, answer: str) -> Shortcoming | None:
        """Return what is lost if the server keeps no finished jobs."""
        from hpcprof.submit.schedulers.pbs.parse import parse_job_history

        if parse_job_history(answer):
            return None
        return Shortcoming(
            "PBS keeps no job history, so only the files of a run show how it ended: a job that PBS killed "
            "(walltime, memory, a lost node) is failed with the reason 'ended without a record'.",
            "Ask the operators to set job_history_enable on the server.",
        )

    def probe(self, ask: Ask) -> Machine:
        """Return the queues and nodes that qstat and pbsnodes show."""
        from hpcprof.submit.schedulers.pbs.probe import probe_pbs

        return probe_pbs(ask)
