"""Patterns of failures, each with a recorded example."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from time import process_time

import pytest

from hpcprof.submit.runs.failure_causes import find_cause, patterns

RECORDED = Path(__file__).parents[3] / "data/failures"
MEANINGS = {
    "gpu_memory": "out of GPU memory: 200.00 GiB asked, 4.00 MiB held by PyTorch, 16.00 MiB reserved but "
    "unallocated, 76.74 GiB of 79.18 GiB free",
    "gpu_memory_before_torch_2_1": "out of GPU memory: 1.69 GiB asked, 649.97 MiB held by PyTorch, 1.01 GiB "
    "reserved, 1.31 GiB of 14.56 GiB free",
    "gpu_number": "it chose a GPU by a number that it does not see: a rank with GPUs of its own (the site's "
    "affinity, --gpus-per-task) counts them from 0, as LOCAL_RANK % torch.cuda.device_count() does; workers "
    "of torchrun after -- see all of the node",
    "host_memory_torch": "out of host memory: 4503599627370496 bytes asked",
    "host_memory_numpy": "out of host memory: 8.00 PiB asked",
    "data_loader": "a worker of its data loader is killed by signal: Killed",
    "socket_path": "a socket's path, which begins with TMPDIR, is too long for the system (107 characters): "
    "set a shorter TMPDIR",
    "shared_memory": "no space left on /dev/shm, the shared memory of the node",
    "nccl_watchdog": "NCCL timed out in collective 4, ALLREDUCE, which other ranks had not ended",
    "torch_teardown": "a thread still ran when the program ended, after its work: "
    "a PyTorch program has to call destroy_process_group() first",
    "gloo_timeout": "it waited 3000 ms for another rank in a collective",
    "gloo_mismatch": "gloo received 16 bytes where it expected 8: "
    "ranks entered different collectives or sizes",
    "mpich_abort": "called MPI_Abort with code 7",
    "mpich_error": "fatal error of MPICH in internal_Init_thread: Other MPI error",
    "open_mpi_abort": "called MPI_Abort with code 5",
    "full_disk": "no space left on /local/tmp while the profile was exported",
    "no_program": "/nonexistent/prog is not there, or the interpreter in its first line is not",
    "no_interpreter": r"python3\r, which env looked for, is not there",
    "other_architecture": "./arm is built for another kind of processor than this node's, or is no program",
    "slurm_memory": "out of memory: the kernel killed it on Orion-01-01",
    "flux_memory": "out of memory: the kernel killed it on node2",
    "pbs_other_limit": "PBS killed it: node 1 (n2) requested job die, code 15059",
    "slurm_node": "was lost with node worker-1",
    "open_mpi_node": "was lost with node d23n02",
    "launcher_killed": "was ended with the launcher, which a signal had ended (Killed)",
}
SHARED = {
    **dict.fromkeys(
        ("slurm_walltime", "slurm_launch_after_limit", "pbs_walltime", "lsf_walltime", "flux_walltime"),
        "walltime",
    ),
    **dict.fromkeys(
        ("slurm_memory_of_job", "pbs_memory", "pbs_memory_of_cgroup", "lsf_memory"), "memory_limit"
    ),
}
"""Records of failures whose pattern has several expressions."""
RANKS = {"open_mpi_abort": 1, "slurm_memory": 4}


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.txt")))
def test_each_recorded_failure_is_recognized_by_its_pattern(name: str) -> None:
    pattern = next(pattern for pattern in patterns() if pattern.name == SHARED.get(name, name))
    cause = find_cause(pattern.where, recorded(name))
    assert cause.name == pattern.name
    assert cause.meaning == MEANINGS.get(pattern.name, cause.meaning)
    assert "{" not in cause.meaning
    assert cause.rank == RANKS.get(pattern.name)


def test_each_expression_has_a_recorded_failure() -> None:
    names = Counter(SHARED.get(path.stem, path.stem) for path in RECORDED.glob("*.txt"))
    assert names == {pattern.name: 1 + len(pattern.others) for pattern in patterns()}
    assert len({pattern.name for pattern in patterns()}) == len(patterns())


def test_long_lines_are_read_in_proportion_to_their_length() -> None:
    began = process_time()
    for where in {pattern.where for pattern in patterns()}:
        find_cause(where, "x " * 15_000)
    assert process_time() - began < 3


def test_a_script_whose_interpreter_is_not_there_is_named_in_the_words_of_bash_too() -> None:
    text = "/a/wrapper.sh: line 182: ./train.sh: /old/bash: bad interpreter: No such file or directory\n"
    cause = find_cause("errors", text)
    assert cause is not None
    assert cause.meaning.startswith("./train.sh is not there, or the interpreter")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("[2026-09-14T17:14:38.784] error: Detected 1 oom_kill event in StepId=2.1.", "memory_limit"),
        (
            "slurmstepd: error: StepId=7.batch exceeded memory limit (734003200 > 52428800), being killed",
            "memory_limit",
        ),
        ("slurmstepd: error: Step 7.0 exceeded memory limit (2 > 1), being killed", "memory_limit"),
        ("slurmstepd: error: Exceeded step memory limit at some point.", "memory_limit"),
        (
            "[2026-01-25T14:35:32.001] error: *** JOB 4 ON n1 CANCELLED AT 2026-01-25T14:35:32 DUE TO TIME "
            "LIMIT ***",
            "walltime",
        ),
        ("Cgroup memsw limit exceeded: ", "memory_limit"),
    ],
)
def test_other_versions_of_a_scheduler_say_it_in_other_words(line: str, name: str) -> None:
    cause = find_cause("job_end", line)
    assert cause is not None
    assert cause.name == name


@pytest.mark.parametrize("where", ["exception", "errors", "job_errors", "job_end", "launch"])
def test_an_ordinary_error_has_no_cause(where: str) -> None:
    assert find_cause(where, "ValueError: no such batch\nretrying after a timeout of NCCL") is None  # type: ignore[arg-type]


def test_an_abort_after_the_work_of_a_program_names_the_missing_call() -> None:
    cause = find_cause("errors", "work done\nterminate called without an active exception")
    assert cause is not None and "destroy_process_group" in cause.meaning
    assert find_cause("errors", "terminate called after throwing an instance of 'std::bad_alloc'") is None
