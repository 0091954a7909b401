"""The rank wrappers of a job, under real shells, when one rank fails or a disk is full."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from hpcprof.submit.profilers.base import no_trace
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site
from tests.integration.test_wrapper import SHELLS
from tests.jobs import job, rendered
from tests.waiting import until

DATA = Path(__file__).parents[1] / "data"
STARTED = "2026-11-22T09:00:00Z"
FOREVER = "trap 'exit 143' TERM; while :; do sleep 0.05; done"
NSYS = """\
#!/bin/sh
# Stands for nsys: runs the program, writes the report after a while, exports it.
for word in "$@"; do case $word in --output=*) file=${word#--output=} ;; esac; done
if [ "$1" = export ]; then
    eval "$EXPORT_FAILS"
    for report in "$@"; do :; done
    exec cp "$report" "$file"
fi
while [ "$2" != -c ]; do shift; done
trap : TERM
eval "$NSYS_STARTS"
"$@" # the shell around the program
code=$?
eval "$NSYS_WRITES"
echo report >"$file.nsys-rep"
exit "$code"
"""


class Ranks:
    """The wrappers of a job's ranks, each of which runs a shell script as its program."""

    def __init__(
        self,
        shell: str,
        profiler: str,
        folder: Path,
        *scripts: str,
        wrapper: str = "",
        impatient: bool = False,
        **variables: str,
    ) -> None:
        self.folder = folder
        asked = job(nodes=1, ranks_per_node=len(scripts), profiler=profiler)
        for name in ("state", "logs", "profiles", "tmp", "bin"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "state/started").write_text(f"{STARTED}\n")
        files = rendered(asked, folder)
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(files[name])
        (folder / "wrapper.sh").write_text(wrapper or files["wrapper.sh"])
        quicker = {"beside.py": ("_LOOK_SECONDS = 2.0", "_LOOK_SECONDS = 0.2")}
        if impatient:
            quicker["failures.py"] = ("_KILL_SECONDS = 20.0", "_KILL_SECONDS = 1.0")
            text = (folder / "wrapper.sh").read_text()
            (folder / "wrapper.sh").write_text(text.replace(" 1 300\n", " 1 1\n"))
        for name, (seconds, fewer) in quicker.items():
            module = folder / "node/hpcprof_node" / name
            module.write_text(module.read_text().replace(seconds, fewer))
        (folder / "bin/nsys").write_text(NSYS)
        (folder / "bin/nsys").chmod(0o755)
        paths = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "TMPDIR": str(folder / "tmp")}
        self.processes = [
            subprocess.Popen(
                [shell, str(folder / "wrapper.sh"), "sh", "-c", script],
                env={**paths, "PMI_RANK": str(rank), "PMI_SIZE": str(len(scripts)), **variables},
                stderr=subprocess.PIPE,
            )
            for rank, script in enumerate(scripts)
        ]

    def exit_codes(self) -> list[int]:
        """Wait for the wrappers, and return what they tell the launcher."""
        return [process.wait(timeout=120) for process in self.processes]

    def said(self) -> list[bytes]:
        """Return what the wrappers print for the launcher; nothing holds their output open.

        That nsys traces neither CUDA on a machine without a GPU nor MPI in these programs is left out.
        """
        said = [process.communicate(timeout=120)[1] for process in self.processes]
        untraced = rb"hpcprof: (.* has no GPU: CUDA is not traced\.|MPI is not traced: no MPI library .*)\n"
        return [re.sub(untraced, b"", text) for text in said]

    def recorded(self) -> list[str]:
        """Return the exit codes in ``state/``."""
        return [path.read_text().strip() for path in sorted((self.folder / "state").glob("rank*.exit"))]

    def note(self) -> str:
        """Return the note of the rank that failed first, empty without one."""
        path = self.folder / f"state/failed.{STARTED}"
        return path.read_text().strip() if path.exists() else ""

    def processes_left(self) -> list[int]:
        """Return the processes of the job that still run."""
        return processes_with(f"HPCPROF_RUN_DIR={self.folder}")


def processes_with(variable: str) -> list[int]:
    """Return the processes that have a variable in their environment, which ``NAME=VALUE`` gives."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if variable.encode() in place.read_bytes().split(b"\0"):
                found.append(int(place.parts[2]))
    return found


both = pytest.mark.parametrize("shell", SHELLS)


@both
@pytest.mark.parametrize("profiler", ["none", "nsys", "torch"])
def test_a_rank_that_fails_ends_the_programs_of_the_others_and_leaves_last(
    shell: str, profiler: str, tmp_path: Path
) -> None:
    ranks = Ranks(shell, profiler, tmp_path, FOREVER, "exit 3", FOREVER)
    assert ranks.exit_codes() == [0, 3, 0]
    assert ranks.said() == [b""] * 3
    assert ranks.recorded() == ["143", "3", "143"]
    assert ranks.note() == "1 3"
    reports = ["rank00000.sqlite", "rank00001.sqlite", "rank00002.sqlite"]
    found = sorted(path.name for path in (tmp_path / "profiles").glob("*.sqlite"))
    assert found == (reports if profiler == "nsys" else [])
    until(lambda: not ranks.processes_left())
    assert not list((tmp_path / "tmp").iterdir())


@both
@pytest.mark.parametrize("profiler", ["none", "nsys"])
def test_a_wrapper_that_was_edited_for_version_0_3_still_ends_the_other_ranks(
    shell: str, profiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "templates").symlink_to(DATA / "templates_0.3")
    monkeypatch.chdir(tmp_path)
    ranks = Ranks(shell, profiler, tmp_path, FOREVER, "exit 3")
    assert ranks.exit_codes() == [0, 3]
    assert ranks.recorded() == ["143", "3"]
    assert ranks.said() == [b"", b""]
    assert "watch & watcher=" in (tmp_path / "wrapper.sh").read_text()


@both
def test_a_rank_is_named_and_the_others_end_while_its_profiler_still_writes(
    shell: str, tmp_path: Path
) -> None:
    writes = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    ranks = Ranks(shell, "nsys", tmp_path, FOREVER, "kill -SEGV $$", NSYS_WRITES=writes)
    until(lambda: ranks.note() == "1 139")
    until(lambda: not processes_with(f"HPCPROF_PROGRAM={tmp_path}/profiles/rank00000"))
    assert ranks.recorded() == []
    assert [process.poll() for process in ranks.processes] == [None, None]
    (tmp_path / "go").touch()
    assert ranks.exit_codes() == [0, 139]
    assert len(list((tmp_path / "profiles").glob("*.sqlite"))) == 2


@both
def test_a_rank_that_failed_stays_until_the_programs_of_the_others_have_ended(
    shell: str, tmp_path: Path
) -> None:
    # Launchers kill what is left of a job when a failed rank leaves.
    writes = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo saved; exit 0"
    script = f"trap '{writes}' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    fails = f"while [ ! -e {tmp_path}/ready ]; do sleep 0.05; done; exit 3"
    ranks = Ranks(shell, "none", tmp_path, script, fails)
    until(lambda: ranks.recorded() == ["3"])
    assert [process.poll() for process in ranks.processes] == [None, None]
    (tmp_path / "go").touch()
    assert ranks.exit_codes() == [0, 3]
    assert (tmp_path / "logs/rank00000.out").read_text() == "saved\n"


@both
def test_a_rank_that_starts_after_another_has_failed_ends_too(shell: str, tmp_path: Path) -> None:
    failed = f"[ -e {tmp_path}/state/failed.{STARTED} ]"
    late = f'[ "$PMI_RANK" = 1 ] || {{ until {failed}; do sleep 0.05; done; sleep 0.5; }}'
    ranks = Ranks(shell, "nsys", tmp_path, FOREVER, "exit 3", NSYS_STARTS=late)
    assert ranks.exit_codes() == [0, 3]
    assert ranks.recorded() == ["143", "3"]


@both
@pytest.mark.parametrize("profiler", ["none", "nsys"])
def test_a_program_that_does_not_end_is_killed_with_all_that_it_started(
    shell: str, profiler: str, tmp_path: Path
) -> None:
    loop = "while :; do sleep 0.05; done"
    stubborn = f"trap '' TERM; ({loop}) & touch {tmp_path}/ready; {loop}"
    fails = f"while [ ! -e {tmp_path}/ready ]; do sleep 0.05; done; exit 3"
    ranks = Ranks(shell, profiler, tmp_path, stubborn, fails, impatient=True)
    assert ranks.exit_codes() == [0, 3]
    assert ranks.recorded() == ["137", "3"]
    until(lambda: not ranks.processes_left())


@both
def test_a_profiler_that_does_not_end_is_killed_in_the_end(shell: str, tmp_path: Path) -> None:
    writes = "trap '' TERM; while :; do sleep 0.05; done"
    ranks = Ranks(shell, "nsys", tmp_path, FOREVER, "exit 3", NSYS_WRITES=writes, impatient=True)
    assert ranks.exit_codes() == [0, 3]
    until(lambda: not ranks.processes_left())


@both
@pytest.mark.parametrize(("version", "noted"), [(1, "1 5000"), (2, "1 7000"), (0, "1 node")])
def test_a_rank_that_the_kernel_killed_for_lack_of_memory_is_noted_with_the_limit(
    version: int, noted: str, shell: str, tmp_path: Path
) -> None:
    asked = job(nodes=1, ranks_per_node=2)
    groups = {
        # The line of version 2 comes last where a system has both.
        1: ("9:name=systemd:/\n4:cpu,memory:/job/step\n0::/\n", "memory/job/step", "memory.oom_control"),
        2: ("0::/job/step\n", "job/step", "memory.events"),
        # The groups of this job count no memory.
        0: ("0::/job\n", "", "vmstat"),
    }
    (tmp_path / "self").mkdir()
    listed, folder, counts = groups[version]
    (tmp_path / "self/cgroup").write_text(listed)
    group = tmp_path / "cgroup" / folder
    group.mkdir(parents=True, exist_ok=True)
    (group / counts).write_text("low 0\noom_kill 3\n")
    (group / "memory.stat").write_text("cache 0\nhierarchical_memory_limit 5000\n")
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("7000\n")
    wrapper = rendered(asked, tmp_path)["wrapper.sh"]
    for place in ("/sys/fs", "/proc"):
        wrapper = wrapper.replace(f"{place}/cgroup", f"{tmp_path}/cgroup").replace(
            f"{place}/self/cgroup", f"{tmp_path}/self/cgroup"
        )
    wrapper = wrapper.replace("/proc/vmstat", f"{tmp_path}/cgroup/vmstat")
    killed = f"sleep 1; echo 'oom_kill 4' >{group / counts}; kill -KILL $$"
    ranks = Ranks(shell, "none", tmp_path, FOREVER, killed, wrapper=wrapper)
    assert ranks.exit_codes() == [0, 137]
    assert (tmp_path / "state/rank00001.oom").read_text() == f"{noted}\n"


def test_a_bus_error_while_no_shared_memory_is_left_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = tmp_path / "bin/df"
    df.parent.mkdir()
    df.write_text("#!/bin/sh\necho 'tmpfs 1024 1024 0 100% /dev/shm'\n")
    df.chmod(0o755)
    monkeypatch.setenv("PATH", f"{df.parent}:{os.environ['PATH']}")
    ranks = Ranks("/bin/sh", "none", tmp_path, FOREVER, "kill -BUS $$")
    assert ranks.exit_codes() == [0, 135]
    assert "hpcprof: no space left on /dev/shm." in (tmp_path / "logs/rank00001.err").read_text()


@both
@pytest.mark.parametrize("signal", ["HUP", "INT", "TERM"])
def test_a_signal_from_outside_is_no_failure_of_a_rank(shell: str, signal: str, tmp_path: Path) -> None:
    ranks = Ranks(shell, "none", tmp_path, "sleep 1", f"kill -{signal} $$")
    code = {"HUP": 129, "INT": 130, "TERM": 143}[signal]
    assert ranks.exit_codes() == [0, code]
    assert ranks.note() == ""


@both
def test_a_job_that_runs_again_does_not_find_the_failure_of_its_last_start(
    shell: str, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/failed.2026-11-21T08:00:00Z").write_text("1 3\n")
    ranks = Ranks(shell, "none", tmp_path, "sleep 1", "true")
    assert ranks.exit_codes() == [0, 0]
    assert ranks.recorded() == ["0", "0"]


@both
def test_ranks_of_a_launcher_that_ends_them_only_note_the_failure(shell: str, tmp_path: Path) -> None:
    text = render(
        load_site("generic-slurm"),
        job(nodes=1, ranks_per_node=2),
        Rendering(tmp_path, ["x"], ["srun"], ["x"]),
    )["wrapper.sh"]
    assert "watch()" not in text
    ranks = Ranks(shell, "none", tmp_path, "exit 0", "exit 3", wrapper=text)
    assert (ranks.exit_codes(), ranks.note()) == ([0, 3], "1 3")


@both
def test_short_programs_leave_their_profiles_and_no_process(shell: str, tmp_path: Path) -> None:
    for number in range(5):
        ranks = Ranks(shell, "nsys", tmp_path / str(number), "true", "true")
        assert ranks.said() == [b"", b""]
        assert ranks.exit_codes() == [0, 0]
        assert len(list((tmp_path / f"{number}/profiles").glob("*.sqlite"))) == 2
    left = [f"HPCPROF_RUN_DIR={tmp_path / str(number)}" for number in range(5)]
    until(lambda: not any(map(processes_with, left)))


@both
@pytest.mark.parametrize(
    ("fails", "folder"),
    [
        ('echo "SQLite: database or disk is full"; exit 1', "tmp"),
        ("head -c 9 /dev/zero >/dev/full || exit 1", "tmp"),
        (": >$file", "profiles"),
    ],
)
def test_a_disk_that_fills_up_during_the_export_fails_the_rank_with_that_reason(
    shell: str, fails: str, folder: str, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    full = "echo \"mv: error writing '$3': No space left on device\" >&2; exit 1"
    (tmp_path / "bin/mv").write_text(
        f'#!/bin/sh\ncase $2 in */profile.sqlite) {full} ;; esac\nexec /bin/mv "$@"\n'
    )
    if folder == "profiles":
        (tmp_path / "bin/mv").chmod(0o755)
    ranks = Ranks(shell, "nsys", tmp_path, "sleep 1", "true", EXPORT_FAILS=fails)
    assert ranks.exit_codes() == [1, 1]
    reason = f"hpcprof: no space left on {tmp_path / folder} while the profile was exported.\n"
    assert [(tmp_path / f"logs/rank0000{rank}.err").read_text() for rank in (0, 1)] == [reason] * 2
    assert ranks.recorded() == ["1", "1"]


@both
def test_an_export_that_fails_for_another_reason_does_not_fail_the_rank(shell: str, tmp_path: Path) -> None:
    ranks = Ranks(shell, "nsys", tmp_path, "true", EXPORT_FAILS="echo nothing captured; exit 1")
    assert ranks.exit_codes() == [0]
    said = (tmp_path / "logs/rank00000.err").read_text()
    assert said == (
        "hpcprof: no profile: nsys recorded nothing that it could write, see logs/rank00000.profiler.\n"
    )
    assert no_trace(said) == f": {said.removeprefix('hpcprof: no profile: ').strip().rstrip('.')}"
