"""Container images: their build files, and the commands of the engines."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcprof.cli.container import command
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.runs.config import Engine
from hpcprof.submit.container.engine import (
    ContainerSetup,
    build,
    execute,
    find_engine,
    push,
    run,
    start,
    stop,
)
from hpcprof.submit.container.image import DEFINITION, DOCKERFILE, Image, check, render

DIGEST = "@sha256:" + "0" * 64
IMAGES = {
    "default": Image(),
    "everything": Image(efa=True, nccl_tests=True, user="me", wheel="hpcprof-0.1.0-py3-none-any.whl"),
    "least": Image(base=f"nvidia/cuda{DIGEST}", mpi=False),
}


@pytest.mark.parametrize("name", IMAGES)
def test_nothing_in_an_image_is_left_to_the_day_of_its_build(name: str) -> None:
    text = render(IMAGES[name], "hpcprof")[DOCKERFILE]
    assert ":latest" not in text
    assert "upgrade" not in text
    assert text.count("apt-get update") == text.count(" /var/lib/apt/lists/*")
    assert re.search(r"(?im)^(ARG|ENV) .*(token|password|secret|key)", text) is None
    for name_of_argument in re.findall(r"\$\{(\w+_VERSION)\}", text):
        assert f"ARG {name_of_argument}=" in text


def test_a_step_that_fails_ends_the_build() -> None:
    texts = render(IMAGES["everything"], "hpcprof")
    assert 'SHELL ["/bin/bash", "-euo", "pipefail", "-c"]' in texts[DOCKERFILE]
    assert "set -euo pipefail" in texts[DEFINITION]
    assert "; " not in re.sub(r"'[^']*'|\"[^\"]*\"", "", texts[DOCKERFILE].split("SHELL")[1])


def test_both_build_files_run_the_same_steps() -> None:
    texts = render(Image(efa=True, nccl_tests=True), "hpcprof")
    steps = re.findall(r"(?:^RUN | && )(.*?)(?: \\)?$", texts[DOCKERFILE], re.MULTILINE)
    assert len(steps) > 20
    for step in steps:
        assert f"    {step}\n" in texts[DEFINITION]


def test_efa_brings_its_own_open_mpi_instead_of_the_distributions() -> None:
    text = render(Image(efa=True), "hpcprof")[DOCKERFILE]
    assert "openmpi-bin" not in text
    assert 'PATH="/opt/hpcprof/bin:/opt/amazon/openmpi/bin:${PATH}"' in text


def test_an_image_with_a_user_is_not_run_as_root_and_listens_where_a_user_may() -> None:
    text = render(Image(user="me"), "hpcprof")[DOCKERFILE]
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001"]
    assert "'2222'" in text


def test_no_ssh_host_key_stays_in_the_image() -> None:
    assert "/etc/ssh/ssh_host_*" in render(Image(), "hpcprof")[DOCKERFILE]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"efa": True, "mpi": False}, "--efa needs MPI"),
        ({"nccl_tests": True}, "--nccl-tests .* give --efa too"),
        ({"base": "pytorch/pytorch"}, "a tag other than latest"),
        ({"base": "pytorch/pytorch:latest"}, "a tag other than latest"),
        ({"base": "x:1\nRUN evil"}, "not the name of an image"),
        ({"base": "${REGISTRY}x:1"}, "not the name of an image"),
        ({"nsys": "$(id)"}, "NSYS_VERSION"),
        ({"user": "root"}, "--user"),
        ({"user": "a b"}, "--user"),
        ({"wheel": "../x.whl"}, "--wheel"),
    ],
)
def test_an_image_that_cannot_be_built_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check(replace(Image(), **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "base",
    ["nvcr.io/nvidia/pytorch:25.06-py3", "localhost:5000/a/b:1", f"ubuntu{DIGEST}", f"ubuntu:22.04{DIGEST}"],
)
def test_a_base_with_a_tag_or_a_digest_is_taken(base: str) -> None:
    check(Image(base=base))


def test_a_line_break_in_the_command_line_stays_in_its_comment() -> None:
    text = render(Image(), "hpcprof\nRUN evil")[DOCKERFILE]
    assert text.startswith("# hpcprof\\nRUN evil\n")


SETUP = ContainerSetup(volume=Path("/data"))


def test_docker_gets_the_gpus_and_no_capability_unless_asked() -> None:
    argv = run(Engine.DOCKER, "x:1", ["a b"], SETUP)
    assert argv[:5] == ["docker", "run", "--rm", "--gpus", "all"]
    assert argv[-2:] == ["x:1", "a b"]
    assert "--cap-add=SYS_ADMIN" not in argv
    assert "--cap-add=SYS_ADMIN" in run(Engine.DOCKER, "x:1", ["a"], replace(SETUP, counters=True))


def test_podman_and_apptainer_have_their_own_words_for_the_gpus() -> None:
    podman = run(Engine.PODMAN, "x:1", ["a"], SETUP)
    assert podman[podman.index("--device") + 1] == "nvidia.com/gpu=all"
    apptainer = run(Engine.APPTAINER, "x.sif", ["a"], replace(SETUP, counters=True))
    assert apptainer == [
        *("apptainer", "exec", "--nv", "--add-caps", "CAP_SYS_ADMIN", "--bind", "/data:/workspace"),
        *("--pwd", "/workspace", "x.sif", "a"),
    ]
    assert "--nv" not in run(Engine.APPTAINER, "x.sif", ["a"], replace(SETUP, gpus=False))


def test_a_container_in_the_background_is_started_entered_and_stopped_by_its_name() -> None:
    named = replace(SETUP, name="n")
    assert start(Engine.DOCKER, "x:1", named)[-3:] == ["x:1", "sleep", "infinity"]
    assert execute(Engine.DOCKER, named, ["a"]) == ["docker", "exec", "n", "a"]
    assert stop(Engine.PODMAN, "n") == ["podman", "stop", "n"]
    assert start(Engine.APPTAINER, "x.sif", named)[:3] == ["apptainer", "instance", "start"]
    assert execute(Engine.APPTAINER, named, ["a"])[-2:] == ["instance://n", "a"]
    assert stop(Engine.APPTAINER, "n") == ["apptainer", "instance", "stop", "n"]


def test_building_needs_the_build_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hpcprof container render --output"):
        build(Engine.DOCKER, "x:1", tmp_path)
    (tmp_path / DOCKERFILE).touch()
    (tmp_path / DEFINITION).touch()
    assert build(Engine.DOCKER, "x:1", tmp_path, ["NSYS_VERSION=1"])[2:] == [
        *("--tag", "x:1", "--file", f"{tmp_path}/Dockerfile", "--build-arg", "NSYS_VERSION=1", str(tmp_path)),
    ]
    assert build(Engine.APPTAINER, "x.sif", tmp_path) == [
        *("apptainer", "build", "x.sif", f"{tmp_path}/hpcprof.def")
    ]


def test_pushing_by_apptainer_needs_an_address() -> None:
    assert push(Engine.DOCKER, "x:1") == ["docker", "push", "x:1"]
    with pytest.raises(UsageError, match="oras://"):
        push(Engine.APPTAINER, "x.sif")


def test_the_first_engine_that_is_installed_is_taken() -> None:
    assert find_engine(None, lambda name: name if name == "podman" else None) is Engine.PODMAN
    assert find_engine("apptainer", lambda name: None) is Engine.APPTAINER
    with pytest.raises(HpcprofError, match="docker, podman-hpc, podman, apptainer, enroot"):
        find_engine(None, lambda name: None)


def test_a_dry_run_prints_the_command_as_a_shell_would_take_it() -> None:
    call = ["run", "--engine", "docker", "--dry-run", "x:1", "--", "echo", "it's $HOME"]
    done = CliRunner().invoke(command, call)
    assert done.exit_code == 0
    assert shlex.split(done.output)[-3:] == ["x:1", "echo", "it's $HOME"]


def test_render_writes_both_build_files_and_build_takes_them(tmp_path: Path) -> None:
    folder = str(tmp_path / "container")
    assert CliRunner().invoke(command, ["render", "--efa", "--output", folder]).exit_code == 0
    call = ["build", "--engine", "podman", "--dry-run", "--folder", folder, "x:1"]
    done = CliRunner().invoke(command, call)
    assert done.output == f"podman build --tag x:1 --file {folder}/Dockerfile {folder}\n"


@pytest.mark.parametrize("name", ["", *command.commands])
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = CliRunner().invoke(command, [*([name] if name else []), "--help"])
    assert done.exit_code == 0
    assert "Example" in done.output


def test_podman_hpc_and_enroot_start_containers_in_their_own_words() -> None:
    assert "--gpu" in run(Engine.PODMAN_HPC, "x:1", ["a"], SETUP)
    enroot = run(Engine.ENROOT, "x.sqsh", ["a", "b c"], SETUP)
    assert enroot[:3] == ["enroot", "start", "--rw"]
    assert "NVIDIA_VISIBLE_DEVICES=all" in enroot
    assert enroot[-2:] == ["a", "b c"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in run(Engine.ENROOT, "x", ["a"], replace(SETUP, gpus=False))


def test_enroot_says_what_it_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"enroot import --output FILE.sqsh docker://x:1"):
        build(Engine.ENROOT, "x:1", tmp_path)
    with pytest.raises(UsageError, match="push them with docker or podman"):
        push(Engine.ENROOT, "x:1")
    with pytest.raises(UsageError, match="no container in the background"):
        start(Engine.ENROOT, "x.sqsh", SETUP)
    with pytest.raises(UsageError, match="gives no capabilities"):
        run(Engine.ENROOT, "x.sqsh", ["a"], replace(SETUP, counters=True))
