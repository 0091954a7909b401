"""Profilers: their settings, and what they refuse to run."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.profilers import PROFILERS
from hpcprof.submit.profilers.base import FOLDER, OnNode, PerfEvents, Target, Versioned, target_of
from hpcprof.submit.sites.files import load_site
from tests.jobs import make_job

LOCAL = load_site("local")
OURS = Target("sequence-parallel", ranks=4)
USERS = Target(None, ranks=4)


def ncu(**settings: str) -> dict[str, str]:
    return PROFILERS["ncu"].resolve({key.replace("_", "-"): value for key, value in settings.items()})


def nsys_flags(target: Target, **settings: str) -> tuple[object, ...]:
    return PROFILERS["nsys"].flags(target, PROFILERS["nsys"].resolve(settings))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, r"ncu needs --profiler-option kernel=REGEX: replaying a communication kernel hangs"),
        ({"kernel": "gemm"}, "ncu needs --profiler-option launch-count=N"),
        ({"kernel": ".*", "launch_count": "3"}, "also matches nccl"),
        ({"kernel": "Reduce", "launch_count": "3"}, "also matches ncclDevKernel_AllReduce"),
        ({"kernel": "gemm|nccl", "launch_count": "3"}, "also matches nccl"),
        ({"kernel": "all_reduce", "launch_count": "3"}, "also matches multimem_all_reduce_kernel"),
        ({"kernel": "gemm", "launch_count": "0"}, "launch-count=0: write a whole number from 1"),
        ({"kernel": "(", "launch_count": "3"}, "not a regular expression"),
    ],
)
def test_ncu_never_runs_on_several_ranks_where_it_could_replay_communication(
    settings: dict[str, str], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        PROFILERS["ncu"].check(OURS, ncu(**settings))


FAMILIES = """
AllReduce AllGather ReduceScatter Broadcast _Reduce_ SendRecv ncclKernel nvshmem multimem one_shot two_shot
cross_device_reduce
"""


@pytest.mark.parametrize("family", FAMILIES.split())
def test_no_family_of_communication_kernels_may_be_chosen_for_ncu(family: str) -> None:
    with pytest.raises(UsageError, match="replaying a communication kernel hangs"):
        PROFILERS["ncu"].check(OURS, ncu(kernel=f"gemm|{family}", launch_count="3"))


def test_ncu_with_a_narrow_filter_and_a_count_is_accepted_and_says_both() -> None:
    settings = ncu(kernel="^nvjet|gemm", launch_count="12")
    PROFILERS["ncu"].check(OURS, settings)
    argv = PROFILERS["ncu"].flags(OURS, settings)
    assert {"--kernel-name=regex:^nvjet|gemm", "--launch-count=12", "--clock-control=none"} <= set(argv)
    assert "--profile-from-start=off" in argv


def test_ncus_that_know_of_each_other_may_replay_communication() -> None:
    together = ncu(communicator="tcp")
    PROFILERS["ncu"].check(Target(None, ranks=4, profiled=4), together)
    for target in (Target(None, ranks=4, profiled=1), Target(None, ranks=4, profiled=4, nodes=2)):
        with pytest.raises(UsageError, match="all ranks of one node must run under ncu"):
            PROFILERS["ncu"].check(target, together)


def test_ncu_collects_what_a_roofline_needs_unless_told_otherwise() -> None:
    needed = {
        "--section=SpeedOfLight_RooflineChart",
        "--section=SpeedOfLight_HierarchicalHalfRooflineChart",
        "--section=SpeedOfLight_HierarchicalTensorRooflineChart",
    }
    target = Target(None, ranks=1)
    assert needed <= set(PROFILERS["ncu"].flags(target, ncu()))
    assert not needed & set(PROFILERS["ncu"].flags(target, ncu(sections="SpeedOfLight")))


def test_ncu_on_one_rank_needs_no_filter() -> None:
    PROFILERS["ncu"].check(Target(None, ranks=1), ncu())


@pytest.mark.parametrize(
    ("target", "capture", "ranged"),
    [(OURS, "auto", True), (USERS, "auto", False), (USERS, "range", True), (OURS, "whole", False)],
)
def test_nsys_captures_a_range_only_of_a_program_that_opens_one(
    target: Target, capture: str, ranged: bool
) -> None:
    argv = nsys_flags(target, capture=capture)
    assert ("--capture-range=cudaProfilerApi" in argv) is ranged
    # The default end, stop-shutdown, ends the program.
    assert ("--capture-range-end=stop" in argv) is ranged


def test_several_spans_of_steps_are_ranges_that_nsys_repeats() -> None:
    assert "--capture-range-end=repeat:3" in nsys_flags(Target("sequence-parallel", ranks=4, captures=3))
    # These workloads mark no steps: a range that nobody opens would leave no profile.
    for name in ("network", "calls"):
        assert "--capture-range=cudaProfilerApi" not in nsys_flags(Target(name, ranks=2))
    assert "--capture-range-end=stop" in nsys_flags(Target("sequence-parallel", ranks=4, captures=1))


def test_nsys_keeps_the_mpi_teams_of_a_part_of_the_ranks_to_each_rank() -> None:
    nsys = PROFILERS["nsys"]
    assert nsys.environment(OURS, nsys.resolve({})) == {"NSYS_MPI_STORE_TEAMS_PER_RANK": "1"}
    assert nsys.environment(OURS, nsys.resolve({"trace": "cuda"})) == {}


def test_nsys_records_the_kernels_inside_graphs_of_programs_in_jax() -> None:
    for target, given, graphs in (
        (Target(None, ranks=1, uses_jax=True), {}, "node"),
        (Target(None, ranks=1, uses_jax=True), {"cuda-graph-trace": "graph"}, "graph"),
        (USERS, {"cuda-graph-trace": "node"}, "node"),
    ):
        gpu, *_ = (flag for flag in nsys_flags(target, **given) if isinstance(flag, OnNode))
        assert gpu.passed[1] == f"--cuda-graph-trace={graphs}"


def test_nsys_traces_cuda_only_where_there_is_a_gpu_and_says_so() -> None:
    gpu, *_ = (flag for flag in nsys_flags(USERS) if isinstance(flag, OnNode))
    assert gpu.passed == ("--trace=cuda,nvtx{with_mpi}", "--cuda-graph-trace=graph")
    assert (gpu.failed, gpu.missing) == (("--trace=nvtx{with_mpi}",), "no GPU: CUDA is not traced")
    assert "--trace=nvtx,osrt" in nsys_flags(USERS, trace="nvtx,osrt")
    needs_gpus = PROFILERS["nsys"].needs_gpus
    resolve = PROFILERS["nsys"].resolve
    assert not needs_gpus(resolve({}))
    assert needs_gpus(resolve({"trace": "cuda"})) and needs_gpus(resolve({"gpu-metrics": "true"}))


def test_nsys_exports_to_a_file_or_to_a_folder_that_replaces_an_earlier_one() -> None:
    nsys = PROFILERS["nsys"]
    assert nsys.suffix_of(nsys.resolve({})) == ".sqlite"
    settings = nsys.resolve({"export": "parquet"})
    assert nsys.suffix_of(settings) == "_pqtdir"
    export, *moves = nsys.afterwards(USERS, settings)
    assert "--type=parquetdir" in export
    assert moves == [
        ("rm", "-rf", "{output}_pqtdir.part", "{output}_pqtdir"),
        ("mv", "-f", "{scratch}/profile_pqtdir", "{output}_pqtdir.part"),
        ("mv", "-f", "{output}_pqtdir.part", "{output}_pqtdir"),
    ]


def test_nsys_gets_the_mpi_of_the_program_unless_it_is_given() -> None:
    chosen = [flag for flag in nsys_flags(USERS) if isinstance(flag, OnNode) and "mpi_is" in flag.test]
    assert [(flag.test, flag.passed) for flag in chosen] == [
        ("mpi_is openmpi", ("--mpi-impl=openmpi",)),
        ("mpi_is mpich", ("--mpi-impl=mpich",)),
    ]
    given = nsys_flags(USERS, **{"mpi-impl": "mpich"})
    assert "--mpi-impl=mpich" in given
    assert not [flag for flag in given if isinstance(flag, OnNode) and "mpi_is" in flag.test]


def scorep(**settings: str) -> dict[str, str]:
    return PROFILERS["scorep"].resolve({key.replace("_", "-"): value for key, value in settings.items()})


def test_scorep_has_the_same_settings_on_all_ranks_and_one_folder_in_the_run() -> None:
    given = scorep(total_memory="1G", papi="PAPI_TOT_INS", filter="/home/me/filter")
    assert PROFILERS["scorep"].environment(USERS, given) == {
        "SCOREP_ENABLE_TRACING": "true",
        "SCOREP_ENABLE_PROFILING": "false",
        "SCOREP_EXPERIMENT_DIRECTORY": f"{FOLDER}/scorep",
        "SCOREP_TOTAL_MEMORY": "1G",
        "SCOREP_METRIC_PAPI": "PAPI_TOT_INS",
        "SCOREP_FILTERING_FILE": "/home/me/filter",
    }
    assert PROFILERS["scorep"].flags(USERS, given) == ()


@pytest.mark.parametrize(
    ("target", "settings", "says"),
    [
        (Target(None, ranks=4, profiled=1), {}, "all ranks into one archive: leave --profile-ranks out"),
        (Target(None, ranks=4, profiled=4, captures=1), {}, "Score-P records the whole program"),
        (Target(None, ranks=4, profiled=4), {"total_memory": "much"}, "write a size of at most 4G"),
        (Target(None, ranks=4, profiled=4), {"total_memory": "5G"}, "write a size of at most 4G"),
    ],
)
def test_scorep_refuses_what_it_cannot_record(target: Target, settings: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        PROFILERS["scorep"].check(target, scorep(**settings))
    PROFILERS["scorep"].check(Target(None, ranks=4, profiled=4), scorep())


def test_what_scorep_complains_about_is_the_end_of_a_sentence() -> None:
    complaint = PROFILERS["scorep"].complaint
    said = "[Score-P] src/measurement/scorep_runtime_management.c:333: Error: File exists: cannot create.\n"
    assert complaint(said) == ": Score-P says 'File exists: cannot create'"
    assert complaint("[Score-P] Trace buffer flush on rank 0.\n") == ""


def test_nsys_samples_nothing_unless_asked() -> None:
    assert {"--sample=none", "--cpuctxsw=none"} <= set(nsys_flags(OURS))


def test_stacks_of_a_program_in_python_are_samples_of_python() -> None:
    nsys = PROFILERS["nsys"]
    flags = nsys.flags(USERS, nsys.resolve(nsys.stacks))
    assert {Versioned(("--python-sampling",), "true"), "--sample=none"} <= {*flags}
    assert not [flag for flag in flags if isinstance(flag, PerfEvents)]


def test_stacks_of_another_program_are_samples_of_the_cpu_where_the_node_permits_them() -> None:
    nsys = PROFILERS["nsys"]
    flags = nsys.flags(Target(None, ranks=4, in_python=False), nsys.resolve(nsys.stacks))
    (perf,) = (flag for flag in flags if isinstance(flag, PerfEvents))
    assert perf.permitted == ("--sample=process-tree", "--cudabacktrace=sync,memory")
    assert perf.refused == ("--sample=none",)
    assert not [flag for flag in flags if isinstance(flag, str) and flag.startswith("--sample")]


@pytest.mark.parametrize(
    ("command", "in_python"),
    [
        (["python3.12", "-u", "train.py"], True),
        (["torchrun", "--nproc-per-node=4", "train.py"], True),
        (["./train.py"], True),
        (["./solver", "--python", "no"], False),
    ],
)
def test_the_command_tells_whether_a_program_is_in_python(command: list[str], in_python: bool) -> None:
    job = make_job(LOCAL, arguments=command, profiler="nsys", draft=True)
    assert target_of(job).in_python is in_python


@pytest.mark.parametrize(("profiler", "option"), [("torch", "with_stack"), ("nsys", "stacks")])
def test_stacks_are_an_option_of_the_profiler_that_its_own_options_override(
    profiler: str, option: str
) -> None:
    job = make_job(LOCAL, arguments=["a.out"], profiler=profiler, stacks=True, draft=True)
    assert job.profiler_options[option] == "true"
    given = {option: "false"}
    job = make_job(
        LOCAL, arguments=["a.out"], profiler=profiler, stacks=True, profiler_options=given, draft=True
    )
    assert job.profiler_options[option] == "false"


@pytest.mark.parametrize("profiler", ["none", "ncu"])
def test_stacks_of_a_profiler_that_records_none_are_refused(profiler: str) -> None:
    with pytest.raises(UsageError, match=f"{profiler} records no call stacks; nsys and torch do"):
        make_job(LOCAL, arguments=["a.out"], profiler=profiler, stacks=True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"activ": "2"}, "unknown profiler option 'activ' of torch; did you mean 'active'"),
        ({"with_stack": "yes"}, r"unknown value 'yes' of the profiler option with_stack.*false, true"),
    ],
)
def test_an_unknown_key_or_value_is_an_error(given: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        PROFILERS["torch"].resolve(given)


def test_a_schedule_that_records_nothing_is_refused() -> None:
    torch = PROFILERS["torch"]
    with pytest.raises(UsageError, match="records nothing"):
        torch.check(OURS, torch.resolve({"wait": "5"}))


def test_the_jax_profiler_is_for_programs_in_jax() -> None:
    jax = PROFILERS["jax"]
    for target, sentence in (
        (OURS, "the workload .* uses PyTorch: use --profiler torch"),
        (Target(None, ranks=1, in_python=False), "profiles programs in Python"),
        (Target(None, ranks=1, captures=2), "one span of steps"),
    ):
        with pytest.raises(UsageError, match=sentence):
            jax.check(target, {})
    jax.check(Target(None, ranks=1, captures=1), {})
    assert {*jax.start_up(Target(None, ranks=1))} == {
        *("hpcprof_start.py", "sitecustomize.py"),
        *(f"hpcprof_hooks/{name}.py" for name in ("__init__", "jax_hook", "window")),
    }
    with pytest.raises(UsageError, match="records shapes always"):
        jax.resolve({"record_shapes": "true"})


def test_the_torch_settings_reach_the_program_as_json() -> None:
    torch = PROFILERS["torch"]
    variables = torch.environment(OURS, torch.resolve({"active": "2", "with_stack": "true"}))
    options = json.loads(variables["HPCPROF_TORCH_OPTIONS"])
    assert (options["active"], options["with_stack"], options["record_shapes"]) == (2, True, False)


@pytest.mark.parametrize("text", ["x", "3-1", "1-2,", "-1", "4-6,6-8", "7,3"])
def test_a_choice_of_steps_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--capture-steps"):
        make_job(LOCAL, workload="sequence-parallel", profiler="torch", capture_steps=text)


def test_steps_without_a_profiler_are_refused() -> None:
    with pytest.raises(UsageError, match="--capture-steps 1-2 needs a profiler"):
        make_job(LOCAL, workload="sequence-parallel", capture_steps="1-2")


@pytest.mark.parametrize(
    ("target", "settings", "limited"),
    [
        (USERS, {}, True),
        (OURS, {"capture": "whole"}, True),
        (OURS, {}, False),
        (Target(None, ranks=4, captures=1), {}, False),
        (USERS, {"capture": "range"}, False),
    ],
)
def test_nsys_stops_by_itself_only_where_the_program_does_not_stop_the_capture(
    target: Target, settings: dict[str, str], limited: bool
) -> None:
    nsys = PROFILERS["nsys"]
    flags = nsys.time_limit(target, nsys.resolve(settings))
    assert flags == (("--duration={seconds}",) if limited else ())


@pytest.mark.parametrize("name", ["nsys", "rocprofv3", "unitrace"])
def test_a_program_of_the_users_is_recorded_from_its_start_to_the_end_of_a_window(name: str) -> None:
    profiler = PROFILERS[name]
    auto, whole = profiler.resolve({}), profiler.resolve({"capture": "whole"})
    assert profiler.window(USERS, auto) and profiler.start_up(USERS)
    for target in (OURS, Target(None, ranks=4, captures=1), Target(None, ranks=4, no_hook=True)):
        assert not profiler.window(target, auto)
    assert not profiler.window(USERS, whole)
    assert profiler.environment(USERS, whole).keys() <= {"NSYS_MPI_STORE_TEAMS_PER_RANK"}


@pytest.mark.parametrize("facts", [{"is_compiled": True}, {"uses_jax": True}])
def test_a_program_whose_steps_nothing_counts_is_recorded_from_its_start(facts: dict[str, bool]) -> None:
    target = Target(None, ranks=4, captures=2, **facts)
    nsys, ncu = PROFILERS["nsys"], PROFILERS["ncu"]
    assert not [flag for flag in nsys_flags(target) if "--capture-range" in str(flag)]
    assert "--capture-range-end=repeat:2" in nsys_flags(target, capture="range")
    auto = nsys.resolve({})
    assert nsys.time_limit(target, auto) and nsys.afterwards(target, auto) == nsys.afterwards(USERS, auto)
    assert "--profile-from-start=off" not in ncu.flags(target, ncu.resolve({"kernel": "gemm"}))


def test_chosen_steps_need_a_gpu_that_turns_nsys_on() -> None:
    (flag,) = (
        flag
        for flag in nsys_flags(Target(None, ranks=4, captures=1))
        if isinstance(flag, OnNode) and "--kill=none" in flag.failed
    )
    assert flag.passed[0] == "--capture-range=cudaProfilerApi" and "from its start" in flag.missing


def rocprof_flags(target: Target, **settings: str) -> tuple[object, ...]:
    return PROFILERS["rocprofv3"].flags(target, PROFILERS["rocprofv3"].resolve(settings))


def test_rocprofv3_writes_one_file_per_process_and_leaves_the_format_to_its_version() -> None:
    flags = rocprof_flags(USERS, pmc="SQ_WAVES,GRBM_COUNT")
    assert "--output-file=%pid%" in flags
    assert not any("format" in str(flag) for flag in flags)
    # Its own arguments end with two dashes.
    assert flags[-1] == "--"
    # ROCm 6.2 has counters by an input file only.
    assert Versioned(("--pmc",), "SQ_WAVES,GRBM_COUNT") in flags
    assert Versioned(("--rccl-trace",), required=False) in flags


@pytest.mark.parametrize(
    ("target", "capture", "ranged"),
    [(OURS, "auto", True), (USERS, "auto", False), (USERS, "range", True), (OURS, "whole", False)],
)
def test_rocprofv3_records_selected_regions_of_programs_that_mark_steps(
    target: Target, capture: str, ranged: bool
) -> None:
    assert (Versioned(("--selected-regions",)) in rocprof_flags(target, capture=capture)) is ranged


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stacks": "true"}, "--profiler-option stacks: rocprofv3 records no call stacks"),
        ({"gpu-metrics": "true"}, "reads the counters that --profiler-option pmc=NAME,NAME names"),
        ({"trace": "cuda"}, "unknown value 'cuda' of the profiler option trace"),
    ],
)
def test_an_option_of_nsys_has_a_counterpart_or_a_sentence(given: dict[str, str], says: str) -> None:
    for name in ("rocprofv3", "unitrace"):
        other = PROFILERS[name]
        assert {*PROFILERS["nsys"].settings} <= {*other.settings, *other.foreign}
    rocprof = PROFILERS["rocprofv3"]
    with pytest.raises(UsageError, match=says):
        rocprof.check(USERS, rocprof.resolve(given))


def test_auto_is_the_profiler_of_the_site_and_a_job_without_any_profiles_nothing() -> None:
    lumi = load_site("lumi")
    assert make_job(lumi, arguments=["a.out"], profiler="auto", account="me").profiler == "rocprofv3"
    assert make_job(lumi, arguments=["a.out"], account="me").profiler == "none"


@pytest.mark.parametrize(
    ("commands", "profiler"),
    [
        (("scorep-preload-init", "eztrace", "nsys"), "nsys"),
        (("scorep-preload-init", "eztrace"), "eztrace"),
        (("scorep-preload-init", "scorep"), "scorep-preload"),
    ],
)
def test_auto_takes_a_profiler_of_programs_as_they_are_that_is_here(
    commands: tuple[str, ...], profiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in commands:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert make_job(LOCAL, arguments=["a.out"], profiler="auto").profiler == profiler
    in_python = make_job(LOCAL, arguments=["python3", "etl.py"], profiler="auto").profiler
    assert in_python == (profiler if profiler == "nsys" else "scorep-preload")


def test_auto_takes_no_profiler_of_mpi_for_a_program_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("eztrace", "bash", "pipeline.sh"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    # The MPI of the launcher may be that of a script, but not that of an executable.
    for name in ("bin/mpiexec", "lib/libmpi.so.40", "writer"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\x7fELF")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{tmp_path / 'bin'}")
    monkeypatch.setattr("hpcprof.node.program_words._output", lambda words, folder: "")
    for script in (["./pipeline.sh"], ["bash", "pipeline.sh"]):
        with pytest.raises(
            UsageError, match=r"none of nsys, scorep-preload-init .* EZTrace starts no script"
        ):
            make_job(LOCAL, arguments=script, profiler="auto")
    (tmp_path / "scorep-preload-init").touch(0o755)
    assert make_job(LOCAL, arguments=["./pipeline.sh"], profiler="auto").profiler == "scorep-preload"
    (tmp_path / "etl.py").write_text("import numpy\n")
    (tmp_path / "scorep-preload-init").unlink()
    with pytest.raises(UsageError, match=r"etl.py imports neither mpi4py nor PyTorch nor JAX; .* py-spy or"):
        make_job(LOCAL, arguments=["python3", "etl.py"], profiler="auto")
    with pytest.raises(UsageError, match=r"\./writer loads no MPI library"):
        make_job(LOCAL, arguments=["./writer"], profiler="auto")
    (tmp_path / "train.py").write_text("import torch.nn as nn\n")
    assert make_job(LOCAL, arguments=["python3", "train.py"], profiler="auto").profiler == "torch"
    (tmp_path / "train.py").write_text("import torch, numpy\nfrom jax import jit\n")
    assert make_job(LOCAL, arguments=["python3", "train.py"], profiler="auto").profiler == "jax"


def test_auto_takes_nsys_for_a_script_of_pytorch_only_where_it_has_something_to_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nsys").write_text("#!/bin/sh\n")
    (tmp_path / "nsys").chmod(0o755)
    device, train = tmp_path / "nvidiactl", tmp_path / "train.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("hpcprof.submit.jobs.presence.GPU_DEVICES", (str(device),))
    train.write_text("import torch\n")
    assert make_job(LOCAL, arguments=["python3", "train.py"], profiler="auto").profiler == "torch"
    train.write_text("import torch\nfrom mpi4py import MPI\n")
    assert make_job(LOCAL, arguments=["python3", "train.py"], profiler="auto").profiler == "nsys"
    train.write_text("import torch\n")
    device.touch()
    assert make_job(LOCAL, arguments=["python3", "train.py"], profiler="auto").profiler == "nsys"


def test_auto_says_what_to_load_where_no_profiler_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    says = r"none of nsys, eztrace, scorep-preload-init is on the PATH; load a module \(module load scorep\)"
    with pytest.raises(UsageError, match=f"--profiler auto: {says}"):
        make_job(LOCAL, arguments=["a.out"], profiler="auto")
    with pytest.raises(UsageError, match=r"none of nsys, scorep-preload-init .* --profiler torch"):
        make_job(LOCAL, arguments=["python3", "etl.py"], profiler="auto")
    there = msgspec.structs.replace(LOCAL, host="login.example")
    with pytest.raises(UsageError, match="--profiler auto: site local names no profiler; write profiler"):
        make_job(there, arguments=["a.out"], profiler="auto")


def eztrace(target: Target = USERS, **settings: str) -> str:
    profiler = PROFILERS["eztrace"]
    return " ".join(
        f"[{word.test}: {' '.join(word.passed)}]" if isinstance(word, OnNode) else str(word)
        for word in profiler.flags(target, profiler.resolve(settings))
    )


def test_eztrace_takes_the_module_of_the_programs_mpi_that_is_installed() -> None:
    has = "eztrace_avail 2>/dev/null | grep -Eq '^({})[[:blank:]]'".format
    words = eztrace(openmp="true", io="true")
    assert words.startswith(f"-o {FOLDER} ")
    assert f"[mpi_is openmpi && {has('openmpi')}: -t openmpi openmp posixio]" in words
    assert f"[mpi_is mpich && {has('mpich')}: -t mpich openmp posixio]" in words
    assert f"[! {has('openmpi|mpich')} && {has('mpi')}: -t mpi openmp posixio]" in words
    assert eztrace(mpi="mpich") == f"-t mpich -o {FOLDER}"


@pytest.mark.parametrize("name", ["eztrace", "scorep", "scorep-preload"])
def test_a_profiler_of_one_archive_records_all_ranks_of_the_whole_program(name: str) -> None:
    profiler = PROFILERS[name]
    with pytest.raises(UsageError, match=r"--profile-ranks: \S+ records all ranks into one archive"):
        profiler.check(Target(None, ranks=4, profiled=2), profiler.resolve({}))
    with pytest.raises(UsageError, match=r"--capture-steps: .* records the whole program"):
        profiler.check(Target(None, ranks=4, profiled=4, captures=1), profiler.resolve({}))


def test_unitrace_starts_paused_for_programs_that_mark_steps() -> None:
    unitrace = PROFILERS["unitrace"]
    paused = Versioned(("--start-paused", "--conditional-collection"))
    ours, users = (unitrace.flags(target, unitrace.resolve({})) for target in (OURS, USERS))
    assert (paused in ours, paused in users) == (True, False)
    # A variable of the environment has it record from the start on.
    assert Versioned(paused.spellings[::-1]) in users
    assert unitrace.environment(USERS, unitrace.resolve({})) == {"PTI_ENABLE_COLLECTION": "1"}
    assert not unitrace.environment(OURS, unitrace.resolve({}))
    assert users[-2] == "--output-dir-path"
    assert Versioned(("--chrome-mpi-logging",), required=False) in users
    with pytest.raises(UsageError, match="unknown value 'cuda' of the profiler option trace"):
        unitrace.check(USERS, unitrace.resolve({"trace": "cuda"}))
