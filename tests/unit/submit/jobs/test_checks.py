"""A job against its site, before anything is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcprof.common.errors import UsageError
from hpcprof.runs.job import Job
from hpcprof.submit.jobs.checks import check_array, execution_queue, profilers_at, remarks
from hpcprof.submit.launchers import on_each_node
from hpcprof.submit.sites.files import load_site, load_site_file
from hpcprof.submit.sites.model import LauncherName, Site
from tests.jobs import make_job

GIVEN: dict[str, Any] = {
    "arguments": ["x"],
    "account": "me",
    "queue": "debug",
    "options": {"filesystems": "home:eagle"},
}


def polaris(**changes: Any) -> Job:
    return make_job(load_site("polaris"), **{**GIVEN, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"account": ""}, "site polaris requires --account"),
        ({"queue": ""}, r"site polaris requires --queue\. Valid: debug, debug-scaling, prod, preempt"),
        ({"options": {}}, r"needs the option filesystems .*Valid: home, eagle"),
        (
            {"options": {"filesystems": "home:grand"}},
            r"-o filesystems=home:grand of site polaris: the file system grand is gone; valid: home, eagle",
        ),
        (
            {"options": {"filesystems": "home:eagel"}},
            r"unknown value 'eagel' in -o filesystems=home:eagel .*did you mean 'eagle'\? Valid: eagle, home",
        ),
        ({"queue": "debgu"}, "unknown queue 'debgu' of site polaris; did you mean 'debug'"),
        ({"nodes": 3}, "queue debug of polaris takes 1 to 2 nodes, not 3"),
        ({"walltime": "2h"}, "queue debug of polaris takes at most 01:00:00, not 02:00:00"),
        ({"walltime": "2m"}, "queue debug of polaris takes at least 00:05:00, not 00:02:00"),
        ({"queue": "prod", "nodes": 4}, "queue prod of polaris takes 10 to 496 nodes, not 4"),
        (
            {"queue": "prod", "nodes": 10, "walltime": "24h"},
            "no queue behind prod .*accept it and lose it: small takes at most 03:00:00, not 24:00:00; "
            "medium takes 25 to 99 nodes, not 10; large takes 100 to 496 nodes, not 10",
        ),
        (
            {"queue": "prod", "nodes": 50, "walltime": "7h"},
            "no queue behind prod .*medium takes at most 06:00:00, not 07:00:00",
        ),
        (
            {"queue": "small", "nodes": 10},
            "small of polaris accepts jobs from a routing queue only; use --queue prod",
        ),
        ({"queue": "capacity", "nodes": 5}, "queue capacity of polaris takes 1 to 4 nodes, not 5"),
        ({"ranks_per_node": 33}, "a node of polaris has 32 cores; use at most 32"),
        ({"ranks_per_node": 6, "gpus_per_rank": 2}, "of polaris has 4; use at most --ranks-per-node 2"),
    ],
)
def test_what_polaris_would_refuse_or_lose_is_refused_before(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        polaris(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"queue": "prod", "nodes": 10, "walltime": "3h"},
        {"queue": "prod", "nodes": 100, "walltime": "24h"},
        {"queue": "capacity", "nodes": 4, "walltime": "168h"},
    ],
)
def test_what_polaris_runs_is_accepted(changes: dict[str, Any]) -> None:
    assert polaris(**changes).account == "me"


@pytest.mark.parametrize(("walltime", "nearest"), [("20s", "00:01:00"), ("90s", "00:01:00 or 00:02:00")])
def test_a_walltime_that_slurm_would_round_up_is_refused_with_the_nearest(
    walltime: str, nearest: str
) -> None:
    with pytest.raises(UsageError, match=rf"would round it up; write {nearest}\."):
        make_job(load_site("generic-slurm"), arguments=["x"], walltime=walltime)


@pytest.mark.parametrize("queue", ["R1234567", "M15.polaris-pbs-01"])
def test_a_reservation_of_pbs_is_a_queue_that_no_site_file_knows(queue: str) -> None:
    assert polaris(queue=queue, nodes=200).queue == queue


@pytest.mark.parametrize(("nodes", "behind"), [(10, "small"), (24, "small"), (25, "medium"), (100, "large")])
def test_the_execution_queue_behind_a_routing_queue_is_known_before(nodes: int, behind: str) -> None:
    job = polaris(queue="prod", nodes=nodes, walltime="1h")
    assert execution_queue(job, load_site("polaris")) == behind


def sophia(**changes: Any) -> Job:
    return make_job(load_site("sophia"), **{**GIVEN, "queue": "", **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ranks_per_node": 3}, r"by-gpu of sophia takes 1, 2, 4, 8 GPUs, not 3 \(--ranks-per-node 3\)"),
        ({"nodes": 2, "ranks_per_node": 8}, "queue by-gpu of sophia takes 1 node, not 2"),
        ({"queue": "by-node", "nodes": 9}, "queue by-node of sophia takes 1 to 8 nodes, not 9"),
        ({"walltime": "25h"}, "queue by-gpu of sophia takes at most 24:00:00, not 25:00:00"),
    ],
)
def test_on_sophia_gpus_of_one_node_or_whole_nodes_can_be_had(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sophia(**changes)
    assert sophia(ranks_per_node=4).queue == "by-gpu"


@pytest.mark.parametrize(
    ("nodes", "walltime", "longest"),
    [
        (91, "3h", "02:00:00 for up to 91 nodes"),
        (183, "7h", "06:00:00 for up to 183 nodes"),
        (184, "13h", "12"),
    ],
)
def test_a_walltime_that_depends_on_the_nodes_is_checked_for_them(
    nodes: int, walltime: str, longest: str
) -> None:
    frontier = load_site("frontier")
    with pytest.raises(UsageError, match=f"queue batch of frontier takes at most {longest}"):
        make_job(frontier, arguments=["x"], account="me", nodes=nodes, walltime=walltime)
    larger = make_job(frontier, arguments=["x"], account="me", nodes=nodes + 1, walltime="2h")
    assert larger.nodes == nodes + 1


def test_an_array_that_would_never_run_whole_is_refused_with_its_limit() -> None:
    site = load_site("polaris")
    says = "queue prod of polaris runs at most 10 members of a job array at once, not {}; give --at-once 10"
    for members in (20, 11):
        with pytest.raises(UsageError, match=says.format(members)):
            check_array(site, "prod", members)
    check_array(site, "prod", 10)
    check_array(site, "prod", 20, at_once=10)
    check_array(site, "debug", 1000)


def test_an_array_is_refused_where_there_are_none_and_of_one_member_on_pbs() -> None:
    for name in ("local", "kubernetes"):
        with pytest.raises(UsageError, match=f"site {name} has no job arrays; leave --array out"):
            check_array(load_site(name), "", 2)
    with pytest.raises(UsageError, match="an array of PBS has at least 2 members"):
        check_array(load_site("generic-pbs"), "", 1)
    check_array(load_site("generic-slurm"), "", 1)


@pytest.mark.parametrize("launcher", [LauncherName.MPIEXEC, LauncherName.NONE])
def test_several_nodes_are_refused_where_the_launcher_stays_on_one(launcher: LauncherName) -> None:
    pbs = load_site("generic-pbs")
    site = msgspec.structs.replace(pbs, launcher=msgspec.structs.replace(pbs.launcher, name=launcher))
    with pytest.raises(UsageError, match=rf"--nodes 2: the launcher .*\({launcher.value}\) .*on one node"):
        make_job(site, arguments=["x"], nodes=2)
    assert make_job(site, arguments=["x"]).nodes == 1


def test_a_site_can_name_the_profilers_that_work_there() -> None:
    site = msgspec.structs.replace(load_site("local"), profilers=["torch"])
    assert profilers_at(site) == ["none", "torch"]
    with pytest.raises(UsageError, match=r"unknown profiler 'nsys' at site local.*Valid: none, torch"):
        make_job(site, arguments=["x"], profiler="nsys")


@pytest.mark.parametrize(
    ("site", "changes", "says"),
    [
        ("polaris", {"queue": "prod", "nodes": 30}, ["queue prod routes this job to medium"]),
        ("polaris", {"queue": "preemptable"}, ["queue preemptable: jobs are killed without warning"]),
        ("polaris", {"name": "n" * 237}, [f"shows the job '{'n' * 237}' as {'n' * 15}"]),
        ("sophia", {"queue": "by-node"}, []),
        ("polaris", {}, []),
        (
            "polaris",
            {"profiler": "nsys", "capture_steps": "3-5", "arguments": ["env", "/bin/sleep", "1"]},
            ["nsys records this program from its start; --profiler-option capture=range if it marks them"],
        ),
        ("polaris", {"profiler": "nsys", "capture_steps": "3-5", "arguments": ["python", "train.py"]}, []),
        # What is not known to be compiled may be in Python.
        ("polaris", {"profiler": "nsys", "capture_steps": "3-5", "arguments": ["bash", "train.sh"]}, []),
    ],
)
def test_what_is_no_mistake_but_should_be_known_is_a_remark(
    site: str, changes: dict[str, Any], says: list[str]
) -> None:
    loaded: Site = load_site(site)
    found = remarks(make_job(loaded, **{**GIVEN, **changes}), loaded)
    assert len(found) == len(says)
    for sentence, part in zip(found, says, strict=True):
        assert part in sentence


def test_a_package_that_reads_the_profiles_is_named_before_the_job_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = load_site("generic-slurm")
    job = make_job(site, arguments=["./a.out"], profiler="eztrace")
    monkeypatch.setattr("hpcprof.submit.jobs.checks.find_spec", lambda name: None)
    assert "profiles of eztrace cannot be read here: pip install 'hpcprof[otf2]'" in remarks(job, site)


def test_of_several_partitions_one_has_to_fit_and_a_queue_of_another_server_is_pbs_to_judge(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: generic-slurm\nqueues: {a: {max_nodes: 1}, b: {max_nodes: 4}}\n")
    site = load_site_file(path)
    assert make_job(site, arguments=["true"], nodes=2, queue="a,b").queue == "a,b"
    with pytest.raises(UsageError, match=r"queue a of mine takes 1 node, not 8"):
        make_job(site, arguments=["true"], nodes=8, queue="a,b")
    with pytest.raises(UsageError, match="unknown queue 'c' of site mine"):
        make_job(site, arguments=["true"], queue="a,c")
    path.write_text("extends: generic-pbs\nqueues: {a: {}}\n")
    assert make_job(load_site_file(path), arguments=["true"], queue="a@other").queue == "a@other"


def test_more_ranks_than_gpus_share_them_with_a_note_on_mps() -> None:
    polaris: dict[str, Any] = {"account": "a", "queue": "debug", "options": {"filesystems": "home"}}
    site = load_site("polaris")
    shared = make_job(site, arguments=["./a.out"], ranks_per_node=8, **polaris)
    assert remarks(shared, site) == [
        "8 ranks share the 4 GPUs of each node; -o mps=true starts NVIDIA's MPS, without which they take "
        "turns"
    ]
    polaris["options"] = {"filesystems": "home", "mps": "true"}
    assert remarks(make_job(site, arguments=["./a.out"], ranks_per_node=8, **polaris), site) == [
        "8 ranks share the 4 GPUs of each node"
    ]
    aurora = load_site("aurora")
    assert "mps" not in aurora.options
    polaris["options"] = {"filesystems": "flare"}
    said = remarks(make_job(aurora, arguments=["./a.out"], ranks_per_node=28, **polaris), aurora)
    assert said == ["28 ranks share the 12 GPUs of each node"]


@pytest.mark.parametrize(
    ("line", "changes", "remarked"),
    [
        ("torch.cuda.set_device(local_rank)", {}, True),
        ('device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))', {}, True),
        ('model.to(f"cuda:{args.local_rank}")', {}, True),
        ("model = DDP(model, device_ids=[local_rank])", {}, True),
        ("torch.cuda.set_device(local_rank % torch.cuda.device_count())", {}, False),
        ("# torch.cuda.set_device(local_rank)", {}, False),
        ("torch.cuda.set_device(0)", {}, False),
        ("torch.cuda.set_device(local_rank)", {"ranks_per_node": 1}, False),
        ("torch.cuda.set_device(local_rank)", {"gpus_per_rank": 2, "ranks_per_node": 2}, False),
        ("set_device(local_rank)", {"arguments": ["torchrun", "train.py"], "ranks_per_node": None}, False),
    ],
)
def test_a_script_that_takes_the_gpu_of_its_rank_is_told_where_a_rank_sees_one(
    line: str, changes: dict[str, Any], remarked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f"import os, torch\n{line}\n")
    site = load_site("polaris")
    polaris = {"account": "a", "queue": "debug", "options": {"filesystems": "home"}, "ranks_per_node": 4}
    given = {**polaris, "arguments": ["python", "train.py"], **changes}
    found = [one for one in remarks(make_job(site, **given), site) if "sees its own alone" in one]
    assert len(found) == remarked
    assert not found or found[0].startswith("train.py, line 2, takes a GPU by LOCAL_RANK, but on polaris")


@pytest.mark.parametrize(
    "words",
    [
        ["-n", "3"],
        ["-n3"],
        ["--ntasks=3"],
        ["-ppn", "2"],
        ["-c4"],
        ["--cpus-per-task=4"],
        ["--nproc_per_node=4"],
    ],
)
def test_an_option_of_the_launcher_that_the_job_sets_itself_is_refused(words: list[str]) -> None:
    site = load_site("generic-slurm")
    with pytest.raises(UsageError, match=rf"--launcher-arg {words[0]}: .* --cpus-per-rank set it"):
        make_job(site, arguments=["a"], ranks_per_node=2, cpus_per_rank=2, launcher_args=words)


def test_an_option_for_a_launcher_that_starts_nothing_on_one_node_is_refused() -> None:
    site = load_site("generic-slurm")
    command: dict[str, Any] = {
        "arguments": ["torchrun", "--nproc-per-node=2", "a.py"],
        "launcher_args": ["--max-restarts=2"],
    }
    with pytest.raises(UsageError, match=r"--max-restarts=2: on one node only the program's own launcher"):
        make_job(site, **command)
    assert "--max-restarts=2" in on_each_node(site, make_job(site, nodes=2, **command))


def test_several_programs_in_one_launch_are_refused() -> None:
    site = load_site("generic-slurm")
    refusal = r"is for several programs.* bash -c 'case \$RANK in"
    with pytest.raises(UsageError, match=refusal):
        make_job(site, arguments=["a", ":", "b"], ranks_per_node=2)
    with pytest.raises(UsageError, match=refusal):
        make_job(site, arguments=["a"], launcher_args=["--multi-prog"])
    # One rank on this machine has no launcher.
    make_job(load_site("local"), arguments=["a", ":", "b"])
