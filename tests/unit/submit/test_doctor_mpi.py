"""The doctor's check of MPI on sites whose launcher is srun, and what ``sites new`` writes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcprof.submit.doctor import Inspected, Status, examine
from hpcprof.submit.doctor.machine import Answer
from hpcprof.submit.doctor.mpi import mpi, probe_srun
from hpcprof.submit.sites.files import load_site, load_site_file
from hpcprof.submit.sites.model import Site
from hpcprof.submit.sites.probe import add_mpi
from tests.unit.submit.schedulers.recorded import recorded_machine
from tests.unit.submit.test_doctor import made_up

LIST = recorded_machine("srun_mpi_list.txt")
GRANTED = Answer(0, stderr="salloc: Pending job allocation 7\nsalloc: Granted job allocation 7\n")
MPICH = Answer(0, "MPICH Version:      5.0.2\nMPICH Release date: …\n")
OPEN_MPI = Answer(0, "Open MPI v5.0.11, package: Open MPI user@localhost Distribution\n")


class Slurm:
    """A cluster on which two ranks are one job with the type ``works``; ``ran`` holds the commands."""

    def __init__(
        self,
        works: str | None = "pmi2",
        library: Answer = MPICH,
        listed: Answer | None = None,
        granted: Answer = GRANTED,
    ) -> None:
        self.works, self.library, self.granted = works, library, granted
        self.listed = listed or Answer(0, LIST)
        self.ran: list[list[str]] = []

    def __call__(self, words: Sequence[str], environment: object = None, seconds: object = None) -> Answer:
        self.ran.append(list(words))
        if words[:2] == ("srun", "--mpi=list"):
            return self.listed
        if words[0] == "srun":
            type_ = next((w.partition("=")[2] for w in reversed(words) if w.startswith("--mpi=")), "")
            return Answer(0) if type_ == self.works else Answer(1, stderr="srun: error: exit code 1")
        others = {"salloc": self.granted, "scancel": Answer(0), "scontrol": Answer(0)}
        return others.get(words[0], self.library)

    def machine(self, site: str | Site = "generic-slurm", **changes: Any) -> Inspected:
        return made_up({"srun": Answer(0)}, site=site, run=self, **changes)

    def named(self, program: str) -> list[list[str]]:
        return [words for words in self.ran if words[0] == program]


def with_type(default: str, *arguments: str) -> Site:
    site = load_site("generic-slurm")
    options = {**site.options, "mpi": replace(site.options["mpi"], default=default)}
    return replace(site, options=options, launcher=replace(site.launcher, arguments=list(arguments)))


def test_no_ranks_start_outside_a_job_unless_they_are_asked_for() -> None:
    slurm = Slurm()
    finding = mpi(slurm.machine())
    assert slurm.ran == [["srun", "--mpi=list"]]
    assert finding.status is Status.OK
    assert "srun has the types cray_shasta, pmi2, pmix" in finding.observation
    assert "--probe" in finding.remedy


def test_a_probe_starts_two_ranks_with_each_type_until_they_form_one_job_and_gives_the_node_back() -> None:
    slurm = Slurm()
    probe = probe_srun(slurm.machine(probe=True))
    assert (probe.type, probe.finding.status) == ("pmi2", Status.OK)
    assert probe.finding.observation == "2 ranks of MPICH 5.0.2 form one job with srun --mpi=pmi2."
    (asked,) = slurm.named("salloc")
    assert {"--no-shell", "--nodes=1", "--ntasks=2", "--immediate=120", "--time=5"} <= set(asked)
    started = [words for words in slurm.named("srun") if "--jobid=7" in words]
    assert [[w for w in words if "mpi" in w and "-" in w[:2]] for words in started] == [
        [],
        ["--mpi=cray_shasta"],
        ["--mpi=pmi2"],
    ]
    assert slurm.ran[-1] == ["scancel", "7"]


def test_inside_a_job_two_ranks_start_in_it() -> None:
    slurm = Slurm()
    assert probe_srun(slurm.machine(environment={"SLURM_JOB_ID": "3"})).type == "pmi2"
    assert not slurm.named("salloc") and not slurm.named("scancel")
    assert all("--overlap" in words for words in slurm.named("srun")[1:])


def test_the_node_is_given_back_if_the_probe_is_interrupted() -> None:
    slurm = Slurm()

    def interrupted(words: Sequence[str], *others: object, **more: object) -> Answer:
        if "--jobid=7" in words:
            raise KeyboardInterrupt
        return slurm(words)

    on = made_up({"srun": Answer(0)}, site="generic-slurm", run=interrupted, probe=True)
    with pytest.raises(KeyboardInterrupt):
        list(examine(on, {"MPI": mpi}))
    assert slurm.ran[-1] == ["scancel", "7"]


def test_the_allocation_asks_for_what_the_sites_jobs_ask_for() -> None:
    node = replace(load_site("generic-slurm").node, cores=8, gpus=2)
    site = replace(load_site("generic-slurm"), node=node, queue="gpu", directives=["-S 8", "--exclusive"])
    slurm = Slurm()
    mpi(slurm.machine(site, probe=True))
    (asked,) = slurm.named("salloc")
    assert asked[-5:] == ["--partition=gpu", "-S", "8", "--exclusive", "--gpus-per-node=2"]


@pytest.mark.parametrize(
    ("slurm", "site", "status", "observation", "remedy"),
    [
        (Slurm(works=""), with_type("auto"), Status.OK, "with srun and Slurm's default type.", ""),
        (Slurm(), with_type("pmi2"), Status.OK, "form one job with srun --mpi=pmi2.", ""),
        (
            Slurm(),
            with_type("pmix"),
            Status.BROKEN,
            "form no job with srun and --mpi=pmix, but they do with srun --mpi=pmi2.",
            "Set the default of the site's option mpi to pmi2.",
        ),
        (
            Slurm(),
            with_type(""),
            Status.BROKEN,
            "form no job with srun and Slurm's default type, but they do with srun --mpi=pmi2.",
            "option mpi to pmi2.",
        ),
        (
            Slurm(),
            with_type("auto", "--mpi=pmix"),
            Status.BROKEN,
            "form no job with srun and --mpi=pmix, but they do with srun --mpi=pmi2.",
            "option mpi to pmi2.",
        ),
        (
            Slurm(works=None, library=OPEN_MPI),
            with_type("auto"),
            Status.BROKEN,
            "no job of 2 ranks of Open MPI v5.0.11 (tried Slurm's default, cray_shasta, pmi2, pmix)",
            "Open MPI needs pmix.",
        ),
        (
            Slurm(),
            with_type("pmi3"),
            Status.BROKEN,
            "The site names srun --mpi=pmi3, but srun has cray_shasta, pmi2, pmix.",
            "option mpi to one of them.",
        ),
        (
            Slurm(listed=Answer(1, stderr="srun: fatal: no configuration")),
            with_type("auto"),
            Status.WARNING,
            "names no type that connects ranks: srun: fatal: no configuration.",
            "launcher",
        ),
        (
            Slurm(library=Answer(1, stderr="ModuleNotFoundError: No module named 'mpi4py'")),
            with_type("auto"),
            Status.WARNING,
            "has no mpi4py",
            "Install hpcprof[workloads]",
        ),
        (
            Slurm(library=Answer(1, stderr="ImportError: libmpi.so.12: cannot open shared object file")),
            with_type("auto"),
            Status.BROKEN,
            "cannot load its MPI library: ImportError: libmpi.so.12",
            "Load the MPI module",
        ),
        (
            Slurm(
                granted=Answer(1, stderr="salloc: error: Unable to allocate resources: Connection timed out")
            ),
            with_type("auto"),
            Status.WARNING,
            "No ranks were started: Slurm gave no node within 120 s.",
            "Try again later, or inside a job",
        ),
        (
            Slurm(granted=Answer(1, stderr="salloc: error: Job submit/allocate failed: Invalid account")),
            with_type("auto"),
            Status.WARNING,
            "No ranks were started: salloc: error: Job submit/allocate failed: Invalid account.",
            "SALLOC_ACCOUNT",
        ),
    ],
)
def test_the_finding_names_the_cure(
    slurm: Slurm, site: Site, status: Status, observation: str, remedy: str
) -> None:
    finding = mpi(slurm.machine(site, probe=True))
    assert finding.status is status
    assert observation in finding.observation
    assert remedy in finding.remedy


def test_a_machine_without_srun_is_not_a_login_node_of_the_site() -> None:
    finding = mpi(made_up(site="generic-slurm"))
    assert (finding.status, finding.observation) == (Status.ABSENT, "srun is not on the PATH.")


@pytest.mark.parametrize(
    ("site", "environment", "started"),
    [("generic-pbs", {}, False), ("generic-pbs", {"PBS_JOBID": "1.pbs"}, True), ("local", {}, True)],
)
def test_mpiexec_starts_ranks_only_where_jobs_run(
    site: str, environment: dict[str, str], started: bool
) -> None:
    answers = {"mpiexec": Answer(0, "rank 1 of 2\nrank 0 of 2\n")}
    finding = mpi(made_up(answers, site=site, environment=environment))
    assert finding.status is Status.OK
    assert ("starts 2 ranks of one job" in finding.observation) == started


def test_the_launcher_of_the_site_is_the_one_that_is_tried() -> None:
    site = replace(load_site("generic-pbs"), launcher=load_site("kubernetes").launcher)
    assert mpi(made_up(site=site)).observation == "mpirun is not on the PATH."
    assert mpi(made_up(site="kubernetes")).status is Status.ABSENT
    for name in ("torchrun", "none"):
        launcher = replace(load_site("local").launcher, name=type(site.launcher.name)(name))
        finding = mpi(made_up(site=replace(load_site("local"), launcher=launcher)))
        assert finding.observation == f"The site starts its ranks without MPI (launcher {name})."


@pytest.mark.parametrize(("works", "default"), [("pmi2", "pmi2"), ("", ""), (None, "auto")])
def test_a_new_site_gets_the_type_that_connected_two_ranks(
    tmp_path: Path, works: str | None, default: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: generic-slurm\nverified: false\n")
    seen = add_mpi(path, Slurm(works).machine(load_site_file(path), probe=True))
    assert f"\n# MPI: {seen}\n" in path.read_text()
    site = load_site_file(path)
    assert site.options["mpi"].default == default
    assert site.options["mpi"].help == load_site("generic-slurm").options["mpi"].help
