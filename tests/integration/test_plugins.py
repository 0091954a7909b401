"""Other packages add to hpcprof by entry points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Hpcprof
from tests.integration.plugin_package import install, search_path

DATA = Path(__file__).parents[1] / "data"

_ANALYSES = """
import pandas as pd

from hpcprof.plugins.analyses import Analysis, ProfileContent, Scope, columns
from hpcprof.plugins.data import Outcome, no_rows

LONGEST = Analysis(
    "longest", "Longest kernels", Scope.RANK, columns("rank kernel:text ns"), "extras_analyses:longest",
    sort_by=("-ns",),
)
LAST = Analysis(
    "last", "Last steps", Scope.RUN, columns("steps"), "extras_analyses:last", needs=("step_times",)
)
MEASURED = Analysis(
    "measured", "Measured kernels", Scope.RANK, columns("rank kernels"), "extras_analyses:measured",
    reads=ProfileContent.KERNEL_REPORT,
)
ACROSS = Analysis(
    "across", "Runs", Scope.STORE, columns("run:text steps"), "extras_analyses:across", needs=("step_times",)
)
WRONG = "not an analysis"


def longest(timeline):
    table = timeline.kernels
    if timeline.origin.rank == 1:
        return no_rows("rank 1 is left out")
    rows = (table.end - table.start).argsort()[-3:]
    names = timeline.names(table.name[rows])
    return Outcome(pd.DataFrame({"kernel": names, "ns": (table.end - table.start)[rows]}))


def last(results):
    return Outcome(pd.DataFrame({"steps": [len(results["step_times"])]}), "all of them")


def measured(report):
    return Outcome(pd.DataFrame({"kernels": [len(report.kernels)]}))


def across(runs):
    return Outcome(pd.DataFrame({"run": [run.id for run in runs],
                                 "steps": [len(run.tables["step_times"]) for run in runs]}))
"""


@pytest.fixture
def _analyses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("longest", "last", "measured", "across", "wrong")
    objects = {name: f"extras_analyses:{name.upper()}" for name in names} | {"gone": "extras_gone:GONE"}
    install(tmp_path / "installed", {"extras_analyses": _ANALYSES}, {"hpcprof.analyses": objects})
    monkeypatch.setenv("PYTHONPATH", search_path(tmp_path / "installed"))


@pytest.mark.usefixtures("_analyses")
def test_an_analysis_of_another_package_is_computed_when_it_is_asked_for(
    profiles: Path, hpcprof: Hpcprof
) -> None:
    assert hpcprof("collect", str(profiles)).returncode == 0
    done = hpcprof("report", str(profiles), "--analysis", "longest", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "rank 1: rank 1 is left out"
    rows = json.loads(done.stdout)
    assert [(row["rank"], list(row)) for row in rows] == [(0, ["rank", "kernel", "ns"])] * 3
    assert [row["ns"] for row in rows] == sorted((row["ns"] for row in rows), reverse=True)
    whole = json.loads(
        hpcprof("report", str(profiles), "--analysis", "step_times", "--format", "json").stdout
    )
    done = hpcprof("report", str(profiles), "--analysis", "last", "--format", "json")
    assert json.loads(done.stdout) == [{"steps": len(whole)}]
    assert "all of them" in hpcprof("report", str(profiles), "--analysis", "last").stdout
    done = hpcprof("report", str(profiles), "--analysis", "measured")
    assert "measured needs a profile of Nsight Compute, and no rank has one" in done.stdout
    across = json.loads(hpcprof("report", "--analysis", "across", "--format", "json").stdout)
    assert [row["steps"] for row in across] == [len(whole)]


@pytest.mark.usefixtures("_analyses")
def test_an_analysis_of_another_package_that_cannot_be_used_is_an_error(
    profiles: Path, hpcprof: Hpcprof
) -> None:
    assert hpcprof("collect", str(profiles)).returncode == 0
    for name, expected in {
        "wrong": "the plug-in 'wrong' is not an hpcprof.plugins.analyses.Analysis",
        "gone": "'gone' comes from package extras, which cannot be loaded",
        "longes": "longest",  # among the close matches
    }.items():
        done = hpcprof("report", str(profiles), "--analysis", name)
        assert done.returncode == 2
        assert expected in done.stderr


_CAUSES = """
import numpy as np

from hpcprof.plugins.causes import Candidate, CauseDeclaration, Figures


def candidates(scene):
    long = np.flatnonzero(scene.graph.work.end - scene.graph.work.start > 1_000)

    def remove(times):
        alone = times.alone.copy()
        alone[long] = 0
        return times.with_alone(alone)

    work = scene.graph.work
    own = scene.per_step(scene.graph.work_rank[long], (work.end - work.start)[long])
    yield Candidate(LONG_KERNELS, "", scene.ranks, remove, *own)


LONG_KERNELS = CauseDeclaration(
    name="long_kernels",
    title="long kernels",
    meaning="kernels take their time",
    remedy="Compute less in {where}.",
    candidates=candidates,
    figures=(Figures("kernels", "total_ns", sentence=lambda row: f"it has {row['name'][:4]}"),),
)
"""


def test_a_cause_of_another_package_is_judged_like_the_others(
    profiles: Path, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {"hpcprof.causes": {"long_kernels": "extras_causes:LONG_KERNELS"}}
    install(tmp_path / "installed", {"extras_causes": _CAUSES}, groups)
    monkeypatch.setenv("PYTHONPATH", search_path(tmp_path / "installed"))
    assert hpcprof("collect", str(profiles)).returncode == 0
    done = hpcprof("explain", str(profiles), "--format", "json", "--fail-on", "long_kernels")
    assert done.returncode == 3, done.stderr
    (found,) = (one for one in json.loads(done.stdout)["findings"] if one["cause"] == "long_kernels")
    assert found["saving_ns"] > 0 and found["remedy"] == "Compute less in the step."
    assert found["evidence_text"][0].startswith(f"rank {found['evidence'][0]['rank']}: it has ")
    assert "Long kernels: kernels take their time" in hpcprof("explain", str(profiles)).stdout


_BATCH = '''\
"""A scheduler that runs a job while it is submitted, and a profiler that takes the time."""

import subprocess
from pathlib import Path

from hpcprof import UsageError
from hpcprof.plugins.profilers import OUTPUT, Profiler
from hpcprof.plugins.schedulers import BatchScheduler, JobState, JobStatus, Record, Scheduler, SchedulerClient

HERE = Path(__file__).parent / "extras_batch_files"


class Tiny(Scheduler):
    name = "tiny"
    title = "Tiny Batch"
    template_folders = (HERE / "templates",)

    def client(self):
        return TinyClient()

    def check(self, job, site):
        if job.queue == "closed":
            raise UsageError(f"queue {job.queue} of {self.title} is closed.")


class TinyClient(SchedulerClient):
    def submit(self, run, after=()):
        subprocess.run(["bash", str(run.path / "job.sh")])
        return "tiny-1"

    def poll(self, runs):
        return {run.id: JobStatus(self._state(run)) for run in runs}

    def cancel(self, *runs):
        pass

    def _state(self, run):
        return JobState.COMPLETED if run.state_file("finished") == "0" else JobState.FAILED


class Brief(BatchScheduler):
    """A batch system by four methods, whose jobs run while they are submitted."""

    name = "brief"
    title = "Brief Batch"
    template_folders = (HERE / "templates",)

    def directives(self, site, job):
        return [f"nodes {job.nodes}", *super().directives(site, job)]

    def submit(self, script, directory, after=(), options=()):
        subprocess.run(["bash", str(script)], cwd=directory)
        return "brief-1"

    def states(self, job_ids, since):
        return {job_id: Record(JobState.COMPLETED, "", 0) for job_id in job_ids}

    def cancel(self, job_ids):
        pass


STOPWATCH = Profiler(
    "stopwatch",
    "takes the time of a rank",
    command=("sh", str(HERE / "stopwatch.sh")),
    flags=lambda target, settings: (OUTPUT,),
    suffix=".seconds",
)
NOT_A_PROFILER = 7
'''
_STOPWATCH = """\
output=$1; shift
"$@"
code=$?
times >"$output.seconds"
exit $code
"""
_TEMPLATE = """\
{% extends "job/base.sh.j2" %}
{% block directives %}
#TINY {{ job_name }}
{% endblock %}
"""
_BRIEF_TEMPLATE = """\
{% extends "job/base.sh.j2" %}
{% block directives %}
{% for line in directives %}
#BRIEF {{ line }}
{% endfor %}
{% endblock %}
"""


@pytest.fixture
def _batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a scheduler and a profiler, and write a site ``there`` that uses the scheduler."""
    folder = tmp_path / "installed"
    groups = {
        "hpcprof.schedulers": {
            "tiny": "extras_batch:Tiny",
            "brief": "extras_batch:Brief",
            "missing": "extras_gone:Tiny",
        },
        "hpcprof.profilers": {"stopwatch": "extras_batch:STOPWATCH", "seven": "extras_batch:NOT_A_PROFILER"},
    }
    install(folder, {"extras_batch": _BATCH}, groups)
    for name, text in {
        "installed/extras_batch_files/stopwatch.sh": _STOPWATCH,
        "installed/extras_batch_files/templates/job/tiny.sh.j2": _TEMPLATE,
        "installed/extras_batch_files/templates/job/brief.sh.j2": _BRIEF_TEMPLATE,
        "site_configs/brief.yaml": "scheduler: brief\nlauncher: {name: none}\n",
        "site_configs/there.yaml": "scheduler: tiny\nlauncher: {name: none}\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", search_path(folder))


@pytest.mark.usefixtures("_batch")
def test_a_job_goes_through_the_scheduler_and_the_profiler_of_another_package(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    done = hpcprof("submit", "--site", "there", "--profiler", "stopwatch", "--wait", "--", "true")
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "run.json").read_text())["scheduler_job_id"] == "tiny-1"
    assert (run / "profiles/rank00000.seconds").read_text().count("m") >= 2
    assert hpcprof("status").stdout.splitlines()[1].split()[1] == "completed"


@pytest.mark.usefixtures("_batch")
def test_a_batch_system_of_another_package_needs_four_methods(hpcprof: Hpcprof, tmp_path: Path) -> None:
    done = hpcprof("submit", "--site", "brief", "--wait", "--", "true")
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "run.json").read_text())["scheduler_job_id"] == "brief-1"
    assert "\n#BRIEF nodes 1\n" in (run / "job.sh").read_text()


@pytest.mark.usefixtures("_batch")
def test_the_package_brings_the_template_of_its_job_script(hpcprof: Hpcprof, tmp_path: Path) -> None:
    done = hpcprof("submit", "--dry-run", "--site", "there", "--job-name", "mine", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "site       there (tiny)" in done.stdout
    assert "\n#TINY mine\n" in done.stdout


@pytest.mark.usefixtures("_batch")
def test_the_scheduler_checks_the_job_before_it_is_submitted(hpcprof: Hpcprof, tmp_path: Path) -> None:
    done = hpcprof("submit", "--site", "there", "--queue", "closed", "--", "true")
    assert (done.returncode, done.stderr) == (2, "hpcprof: queue closed of Tiny Batch is closed.\n")


@pytest.mark.usefixtures("_batch")
def test_an_unknown_name_is_answered_with_those_of_other_packages_too(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    (tmp_path / "site_configs/other.yaml").write_text("scheduler: tinny\n")
    done = hpcprof("submit", "--dry-run", "--site", "other", "--", "true")
    assert done.returncode == 2
    assert "unknown scheduler 'tinny' in site_configs/other.yaml; did you mean 'tiny'?" in done.stderr
    assert "Valid: brief, flux, kubernetes, local, lsf, missing, pbs, slurm, tiny." in done.stderr
    done = hpcprof("submit", "--dry-run", "--profiler", "clock", "--", "true")
    assert (
        "Valid: auto, eztrace, inspector, jax, ncu, none, nsys, rocprofv3, scorep, scorep-preload, seven, "
        "stopwatch, torch, unitrace." in done.stderr
    )
    schema = json.loads(hpcprof("sites", "schema").stdout)
    assert "tiny" in schema["$defs"]["Site"]["properties"]["scheduler"]["enum"]


@pytest.mark.usefixtures("_batch")
def test_a_package_that_cannot_be_used_is_one_sentence(hpcprof: Hpcprof, tmp_path: Path) -> None:
    (tmp_path / "site_configs/broken.yaml").write_text("scheduler: missing\n")
    done = hpcprof("submit", "--dry-run", "--site", "broken", "--", "true")
    assert done.returncode == 2
    assert done.stderr.startswith("hpcprof: 'missing' comes from package extras, which cannot be loaded")
    done = hpcprof("submit", "--dry-run", "--profiler", "seven", "--", "true")
    assert done.returncode == 2
    assert "the plug-in 'seven' is not an hpcprof.plugins.profilers.Profiler: 7." in done.stderr


_READERS = '''\
"""A reader of text files with one event per line: kind, name, start, end, and the number of the call."""

import numpy as np

from hpcprof import DamagedInput
from hpcprof.plugins.readers import ProfileContent, Reader
from hpcprof.plugins.data import (
    NO_CORRELATION, NO_NAME, ApiCalls, Kernels, MemoryOperations, Origin, Ranges, StringTable,
    Timeline, classes_of,
)

LINES = Reader(
    "lines",
    suffixes=(".kernels",),
    files="*.kernels",
    content=ProfileContent.TIMELINE,
    read="extras_readers:read",
    identify_rank="extras_readers:identify_rank",
)
NOT_A_READER = "lines"


def identify_rank(path):
    return int(path.name.partition("-")[0])


def read(path):
    strings = StringTable()
    events = {"kernel": [], "call": [], "range": []}
    for line in path.read_text().splitlines():
        try:
            kind, name, *numbers = line.split()
            start, end, call = [*map(int, numbers), NO_CORRELATION][:3]
            events[kind].append((strings.add(name), start, end, call))
        except (KeyError, ValueError):
            raise DamagedInput(f"{path} has a line without a start or an end.") from None
    columns = {kind: np.array(rows, np.int64).reshape(-1, 4).T for kind, rows in events.items()}
    (kernel, start, end, launch), (name, begin, done, call), (range_, opened, closed, _) = columns.values()
    texts, zero, thread = strings.array(), np.zeros_like(kernel), np.zeros_like(name)
    other = np.zeros_like(range_)
    grid = np.ones((len(kernel), 3), np.int64)
    return Timeline(
        origin=Origin(path, LINES.name, identify_rank(path)),
        strings=texts,
        kernels=Kernels(
            start=start, end=end, device=zero, stream=zero, name=kernel, category=classes_of(kernel, texts),
            correlation=launch, process=zero, grid=grid, block=grid,
        ),
        memops=MemoryOperations.empty(),
        calls=ApiCalls(start=begin, end=done, process=thread, thread=thread, name=name, correlation=call),
        ranges=Ranges(
            start=opened, end=closed, process=other, thread=other, name=range_, domain=other + NO_NAME,
            style=other, closed=other + 1, one_thread=other + 1,
        ),
    )
'''


@pytest.fixture
def _reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path / "installed",
        {"extras_readers": _READERS},
        {"hpcprof.readers": {"lines": "extras_readers:LINES"}},
    )
    monkeypatch.setenv("PYTHONPATH", search_path(tmp_path / "installed"))


@pytest.mark.usefixtures("_reader")
def test_profiles_of_another_package_are_collected_beside_the_built_in_ones(
    profiles: Path, hpcprof: Hpcprof
) -> None:
    (profiles / "7-mine.kernels").write_text("kernel work 100 350\nkernel work_more 400 420\n")
    (profiles / "8-mine.kernels").write_text("kernel work soon\n")
    done = hpcprof("collect", str(profiles))
    assert done.returncode == 1
    assert "8-mine.kernels has a line without a start or an end." in done.stderr
    done = hpcprof("report", str(profiles), "--analysis", "kernels", "--format", "json")
    rows = [row for row in json.loads(done.stdout) if row["rank"] == 7]
    assert [(row["name"], row["total_ns"]) for row in rows] == [("work", 250), ("work_more", 20)]
    # The store knows the kind, so that analyses of kernel reports are not asked for.
    assert hpcprof("report", str(profiles)).returncode == 0


@pytest.mark.usefixtures("_reader")
def test_a_reader_of_another_package_gives_all_that_explains_a_run(hpcprof: Hpcprof, tmp_path: Path) -> None:
    lines = []
    # Of each 10 ms, the host loads for 6, and then the GPU works.
    for at in range(0, 200_000_000, 10_000_000):
        load, end = at + 6_000_000, at + 9_500_000
        lines += [f"range step {at} {at + 9_999_000}", f"range load {at} {load}"]
        lines += [f"call vendorLaunch {load} {load + 10_000} {at}", f"kernel gemm {load + 9_000} {end} {at}"]
        lines += [f"call vendorSynchronize {load + 20_000} {end + 5_000}"]
    folder = tmp_path / "vendor"
    folder.mkdir()
    (folder / "0-mine.kernels").write_text("\n".join(lines) + "\n")
    assert hpcprof("collect", str(folder)).returncode == 0
    done = hpcprof("explain", str(folder), "--format", "json")
    found = json.loads(done.stdout)["findings"][0]
    assert (found["cause"], found["where"]) == ("host_work", "load")
    assert found["saving_ns"] == pytest.approx(6_000_000, rel=0.05)


def test_a_reader_of_another_package_is_loaded_only_for_files_that_no_built_in_reader_takes(
    profiles: Path, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        tmp_path / "installed",
        {"extras_readers": _READERS},
        {"hpcprof.readers": {"lines": "extras_readers:NOT_A_READER"}},
    )
    monkeypatch.setenv("PYTHONPATH", search_path(tmp_path / "installed"))
    assert hpcprof("collect", str(profiles)).returncode == 0
    (profiles / "7-mine.kernels").write_text("work 100 350\n")
    done = hpcprof("collect", str(profiles))
    assert done.returncode == 2
    assert "the plug-in 'lines' is not an hpcprof.plugins.readers.Reader: 'lines'." in done.stderr
