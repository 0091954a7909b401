"""Container engines: every command is an argument list, never text for a shell."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.processes import run_in_terminal
from hpcprof.runs.config import Engine
from hpcprof.submit.container.image import DEFINITION, DOCKERFILE, build_file_in

# Commands that a usable image runs, by the name of the part that each proves to work.
CHECKS: dict[str, tuple[str, ...]] = {
    "Nsight Systems": ("nsys", "--version"),
    "Nsight Compute": ("ncu", "--version"),
    "MPI": ("mpirun", "--version"),
    "PyTorch": ("python3", "-c", "import torch; print(torch.__version__)"),
    "hpcprof": ("python3", "-c", "import hpcprof; print(hpcprof.__version__)"),
    "GPUs": ("nvidia-smi", "--list-gpus"),
}


@dataclass(frozen=True)
class ContainerSetup:
    """The command and options that start a container."""

    name: str = "hpcprof"
    volume: Path = Path()
    """The folder that is ``/workspace`` in the container, its working directory."""
    gpus: bool = True
    """True if the container sees the GPUs."""
    counters: bool = False
    """True if it gets the capability SYS_ADMIN, which hardware counters need if the driver lets only
    administrators read them.
    """
    shm: str = "16g"
    """The size of ``/dev/shm``."""
    terminal: bool = False
    """True if it is interactive."""


def find_engine(name: str | None, which: Callable[[str], str | None] = shutil.which) -> Engine:
    """Return the engine called ``name``, or the first that is installed."""
    if name is not None:
        return Engine(name)
    for engine in Engine:
        if which(engine.value):
            return engine
    names = ", ".join(engine.value for engine in Engine)
    raise HpcprofError(f"no container engine is on the PATH ({names}): install one, or load its module.")


def build(engine: Engine, image: str, folder: Path, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command that builds an image (a file for Apptainer) from a folder of build files."""
    if engine is Engine.APPTAINER:
        if arguments:
            raise UsageError("--build-arg is for docker and podman; give versions to container render.")
        return ["apptainer", "build", image, str(build_file_in(folder, DEFINITION))]
    if engine is Engine.ENROOT:
        raise UsageError(
            "enroot builds no images: build and push one with docker or podman, then get it with "
            f"enroot import --output FILE.sqsh docker://{image}."
        )
    build_arguments = [word for argument in arguments for word in ("--build-arg", argument)]
    file = str(build_file_in(folder, DOCKERFILE))
    return [engine.value, "build", "--tag", image, "--file", file, *build_arguments, str(folder)]


def push(engine: Engine, image: str, destination: str = "") -> list[str]:
    """Return the command that pushes an image to its registry; Apptainer needs the registry's address."""
    if engine is Engine.ENROOT:
        raise UsageError("enroot pushes no images: push them with docker or podman.")
    if engine is not Engine.APPTAINER:
        return [engine.value, "push", image, *([destination] if destination else [])]
    if not destination:
        raise UsageError(f"apptainer push {image}: name the destination, such as oras://registry/name:tag.")
    return ["apptainer", "push", image, destination]


def run(engine: Engine, image: str, command: Sequence[str], setup: ContainerSetup) -> list[str]:
    """Return the command that runs a program in a new container and removes the container afterwards."""
    if engine is Engine.APPTAINER:
        return ["apptainer", "exec", *_apptainer(setup), "--pwd", "/workspace", image, *command]
    if engine is Engine.ENROOT:
        # It has no option for the working directory.
        inside = ["/bin/sh", "-c", 'cd /workspace && exec "$@"', "sh"]
        return ["enroot", "start", "--rw", *_enroot(setup), image, *inside, *command]
    terminal = ["--interactive", "--tty"] if setup.terminal else []
    return [engine.value, "run", "--rm", *terminal, *_oci(engine, setup), image, *command]


def start(engine: Engine, image: str, setup: ContainerSetup) -> list[str]:
    """Return the command that starts a container in the background, for `execute`."""
    _check_background(engine)
    if engine is Engine.APPTAINER:
        return ["apptainer", "instance", "start", *_apptainer(setup), image, setup.name]
    waiting = ["--detach", "--init", "--name", setup.name, *_oci(engine, setup)]
    return [engine.value, "run", "--rm", *waiting, image, "sleep", "infinity"]


def execute(engine: Engine, setup: ContainerSetup, command: Sequence[str]) -> list[str]:
    """Return the command that runs a program in a container that `start` has started."""
    _check_background(engine)
    if engine is Engine.APPTAINER:
        return ["apptainer", "exec", "--pwd", "/workspace", f"instance://{setup.name}", *command]
    terminal = ["--interactive", "--tty"] if setup.terminal else []
    return [engine.value, "exec", *terminal, setup.name, *command]


def stop(engine: Engine, name: str) -> list[str]:
    """Return the command that stops a container that `start` has started."""
    _check_background(engine)
    verb = ["instance", "stop"] if engine is Engine.APPTAINER else ["stop"]
    return [engine.value, *verb, name]


def _check_background(engine: Engine) -> None:
    if engine is Engine.ENROOT:
        raise UsageError("enroot keeps no container in the background: use hpcprof container run.")


def checks(engine: Engine, image: str, setup: ContainerSetup) -> dict[str, list[str]]:
    """Return the commands that check an image, by the name of the part that each proves to work."""
    programs = {name: program for name, program in CHECKS.items() if setup.gpus or name != "GPUs"}
    return {name: run(engine, image, program, setup) for name, program in programs.items()}


def run_checks(engine: Engine, image: str, setup: ContainerSetup) -> None:
    """Run the `checks` of an image in this terminal."""
    commands = checks(engine, image, setup)
    failed = [name for name, command in commands.items() if run_in_terminal(command) != 0]
    if failed:
        raise HpcprofError(f"{image} has no working {', no working '.join(failed)}.")


def _apptainer(setup: ContainerSetup) -> list[str]:
    return [
        *(["--nv"] if setup.gpus else []),
        *(["--add-caps", "CAP_SYS_ADMIN"] if setup.counters else []),
        "--bind",
        f"{setup.volume.absolute()}:/workspace",
    ]


def _enroot(setup: ContainerSetup) -> list[str]:
    if setup.counters:
        raise UsageError("--counters: enroot gives no capabilities; use docker, podman or apptainer.")
    gpus = "all" if setup.gpus else "void"
    volume = f"{setup.volume.absolute()}:/workspace"
    return ["--env", f"NVIDIA_VISIBLE_DEVICES={gpus}", "--mount", volume]


def _oci(engine: Engine, setup: ContainerSetup) -> list[str]:
    # Podman names GPUs as the Container Device Interface does.
    gpus = {Engine.DOCKER: ["--gpus", "all"], Engine.PODMAN_HPC: ["--gpu"]}.get(
        engine, ["--device", "nvidia.com/gpu=all"]
    )
    return [
        *(gpus if setup.gpus else []),
        *(["--cap-add=SYS_ADMIN"] if setup.counters else []),
        f"--shm-size={setup.shm}",
        "--volume",
        f"{setup.volume.absolute()}:/workspace",
        "--workdir",
        "/workspace",
    ]
