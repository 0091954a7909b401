"""The variables of the rank wrapper, and the defaults without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.workloads.rankenv import RankEnvironment, RankProfiler


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_wrapper_everything_has_a_sensible_value(value: str | None) -> None:
    names = ("RUN_DIR", "RANK", "LOCAL_RANK", "WORLD_SIZE", "PROFILER", "PROFILE_OUTPUT")
    environ = {} if value is None else {f"HPCPROF_{name}": value for name in names}
    environment = RankEnvironment.from_environment(environ)
    assert environment == RankEnvironment()
    assert environment.results_dir == Path("results")
    assert environment.profile_stem(12) == Path("profiles/rank00012")


def test_the_wrappers_exports_are_read() -> None:
    environment = RankEnvironment.from_environment(
        {
            "HPCPROF_RUN_DIR": "/runs/a b",
            "HPCPROF_RANK": "5",
            "HPCPROF_LOCAL_RANK": "1",
            "HPCPROF_WORLD_SIZE": "8",
            "HPCPROF_PROFILER": "nsys",
            "HPCPROF_PROFILE_OUTPUT": "/runs/a b/profiles/rank00005",
        }
    )
    assert environment == RankEnvironment(
        Path("/runs/a b"), 5, 1, 8, RankProfiler.NSYS, Path("/runs/a b/profiles/rank00005")
    )
    assert environment.results_dir == Path("/runs/a b/results")
    assert environment.profile_stem(0) == Path("/runs/a b/profiles/rank00005")


def test_a_profile_goes_to_the_run_directory_when_no_output_is_named() -> None:
    environment = RankEnvironment.from_environment({"HPCPROF_RUN_DIR": "/runs/x"})
    assert environment.profile_stem(2) == Path("/runs/x/profiles/rank00002")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("HPCPROF_RANK", "x", "HPCPROF_RANK is 'x': it must be a whole number from 0."),
        ("HPCPROF_LOCAL_RANK", "-1", "HPCPROF_LOCAL_RANK is '-1'"),
        ("HPCPROF_RANK", "²", "HPCPROF_RANK is '²'"),
        ("HPCPROF_WORLD_SIZE", "0", "it must be a whole number from 1."),
        ("HPCPROF_PROFILER", "nsy", "unknown profiler 'nsy' in HPCPROF_PROFILER; did you mean 'nsys'"),
    ],
)
def test_a_wrong_value_is_one_sentence_that_names_the_variable(name: str, value: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        RankEnvironment.from_environment({name: value})
    assert sentence in str(caught.value)


MPICH, OPEN_MPI = "MPICH Version: 5.0.2", "Open MPI v5.0.11"


@pytest.mark.parametrize(
    ("launcher", "type_", "library", "sentence"),
    [
        (
            "srun",
            "",
            MPICH,
            "MPI has 1 rank, but srun started 4 (--mpi=none): mpi4py uses MPICH Version: 5.0.2; give "
            "-o mpi=pmi2, or add --mpi=pmi2 to launcher.arguments of the site.",
        ),
        (
            "srun",
            "pmi2",
            OPEN_MPI,
            "started 4 (--mpi=pmi2): mpi4py uses Open MPI v5.0.11; give -o mpi=pmix,",
        ),
        ("srun", "pmi2", MPICH, "give -o mpi=TYPE with another type of srun --mpi=list."),
        (
            "mpiexec",
            "",
            OPEN_MPI,
            "but mpiexec started 4: mpi4py uses Open MPI v5.0.11; give the mpiexec of that MPI",
        ),
        ("pals", "", MPICH, "but pals started 4: mpi4py uses MPICH Version: 5.0.2; load the MPI module"),
        ("", "", MPICH, "but the launcher started 4: "),
    ],
)
def test_the_error_for_a_wrong_mpi_names_the_option_that_cures_it(
    launcher: str, type_: str, library: str, sentence: str
) -> None:
    names = {"HPCPROF_LAUNCHER": launcher, "SLURM_MPI_TYPE": type_, "HPCPROF_WORLD_SIZE": "4"}
    environment = RankEnvironment.from_environment(names)
    assert sentence in environment.wrong_library(1, library)
