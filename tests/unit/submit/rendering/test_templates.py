"""Rendered scripts: quoting, overriding, and the rank wrapper under real shells."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcprof.common.errors import UsageError
from hpcprof.runs.job import Job
from hpcprof.submit.rendering import templates
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site, load_site_file
from hpcprof.submit.sites.model import Launcher, LauncherName, Site
from tests.jobs import job, make_job, rendered


@pytest.mark.parametrize(("profiler", "times"), [("nsys", 1), ("none", 0), ("torch", 0)])
def test_profilers_may_write_after_open_mpi_has_aborted(profiler: str, times: int, tmp_path: Path) -> None:
    script = rendered(job(profiler=profiler), tmp_path)["job.sh"]
    assert script.count("export OMPI_MCA_odls_base_sigkill_timeout=") == times


def test_a_template_that_changes_is_rendered_as_it_is_now(tmp_path: Path) -> None:
    job = make_job(load_site("local"), arguments=["x"])
    mine = tmp_path / "mine.sh.j2"
    for text in ("one", "two", "one"):
        mine.write_text(text)
        assert rendered(job, tmp_path, template=mine)["job.sh"] == text


def test_a_template_of_the_users_overrides_one_block(tmp_path: Path) -> None:
    mine = tmp_path / "mine.sh.j2"
    mine.write_text(
        '{% extends "job/local.sh.j2" %}\n{% block modules %}\nmodule load mine\n{% endblock %}\n'
    )
    script = rendered(job(), tmp_path, template=mine)["job.sh"]
    assert "module load mine\n" in script
    assert "record finished" in script


def documented_names() -> list[str]:
    page = Path(__file__).parents[4] / "docs/how-to/edit-a-template.md"
    _, _, table = page.read_text(encoding="utf-8").partition("## Names that a template can use")
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_every_name_of_a_template_is_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: set[str] = set()

    def note(environment: object, name: str, values: dict[str, object]) -> str:
        names.update(values)
        return ""

    monkeypatch.setattr(templates, "_render", note)
    rendered(job(), tmp_path)
    assert sorted(names) == sorted(documented_names())


@pytest.mark.parametrize("site", ["local", "generic-pbs", "generic-slurm"])
def test_a_template_of_the_users_has_every_name_that_is_documented(tmp_path: Path, site: str) -> None:
    names = [*documented_names(), "chunks", "chunk", "mpi_trial"]
    mine = tmp_path / "mine.sh.j2"
    mine.write_text("".join(f"{name}={{{{ {name} }}}}\n" for name in names))
    loaded = load_site(site)
    rendering = Rendering(tmp_path, ["hpcprof"], [], ["true"], mine)
    script = render(loaded, make_job(loaded, arguments=["true"]), rendering)["job.sh"]
    assert re.findall(r"^(\w+)=", script, re.MULTILINE) == names
    assert "\nchunks=1\nchunk=[" in script


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{{ nonsense }}", "'nonsense' is undefined"),
        ("{{ job.nodez }}", "line 1: Job has no attribute 'nodez'."),
        ("{% block x %}", r"mine\.sh\.j2, line 1: "),
        ('{% extends "job/sge.sh.j2" %}', "sge"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_wrong_template_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    mine = tmp_path / "mine.sh.j2"
    mine.write_text(text)
    with pytest.raises(UsageError, match=says):
        rendered(job(), tmp_path, template=mine)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (
            {"local.sh.j2": '\n{% extends "job/local.sh.j2" %}'},
            "template templates/job/local.sh.j2, line 2: it extends 'job/local.sh.j2', which is this file "
            "itself; rename the file and use it with --template, or make it a full copy (hpcprof templates "
            "export).",
        ),
        (
            {"local.sh.j2": '{% extends "job/a.j2" %}', "a.j2": '{% extends "job/local.sh.j2" %}'},
            "template templates/job/a.j2, line 1: it extends 'job/local.sh.j2', which is extended from this ",
        ),
        (
            {"local.sh.j2": '{% include "job/local.sh.j2" %}'},
            "template job/local.sh.j2: its includes or macros",
        ),
    ],
)
def test_a_template_that_extends_itself_is_named(
    texts: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "templates/job"
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    with pytest.raises(UsageError, match=re.escape(says)):
        rendered(job(), tmp_path)


def test_the_environment_and_modules_of_a_site_stand_quoted_in_the_script(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("scheduler: local\nmodules: ['cuda/12 $x']\nenvironment: {NET: 'AWS Libfabric'}\n")
    site = load_site_file(file)
    asked = make_job(site, arguments=["true"])
    script = render(site, asked, Rendering(tmp_path, ["hpcprof"], [], ["true"]))["job.sh"]
    assert "module load 'cuda/12 $x'\n" in script
    assert "export NET='AWS Libfabric'\n" in script


anything = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40)
# Mostly one hostile value among good ones, so that it is not another one that is refused.
value = st.just("good") | anything


@pytest.mark.parametrize("site", ["generic-pbs", "generic-slurm"])
@given(name=anything, account=value, queue=value, reservation=value, folder=value)
@example(name="a b\n#SBATCH --wrap=id", account="x", queue="y", reservation="z", folder="r")
@example(name="x", account="me\n#PBS -v EVIL", queue="$(id)", reservation="`id`", folder="%j")
@settings(max_examples=60)
def test_no_name_of_the_users_becomes_a_directive_of_its_own(
    site: str, name: str, account: str, queue: str, reservation: str, folder: str
) -> None:
    loaded = load_site(site)
    options = {"reservation": reservation} if "reservation" in loaded.options else {}
    plain = directives(loaded, make_job(loaded, arguments=["true"], name="n", account="a", queue="q"), "run")
    try:
        asked = make_job(loaded, arguments=["true"], name=name, account=account, queue=queue, options=options)
        found = directives(loaded, asked, folder)
    except UsageError:
        return
    assert len(found) == len(plain) + bool(options)
    for line in found:
        # One option and one word for its value: nothing that a batch system or a shell takes apart.
        if not line.startswith(("#SBATCH --output=", "#SBATCH --error=", "#PBS -o ", "#PBS -e ")):
            assert re.fullmatch(r"#(SBATCH|PBS) [\w./:=@,+& -]+", line, re.ASCII), line
        assert line.isprintable() and len(shlex.split(line)) <= 3


def directives(site: Site, asked: Job, folder: str) -> list[str]:
    rendering = Rendering(Path("/runs") / folder.replace("/", "-"), ["hpcprof"], [], ["true"])
    text = render(site, asked, rendering)["job.sh"]
    lines = [line for line in re.split("[\r\n]", text) if line.startswith(("#SBATCH", "#PBS"))]
    return [
        line for line in lines if not re.fullmatch(r"#PBS -S /runs/[\w.:=+&-]+/pbs_shell", line, re.ASCII)
    ]


def test_slurm_is_asked_for_the_signal_and_elsewhere_job_sh_sends_it(tmp_path: Path) -> None:
    slurm, local = load_site("generic-slurm"), load_site("local")
    asked: dict[str, Any] = {"arguments": ["x"], "signal": "USR1@120"}

    def script(site: Site, **more: Any) -> str:
        chosen = make_job(site, **asked, **more)
        return render(site, chosen, Rendering(tmp_path, ["hpcprof"], [], chosen.arguments))["job.sh"]

    assert "#SBATCH --signal=USR1@120" in script(slurm) and "warn()" not in script(slurm)
    again = script(slurm, on_timeout="resubmit")
    assert "#SBATCH --requeue" in again and "--signal=USR1" not in again and "signal_ranks USR1" in again
    assert "job_end - 120 -" in script(local) and "signal_ranks USR1" in script(local)
    # Without steps of srun Slurm would signal nothing; the script alone can pass it on.
    mpich = msgspec.structs.replace(slurm, launcher=Launcher(LauncherName.MPICH))
    assert "#SBATCH --signal=B:USR1@120" in script(mpich)
    torchrun = ["torchrun", "--nproc-per-node=2", "x.py"]
    for argument in ("--signal=USR2@60", "--signal=B:USR2@60"):
        chosen = make_job(slurm, arguments=torchrun, scheduler_args=[argument])
        assert find_scheduler("slurm").directives(slurm, chosen)[-1] == "--signal=B:USR2@60"


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_signal_is_noted_for_the_processes_beside_the_ranks_of_other_nodes(nodes: int) -> None:
    pbs = load_site("generic-pbs")
    chosen = make_job(pbs, nodes=nodes, arguments=["x"], no_telemetry=True, stall_timeout="off")
    texts = render(pbs, chosen, Rendering(Path("/r"), ["hpcprof"], ["mpiexec"], chosen.arguments))
    assert ('>>"$run_dir/state/signals"' in texts["job.sh"]) == (nodes == 2)
    assert ("node/hpcprof_node/beside.py" in texts) == (nodes == 2)


def test_processes_left_behind_have_the_time_that_the_job_gives_them() -> None:
    texts = [rendered(job(**grace), Path("/r"))["wrapper.sh"] for grace in ({}, {"leftover_grace": 300})]
    assert [text.count("\n        600 0 30 \\\n") for text in texts] == [1, 0]
    assert "\n        600 0 300 \\\n" in texts[1]
