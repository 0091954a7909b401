"""The studies from submission to tables, with stand-ins for Nsight Systems and Nsight Compute."""

from __future__ import annotations

import csv
import gzip
import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.study import Alone, resume_slowdown, run_kernel_metrics, run_slowdown
from hpcprof.study.roles import ROLE_PROGRAM
from hpcprof.study.runs import Message, MessageKind
from hpcprof.submit.jobs.job import JobSpec
from tests.command_server import CommandServer
from tests.conftest import Hpcprof
from tests.integration.mpi import forking_python
from tests.waiting import until

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data"
SMALL = ["--epochs", "1", "--steps-per-epoch", "3", "--capture-steps", "1"]
KERNEL = "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT"

# Both run the program, whose MPI talks to its launcher over an open descriptor, and leave a recorded profile.
NSYS = """#!{python} -IS
import sys
words = sys.argv[1:]
if "--help" in words:
    sys.exit()
import lzma, os, pathlib, sqlite3, subprocess
output = next(word.removeprefix("--output=") for word in words if word.startswith("--output="))
if words[0] == "export":
    rank = pathlib.Path(words[-1]).stem[-1]
    packed = pathlib.Path({data!r}) / f"sp_bf16_rank{{rank}}.sqlite.xz"
    pathlib.Path(output).write_bytes(lzma.decompress(packed.read_bytes()))
    # Two captures are never the same, byte for byte; nsys writes this table last.
    sqlite3.connect(output).executescript(
        f"PRAGMA user_version = {{os.getpid()}}; CREATE TABLE ANALYSIS_DETAILS AS SELECT 1 AS duration"
    )
else:
    program = next(i for i, word in enumerate(words) if i and not word.startswith("-"))
    pathlib.Path(output + ".nsys-rep").touch()
    sys.exit(subprocess.run(words[program:], close_fds=False).returncode)
"""
NCU = """#!{python} -IS
import gzip, json, pathlib, subprocess, sys
words = sys.argv[1:]
if words[0] == "--import":
    print(gzip.decompress((pathlib.Path({data!r}) / "ncu/roofline.raw.csv.gz").read_bytes()).decode())
    sys.exit()
pathlib.Path({log!r}).write_text(json.dumps(words))
program = next(i for i, word in enumerate(words) if not word.startswith("-"))
done = subprocess.run(words[program:], close_fds=False)
if {permitted}:
    export = next(word.removeprefix("--export=") for word in words if word.startswith("--export="))
    pathlib.Path(export + ".ncu-rep").write_bytes(b"report")
else:
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters")
sys.exit(done.returncode)
"""  # noqa: E501


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-ins first on the PATH, and return their folder."""
    folder = install_tools(tmp_path)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def install_tools(place: Path) -> Path:
    folder = place / "tools"
    folder.mkdir()
    install(folder, "nsys", NSYS)
    install(folder, "ncu", NCU)
    return folder


def install(folder: Path, name: str, text: str, permitted: bool = True) -> None:
    path = folder / name
    values = {"python": sys.executable, "data": str(DATA), "log": str(folder / "ncu.json")}
    path.write_text(text.format(**values, permitted=permitted))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def study(hpcprof: Hpcprof, folder: Path, *words: str) -> tuple[int, str, str]:
    python = f"python={forking_python(folder)}"
    job = ["--ranks-per-node", "2", "-o", python, "--workload", "ddp", "--", *SMALL]
    done = hpcprof("study", *words, *job)
    # The stand-in's profiles are of a run on four ranks.
    said = [line for line in done.stderr.splitlines(True) if "has 4 ranks, but the run has 2" not in line]
    return done.returncode, done.stdout, "".join(said)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_kernel_metrics_are_one_command(hpcprof: Hpcprof, tools: Path, tmp_path: Path) -> None:
    code, out, err = study(hpcprof, tmp_path, "kernel-metrics", "--profiler-option", "launch-count=7")
    assert (code, err) == (0, "")
    words = json.loads((tools / "ncu.json").read_text())
    assert f"--kernel-name=regex:^(.*::)?({KERNEL})$" in words
    assert "--launch-count=7" in words and "--launch-skip=0" in words
    assert "1 kernel with 100.0 % of the compute time; 7 launches of them from number 0 on" in out
    assert "ncu: rank 0, replay mode kernel, clock control none, sections SpeedOfLight,LaunchStats" in out
    nsys, ncu = sorted((tmp_path / "runs").glob("2*"), key=lambda path: (path / "job.sh").stat().st_mtime)
    assert [path.name for path in (nsys / "profiles").glob("*.sqlite")] == ["rank00000.sqlite"]
    # As ncu's own table has them: six kernels, the achieved occupancy of the first.
    recorded = gzip.decompress((DATA / "ncu/roofline.raw.csv.gz").read_bytes()).decode()
    found = table(ncu / "study/ncu_kernels.csv")
    assert len(found) == recorded.count("\n") - 2 == 6
    assert [row["name"] for row in table(ncu / "study/roofline.csv")]
    stored = hpcprof(
        "query",
        "--format",
        "json",
        f"select count(*) n from analysis_ncu_kernels where run_id = '{ncu.name}'",
    )
    assert json.loads(stored.stdout) == [{"n": 6}]


def test_ncu_without_permission_says_what_it_means_and_the_remedy(hpcprof: Hpcprof, tools: Path) -> None:
    install(tools, "ncu", NCU, permitted=False)
    done = hpcprof("study", "kernel-metrics", "--ranks-per-node", "2", "--", "true")
    assert done.returncode == 1
    assert (
        "left no profile: the driver keeps hardware counters to administrators (ERR_NVGPUCTRPERM)"
        in done.stderr
    )
    assert "NVreg_RestrictProfilingToAdminUsers=0" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["kernel-metrics", "--profiler", "nsys"],
            "the study chooses the profilers itself.",
        ),
        (["kernel-metrics", "--profile-ranks", "all"], "--profile-ranks all: choose one rank"),
        (["kernel-metrics", "--profiler-option", "kernel=nccl"], "also matches nccl"),
        (["slowdown", "--sweep", "bucket_cap_mb=0,1"], "'0' is not a number of MB above 0"),
        (["slowdown", "--sweep", "no_such=1"], "unknown option '--no-such' of ddp"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_run(
    words: list[str], says: str, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    code, out, err = study(hpcprof, tmp_path, *words)
    assert (code, out) == (2, "") and says in err
    assert not list(tmp_path.glob("runs/2*"))


def test_slowdown_makes_both_sides_of_every_point_in_turns(
    hpcprof: Hpcprof, tools: Path, tmp_path: Path
) -> None:
    code, out, err = study(hpcprof, tmp_path, "slowdown", "--repeats", "1", "--sweep", "bucket_cap_mb=1,25")
    assert (code, err) == (0, "")
    (folder,) = tmp_path.glob("runs/*-slowdown-*")
    runs = json.loads((folder / "study.json").read_text())["runs"]
    assert [(run["point"]["bucket_cap_mb"], run["arm"]) for run in runs] == [
        ("1", "alone"), ("1", "communicating"), ("25", "alone"), ("25", "communicating")
    ]  # fmt: skip
    for run in runs:
        results = json.loads((tmp_path / "runs" / run["run"] / "results/rank00001.json").read_text())
        assert results["mode"] == ("noop" if run["arm"] == "alone" else "allreduce")
        assert results["parameters"]["bucket_cap_mb"] == float(run["point"]["bucket_cap_mb"])
    rows = table(folder / "by_point.csv")
    assert [row["bucket_cap_mb"] for row in rows] == ["1", "25"]
    assert all(int(row["step_p50_ns"]) > 0 and float(row["exposed_comm_pct"]) > 0 for row in rows)
    assert "one run each: no statistics" in out
    page = (folder / "study.html").read_text(encoding="utf-8")
    assert "<summary>Points of the sweep" in page and "best: bucket_cap_mb=" in page
    assert table(folder / "slowdown_by_overlap.csv") == table(folder / "slowdown_pairs.csv") == []


def test_a_study_of_slowdown_runs_from_python(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    request = JobSpec(("true",), ranks_per_node=2, runs_dir=tmp_path / "runs")
    messages: list[Message] = []
    found = run_slowdown(request, alone=Alone.ONE_RANK, repeats=1, progress=messages.append)
    first, second = (message for message in messages if message.run)
    assert (first.text, first.seconds_left) == ("run 1 of 2: alone", None)
    assert (second.run, second.runs) == (2, 2) and second.seconds_left is not None
    assert second.text.startswith("run 2 of 2: communicating (") and second.text.endswith(" left)")
    states = [message.text for message in messages if message.kind is MessageKind.STATE]
    assert states.count("completed") == 2
    frames = {table.name: table.frame() for table in found.tables.parts()}
    assert list(frames) == ["by_point", "slowdown_by_overlap", "slowdown_pairs"]
    assert frames["by_point"].runs.tolist() == [1]
    assert len(runs_of(found.folder)) == 2
    messages.clear()
    again = resume_slowdown(found.folder, progress=messages.append)
    assert sum(message.text.startswith("kept ") for message in messages) == 2
    assert again.tables == found.tables
    assert capfd.readouterr() == ("", "")
    with pytest.raises(UsageError, match="the study chooses the profilers itself"):
        run_slowdown(replace(request, profiler="nsys"))


def test_a_study_of_kernel_metrics_runs_from_python(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run_kernel_metrics(JobSpec(("true",), runs_dir=tmp_path / "runs"), top=1)
    assert found.rank == 0 and found.profiler_options["replay-mode"] == "kernel"
    assert len(found.tables["ncu_kernels"].rows) == 6
    assert found.tables["roofline"].rows
    assert capfd.readouterr() == ("", "")


def test_an_interrupted_study_cancels_its_run_and_says_what_is_left(
    hpcprof: Hpcprof, tools: Path, tmp_path: Path, command_server: CommandServer
) -> None:
    code, said = ended_in_the_second_run(command_server, tmp_path, signal.SIGINT)
    check_interruption(hpcprof, tmp_path, code - signal.SIGINT, said)


def check_interruption(hpcprof: Hpcprof, tmp_path: Path, code: int, said: str) -> None:
    """Check what a study says that a signal ended in its second run; ``code`` is without the signal."""
    assert code == 128
    (folder,) = tmp_path.glob("runs/*-slowdown-*")
    first, second = runs_of(folder)[:2]
    assert "cancelled" in hpcprof("status", second).stdout
    shown, left = folder.relative_to(tmp_path), said.splitlines()[-1]
    assert f"{second} is cancelled; 1 of 4 runs are complete and collected ({shown})" in left
    assert left.endswith(f"Resume with: hpcprof study slowdown --resume {shown}")
    assert hpcprof("report", first).returncode == 0


# The first run ends at once, the second stays until it may go.
STAYING = ["sh", "-c", "if [ -e done ]; then until [ -e go ]; do sleep 0.1; done; else touch done; fi"]
TWO_RANKS_AND_ONE = ["--ranks-per-node", "2", "--alone", "one-rank", "--repeats", "2", "--", *STAYING]


def ended_in_the_second_run(
    command_server: CommandServer, tmp_path: Path, number: signal.Signals
) -> tuple[int, str]:
    """Send a signal to a study whose second run is running; return its exit code and what it said."""
    with command_server.start(["study", "slowdown", *TWO_RANKS_AND_ONE], tmp_path) as study:
        until(lambda: "\nrunning" in study.printed()[0].partition("\nrun 2 of 4")[2])
        study.send_signal(number)
        return study.wait(480), study.printed()[1]


def runs_of(folder: Path) -> list[str]:
    return [run["run"] for run in json.loads((folder / "study.json").read_text())["runs"]]


@pytest.fixture(scope="module")
def whole_tables(tmp_path_factory: pytest.TempPathFactory, command_server: CommandServer) -> dict[str, bytes]:
    """The tables of a study that nothing ended, by file name."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "go").touch()
    variables = {**os.environ, "PATH": f"{install_tools(folder)}{os.pathsep}{os.environ['PATH']}"}
    words = ["study", "slowdown", *TWO_RANKS_AND_ONE]
    with command_server.start(words, folder, environment=variables) as study:
        assert study.wait(480) == 0, study.printed()
    return {path.name: path.read_bytes() for path in folder.glob("runs/*-slowdown-*/*.csv")}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["cancelled", "killed"])
def test_a_study_that_was_ended_goes_on_and_gives_the_tables_of_a_whole_one(
    number: signal.Signals,
    hpcprof: Hpcprof,
    command_server: CommandServer,
    tools: Path,
    tmp_path: Path,
    whole_tables: dict[str, bytes],
) -> None:
    code, said = ended_in_the_second_run(command_server, tmp_path, number)
    if number is signal.SIGTERM:
        check_interruption(hpcprof, tmp_path, code - number, said)
    (folder,) = tmp_path.glob("runs/*-slowdown-*")
    before = runs_of(folder)
    assert [bool(run) for run in before] == [True, True, False, False]
    (tmp_path / "go").touch()
    done = hpcprof("study", "slowdown", "--resume", folder.name)
    assert done.returncode == 0, done.stderr
    after = runs_of(folder)
    assert f"run 1 of 4: alone\nkept {before[0]}\nrun 2 of 4: communicating\n" in done.stdout
    # The run that was cancelled is made anew, the one that went on without the study is taken.
    assert after[0] == before[0] and (after[1] == before[1]) == (number is signal.SIGKILL)
    assert len(set(after)) == 4 and all(hpcprof("report", run).returncode == 0 for run in after)
    assert len(whole_tables) == 3 and len(table(folder / "by_point.csv")) == 1
    assert {path.name: path.read_bytes() for path in folder.glob("*.csv")} == whole_tables
    # Once more: nothing is left to be made.
    again = hpcprof("study", "slowdown", "--resume", str(folder))
    assert (again.returncode, again.stdout.count("kept "), runs_of(folder)) == (0, 4, after)


def test_a_run_that_left_no_profile_is_made_again(hpcprof: Hpcprof, tools: Path, tmp_path: Path) -> None:
    # The first run leaves a mark, with which the profiler of the second writes nothing.
    nsys = (tools / "nsys").read_text()
    touch = 'pathlib.Path(output + ".nsys-rep").touch()'
    silent = nsys.replace(touch, f"if not pathlib.Path('mark').exists(): {touch}")
    missing = "if words[0] == 'export' and not pathlib.Path(words[-1]).exists(): sys.exit(1)\n"
    (tools / "nsys").write_text(silent.replace("output = ", f"{missing}output = ", 1))
    words = ["--ranks-per-node", "2", "--alone", "one-rank", "--repeats", "1", "--", "touch", "mark"]
    done = hpcprof("study", "slowdown", *words)
    assert done.returncode == 1 and "left no profile" in done.stderr
    (folder,) = tmp_path.glob("runs/*-slowdown-*")
    first, second = runs_of(folder)
    assert first and not second
    assert f"resume with: hpcprof study slowdown --resume {folder.relative_to(tmp_path)}\n" in done.stderr
    (tools / "nsys").write_text(nsys)
    assert hpcprof("study", "slowdown", "--resume", folder.name).returncode == 0
    assert runs_of(folder)[0] == first and runs_of(folder)[1]


@pytest.mark.usefixtures("tools")
def test_a_study_that_is_refused_leaves_nothing(hpcprof: Hpcprof, tmp_path: Path) -> None:
    hpcprof("submit", "--", "sleep", "300")
    words = ["--ranks-per-node", "2", "--alone", "one-rank", "--after", "last", "--", "true"]
    done = hpcprof("study", "slowdown", *words)
    hpcprof("cancel", "last")
    assert (done.returncode, "no queue to wait in" in done.stderr) == (1, True)
    assert not list(tmp_path.glob("runs/*-slowdown-*")) and len(list(tmp_path.glob("runs/2*"))) == 1


@pytest.mark.usefixtures("tools")
def test_kernel_metrics_names_the_run_that_it_has_when_it_is_interrupted(
    command_server: CommandServer, tmp_path: Path
) -> None:
    words = ["study", "kernel-metrics", "--", "sleep", "300"]
    with command_server.start(words, tmp_path) as interrupted:
        until(lambda: "\nsubmitted" in f"\n{interrupted.printed()[0]}")
        interrupted.send_signal(signal.SIGTERM)
        assert interrupted.wait(480) == 128 + signal.SIGTERM
        said = interrupted.printed()[1]
    assert "is cancelled; 0 of 2 runs are complete. The same command starts the study again." in said


def test_one_rank_against_two_is_the_other_comparison(hpcprof: Hpcprof, tools: Path, tmp_path: Path) -> None:
    program = ["sh", "-c", 'touch "$HPCPROF_RUN_DIR/results/$HPCPROF_RANK"']
    words = ["--ranks-per-node", "2", "--repeats", "1", "--alone", "one-rank", "--", *program]
    assert hpcprof("study", "slowdown", *words).returncode == 0
    (folder,) = tmp_path.glob("runs/*-slowdown-*")
    alone, both = (run["run"] for run in json.loads((folder / "study.json").read_text())["runs"])
    ranks = [len(list((tmp_path / "runs" / run / "results").iterdir())) for run in (alone, both)]
    assert ranks == [1, 2]


def test_slowdown_needs_somebody_to_communicate_with(hpcprof: Hpcprof) -> None:
    done = hpcprof("study", "slowdown", "--workload", "ddp")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a single rank does not communicate" in done.stderr
    done = hpcprof("study", "slowdown", "--", "true")
    assert "--alone hook needs --workload ddp" in done.stderr


def test_the_network_of_a_site_is_measured_and_kept(hpcprof: Hpcprof, tmp_path: Path) -> None:
    job = ["--ranks-per-node", "2", "-o", f"python={sys.executable}", "--", "--max-bytes", "64"]
    done = hpcprof("study", "network", *job, "--budget-ms", "1")
    assert done.returncode == 0, done.stderr
    assert "Kept with the site: " in done.stdout
    kept = json.loads(Path(done.stdout.split("Kept with the site: ")[1].replace("\n", "")).read_text())
    assert (kept["site"], kept["ranks_per_node"], kept["across"]) == ("local", 2, {})
    operations = {"AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "Send"}
    assert set(kept["segments"]) == operations
    (path,) = tmp_path.rglob("network.csv")
    rows = table(path)
    assert {row["op"] for row in rows} == operations
    assert all(float(row["time_us"]) > 0 for row in rows)
    twice = next(row for row in rows if row["op"] == "AllReduce")
    assert float(twice["busbw_gb_s"]) == pytest.approx(float(twice["algbw_gb_s"]))
    refused = hpcprof("study", "network", "--ranks-per-node", "1")
    assert refused.returncode == 2
    assert "a network needs at least two ranks" in refused.stderr


ROLE = """\
import sys, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
control = dist.new_group([0, 3], backend="gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "data"))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1), process_group=mesh.get_group("data"))
received = torch.ones(2, 4)
dist.recv(received, 1)
model(received).sum().backward()
dist.all_reduce(received, group=control)
dist.barrier()
stage, sum = mesh.get_local_rank("stage"), received.sum().item()
print(dist.get_rank(), dist.get_world_size(), stage, sum, *sys.argv[1:])
"""


def test_a_rank_of_a_larger_job_runs_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ROLE)
    command = [sys.executable, str(ROLE_PROGRAM), "3", "4", "train.py", "--layers", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["3", "4", "1", "8.0", "--layers", "2"], done.stderr
