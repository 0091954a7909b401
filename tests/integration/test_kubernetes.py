"""The manifest of a run on Kubernetes: the launcher's script, and kubectl itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.submit.schedulers.kubernetes.test_scheduler import RUN_ID, documents, texts


def test_the_launcher_copies_the_scripts_to_the_volume_and_runs_the_job(tmp_path: Path) -> None:
    place = {"run_directory": tmp_path / "runs" / RUN_ID, "options": {"mount": str(tmp_path)}}
    job, config_map = documents(**place, profiler="torch")
    mounted, tools = tmp_path / "etc", tmp_path / "bin"
    tools.mkdir()
    pod = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    for item in pod["volumes"][1]["configMap"]["items"]:
        text = config_map["data"][item["key"]]
        # Kubernetes mounts links to a folder that the volume hides.
        file = mounted / "..data" / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("/etc/mpi/hostfile", str(tmp_path / "hostfile")))
    for entry in (mounted / "..data").iterdir():
        (mounted / entry.name).symlink_to(Path("..data", entry.name))
    (tmp_path / "hostfile").write_text("a-worker-0.a.ns.svc slots=8\na-worker-1.a.ns.svc slots=8\n")
    # Stands for mpirun: starts the last rank of those that it was asked for.
    (tools / "mpirun").write_text(
        '#!/bin/sh\nwhile [ "$1" != -n ]; do shift; done\nsize=$2; shift 4\n'
        'OMPI_COMM_WORLD_SIZE=$size OMPI_COMM_WORLD_LOCAL_RANK=7 OMPI_COMM_WORLD_RANK=$((size - 1)) "$@"\n'
    )
    (tools / "mpirun").chmod(0o755)
    given = pod["containers"][0]["command"]
    command = [word.replace("$$", "$").replace("/etc/hpcprof", str(mounted)) for word in given]
    path = f"{tools}:{os.environ['PATH']}"
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    state = tmp_path / "runs" / RUN_ID / "state"
    assert (state / "nodes").read_text() == "a-worker-0.a.ns.svc a-worker-1.a.ns.svc \n"
    assert (state / "rank00015.exit").read_text() == "0\n"
    hook = tmp_path / "runs" / RUN_ID / "hook"
    assert {path.name for path in hook.iterdir()} == {
        *("sitecustomize.py", "hpcprof_start.py", "hpcprof_hooks", "hpcprof_uncaught.py"),
        *("hpcprof_pulse.py", "hpcprof_step_lines.py"),
        *("hpcprof_on_request.py", "hpcprof_recording.py"),
    }
    assert not (hook / "sitecustomize.py").is_symlink()
    assert (state / "finished").read_text() == "0\n"


def test_kubectl_itself_reads_the_manifest_as_it_was_written(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    name = "it's \U0001f600 $(x) \x85 {{ \u2028 # : \n\t end"
    rendered = texts(name=name, arguments=["program", name])
    (tmp_path / "mpijob.yaml").write_text(rendered["mpijob.yaml"], encoding="utf-8")
    # Annotates a copy on this machine, and so prints as JSON what its own YAML parser has read.
    call = [kubectl, "annotate", "--local", f"--filename={tmp_path}/mpijob.yaml", "a=b", "--output=json"]
    done = subprocess.run(call, env={**os.environ, "KUBECONFIG": "/dev/null"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    job, end = json.JSONDecoder().raw_decode(done.stdout)
    config_map = json.loads(done.stdout[end:])
    assert job["metadata"]["annotations"]["hpcprof/job-name"] == name
    files = {file.replace("/", "."): text for file, text in rendered.items() if file != "mpijob.yaml"}
    assert config_map["data"] == files
