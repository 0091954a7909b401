"""The manifest of a run, against the published schemas."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcprof.common.errors import UsageError
from hpcprof.submit.launchers import launch_command
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.kubernetes import object_name
from hpcprof.submit.schedulers.kubernetes.scheduler import pod_directory, yaml_text, yaml_value
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site
from tests.jobs import make_job

DATA = Path(__file__).parents[4] / "data/kubernetes"
RUN_ID = "20261121-143005-sequence-parallel-3fa9"
OPTIONS = {"image": "registry.example/hpcprof:1.0", "pvc": "results"}
ALL = {
    "gpus": "8",
    "efa": "4",
    "hugepages": "5120Mi",
    "memory": "400Gi",
    "cpus": "96",
    "shm": "64Gi",
    "namespace": "training",
    "node_selector": "node.kubernetes.io/instance-type=p5.48xlarge,pool=gpu",
}
QUICKEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
hostile = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def texts(run_directory: Path = Path("/home/me/runs") / RUN_ID, **changes: Any) -> dict[str, str]:
    site = load_site("kubernetes")
    options = {**OPTIONS, **changes.pop("options", {})}
    command_line = changes.pop("command_line", ["hpcprof", "submit"])
    shape = {"arguments": ["true"], "nodes": 2, "ranks_per_node": 8}
    asked = make_job(site, **{**shape, **changes}, options=options)
    rendering = Rendering(run_directory, command_line, launch_command(site, asked), asked.arguments)
    return render(site, asked, rendering)


def documents(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    job, config_map = yaml.load_all(texts(**changes)["mpijob.yaml"], QUICKEST)
    return job, config_map


def worker(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("profiler", ["none", "nsys", "torch", "ncu"])
@pytest.mark.parametrize("options", [{}, ALL], ids=["least", "all"])
def test_the_manifest_is_valid_by_the_published_schemas(profiler: str, options: dict[str, str]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="install hpcprof[dev] for the schemas")
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="install hpcprof[dev]")
    settings = {"kernel": "gemm", "launch-count": "3"} if profiler == "ncu" else {}
    job, config_map = documents(profiler=profiler, profiler_options=settings, options=options, queue="gpu")
    jsonschema.validate(job, json.loads((DATA / "mpijob-v2beta1.schema.json").read_text()))
    kubernetes_validate.validate(config_map, "1.32", strict=True)
    for replica in job["spec"]["mpiReplicaSpecs"].values():
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}}
        kubernetes_validate.validate({**pods, "template": replica["template"]}, "1.32", strict=True)


def test_modules_for_python_are_mounted_in_their_folders() -> None:
    rendered = texts(profiler="torch")
    job, config_map = yaml.safe_load_all(rendered["mpijob.yaml"])
    pod = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    (items,) = (volume["configMap"]["items"] for volume in pod["volumes"] if volume["name"] == "scripts")
    mounted = {item["path"]: config_map["data"][item["key"]] for item in items}
    assert "hook/sitecustomize.py" in mounted
    assert mounted == {path: text for path, text in rendered.items() if path != "mpijob.yaml"}


def test_the_shape_of_the_job_becomes_workers_and_slots() -> None:
    job, _ = documents(options=ALL, walltime="90m")
    assert job["spec"]["slotsPerWorker"] == 8
    assert job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 2
    assert job["spec"]["runPolicy"] == {
        "cleanPodPolicy": "Running",
        "activeDeadlineSeconds": 5400,
        "backoffLimit": 0,
    }
    limits = worker(job)["containers"][0]["resources"]["limits"]
    assert limits == {
        "cpu": "96",
        "memory": "400Gi",
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "4",
        "hugepages-2Mi": "5120Mi",
    }
    assert worker(job)["volumes"][1] == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}


def test_a_rank_gets_one_gpu_unless_the_user_says_otherwise() -> None:
    limits = worker(documents()[0])["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "8"}
    assert "resources" not in worker(documents(options={"gpus": "0"})[0])["containers"][0]


def test_the_general_options_for_resources_are_those_of_each_worker() -> None:
    asked = {"cpus_per_rank": 12, "gpus_per_rank": 2, "mem": "400G", "constraint": "pool=gpu,zone=a"}
    pod = worker(documents(ranks_per_node=4, options={"hugepages": "64Mi"}, **asked)[0])
    assert pod["containers"][0]["resources"]["limits"] == {
        "cpu": "48",
        "memory": "400Gi",
        "nvidia.com/gpu": "8",
        "hugepages-2Mi": "64Mi",
    }
    assert pod["nodeSelector"] == {"pool": "gpu", "zone": "a"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"mem": "1G", "options": {"memory": "1Gi"}}, "--mem 1G and -o memory=1Gi both set memory"),
        ({"gpus_per_rank": 0, "options": {"gpus": "1"}}, "--gpus-per-rank 0 and -o gpus=1 both set gpus"),
        ({"constraint": "gpu"}, "--constraint gpu: write KEY=VALUE"),
        ({"scheduler_args": ["--x"]}, "--scheduler-arg --x: site kubernetes has no batch script"),
    ],
)
def test_what_a_pod_cannot_be_asked_for_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        texts(**asked)


def test_one_mpirun_starts_one_process_group_over_all_workers() -> None:
    script = documents()[1]["data"]["job.sh"]
    launches = [line for line in script.splitlines() if line.startswith("run_ranks mpirun ")]
    assert len(launches) == 1
    assert " -n 16 --map-by ppr:8:node " in launches[0]
    assert script.count('"$shell" ${private:+-p} "$run_dir/wrapper.sh"') == 1


def test_the_environment_of_the_site_is_passed_on_to_the_other_pods(tmp_path: Path) -> None:
    site = replace(load_site("kubernetes"), environment={"NCCL_DEBUG": "WARN"}, tmpdir="/tmp/x")
    asked = make_job(site, arguments=["true"], options=OPTIONS)
    rendering = Rendering(tmp_path, ["hpcprof"], launch_command(site, asked), ["true"])
    script = render(site, asked, rendering)["job.sh"]
    assert "\nrun_ranks mpirun -x NCCL_DEBUG -x TMPDIR --allow-run-as-root " in script


@pytest.mark.parametrize(("profiler", "ranks", "needed"), [("ncu", "all", True), ("nsys", "all", False)])
def test_only_hardware_counters_get_sys_admin(profiler: str, ranks: str, needed: bool) -> None:
    settings = {"kernel": "gemm", "launch-count": "3"} if profiler == "ncu" else {}
    job, _ = documents(profiler=profiler, profiler_options=settings, profile_ranks=ranks)
    context = worker(job)["containers"][0].get("securityContext")
    assert context == ({"capabilities": {"add": ["SYS_ADMIN"]}} if needed else None)
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert "securityContext" not in launcher


def test_nothing_outside_the_scripts_waits_for_a_shell_to_be_replaced() -> None:
    job, _ = documents(options=ALL)
    assert "${" not in json.dumps(job)


@given(arguments=st.lists(hostile.filter(lambda word: word != ":"), max_size=4), name=hostile.filter(bool))
@example(arguments=["a b", "'", '"', "$(touch /tmp/x)", "a\nb", "", "\\", "{{ x }}"], name="# - : {")
@example(arguments=["\x85", "\u2028", "\ufeff", "\x7f", "\U0001f600", "\t", "\x01", "\r\n"], name="no\u2029")
@settings(max_examples=8)
def test_everything_that_a_user_sets_arrives_intact(arguments: list[str], name: str) -> None:
    command_line = ["hpcprof", "submit", *arguments]
    rendered = texts(arguments=["program", *arguments], name=name, command_line=command_line)
    job, config_map = yaml.safe_load_all(rendered["mpijob.yaml"])
    del rendered["mpijob.yaml"]
    assert config_map["data"] == {file.replace("/", "."): text for file, text in rendered.items()}
    annotations = job["metadata"]["annotations"]
    assert annotations["hpcprof/job-name"] == name
    assert shlex.split(annotations["hpcprof/command-line"]) == command_line


@given(text=hostile)
@example(text="\U0001f600 \x85 ${HOME}")
@example(text="0\x1f\n")
@example(text="0\n \n")
@example(text="\n")
@example(text="\t0\n")
@settings(max_examples=150)
def test_a_value_is_the_same_after_yaml(text: str) -> None:
    assert yaml.safe_load(f"a: {yaml_value(text)}") == {"a": text}
    assert yaml.safe_load(f"data:\n  a: {yaml_text(text)}\n") == {"data": {"a": text}}


def test_a_script_stands_readable_in_the_manifest() -> None:
    assert "  job.sh: |\n    #!/bin/bash\n" in texts()["mpijob.yaml"]


def test_kubernetes_does_not_expand_the_path_of_a_run(tmp_path: Path) -> None:
    job, _ = documents(run_directory=Path("/hpcprof/it's $(HOME)"))
    command = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"]
    assert command[-1] == "/hpcprof/it's $$(HOME)"
    assert "$$1" in command[2]


def test_a_run_below_the_volume_keeps_its_path_in_the_pods() -> None:
    assert pod_directory(Path("/scratch/runs/a"), Path("/scratch")) == Path("/scratch/runs/a")
    assert pod_directory(Path("/home/me/runs/a"), Path("/scratch")) == Path("/scratch/a")


@pytest.mark.parametrize("run_id", [RUN_ID, "A_b", "x" * 80, "1", "ü $(x)"])
def test_names_of_objects_are_such_that_every_pod_of_theirs_can_be_named(run_id: str) -> None:
    name = object_name(run_id)
    assert len(f"{name}-launcher-abcde") <= 63
    assert name[0].isalpha()
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_runs_that_differ_only_in_case_have_different_names() -> None:
    assert len({object_name("a"), object_name("A"), object_name("_a"), object_name("a-")}) == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"options": {"image": "${REGISTRY}x"}}, r"-o image=\$\{REGISTRY\}x: write the name of an image"),
        ({"options": {"gpus": "four"}}, "-o gpus=four: write a whole number"),
        ({"options": {"mount": "relative"}}, "-o mount=relative: write an absolute path"),
        ({"options": {"hugepages": "5120Mi"}}, "huge pages only with memory or CPUs"),
        ({"options": {"node_selector": "gpu"}}, "KEY=VALUE"),
        ({"queue": "My Queue"}, "--queue My Queue"),
    ],
)
def test_what_a_job_cannot_have_is_one_sentence(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        texts(**changes)
