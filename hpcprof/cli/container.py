"""``hpcprof container``."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from hpcprof.cli.completion import complete_files
from hpcprof.cli.conventions import Group, echo, examples
from hpcprof.cli.options import FOLDER, flag, output_option, repeatable, with_default
from hpcprof.common.errors import UsageError
from hpcprof.common.masking import masked_command
from hpcprof.common.processes import run_in_terminal
from hpcprof.runs.config import Engine, default_engine
from hpcprof.submit.container import engine as engines
from hpcprof.submit.container import image as images
from hpcprof.submit.container.engine import ContainerSetup, find_engine
from hpcprof.submit.container.image import DEFINITION, DOCKERFILE, Image

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def _engine_options(command: CommandT) -> CommandT:
    chosen = click.option(
        "--engine",
        type=click.Choice([engine.value for engine in Engine]),
        default=default_engine,
        help="Container engine.  [default: that of hpcprof config, or the first that is installed]",
    )
    return chosen(flag("--dry-run", help="Print the command instead of running it.")(command))


def _setup_options(command: CommandT) -> CommandT:
    for option in (
        with_default("--shm-size", "shm", default="16g", help="Size of /dev/shm."),
        flag("--counters", help="Allow hardware counters (SYS_ADMIN), for ncu."),
        with_default("--gpus/--no-gpus", default=True, help="Whether the container sees the GPUs."),
        with_default(
            "--volume", type=FOLDER, default=".", help="Folder that is /workspace in the container."
        ),
    ):
        command = option(command)
    return command


_name_option = with_default("--name", default="hpcprof", help="Name of the container.")
_program_argument = click.argument(
    "program", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND…]", shell_complete=complete_files
)


@click.group("container", cls=Group, epilog=examples("hpcprof container render --output container"))
def command() -> None:
    """Render, build and run a container image with the profilers.

    All but render run docker, podman or apptainer; --dry-run prints the command.
    """


@command.command(
    "render",
    epilog=examples(
        "hpcprof container render --output container",
        "hpcprof container render --efa --nccl-tests --output container",
    ),
)
@with_default("--base", default=Image.base, help="Base image, by tag or digest.")
@with_default("--nsys-version", "nsys", default=Image.nsys, help="Version of Nsight Systems.")
@with_default("--ncu-version", "ncu", default=Image.ncu, help="Version of Nsight Compute.")
@with_default("--mpi/--no-mpi", default=True, help="Whether to install Open MPI and mpi4py.")
@with_default(
    "--openmpi-version", "openmpi", default=Image.openmpi, help="Version of Open MPI's Ubuntu package."
)
@with_default("--mpi4py-version", "mpi4py", default=Image.mpi4py, help="Version of mpi4py.")
@flag("--efa", help="Install EFA, the network of AWS, with its own Open MPI.")
@with_default(
    "--efa-version", "efa_installer", default=Image.efa_installer, help="Version of EFA's installer."
)
@flag("--nccl-tests", help="Install NVIDIA's NCCL tests; needs --efa.")
@with_default("--nccl-tests-version", default=Image.nccl_tests_version, help="Version of the NCCL tests.")
@click.option("--user", default="", help="Run as this user instead of root.")
@click.option("--wheel", default="", help="Wheel of hpcprof in the build folder.  [default: from PyPI]")
@output_option(f"Write {DOCKERFILE} and {DEFINITION} there.")
def render(output: Path | None, **options: Any) -> None:
    """Print the Dockerfile, or write it and the definition for Apptainer to a folder."""
    image = Image(**{field.name: options[field.name] for field in fields(Image)})
    texts = images.render(image, shlex.join(["hpcprof", *sys.argv[1:]]))
    if output is None:
        echo(texts[DOCKERFILE], nl=False)
        return
    paths = images.write_build_files(texts, output)
    echo(f"wrote {', '.join(map(str, paths))}")


@command.command("build", epilog=examples("hpcprof container build registry.example/hpcprof:1.0"))
@_engine_options
@with_default("--folder", type=FOLDER, default="container", help="Folder of build files.")
@repeatable("--build-arg", "arguments", metavar="NAME=VALUE", help="Version of a package. Repeatable.")
@click.argument("image")
def build(engine: str | None, dry_run: bool, folder: Path, arguments: tuple[str, ...], image: str) -> None:
    """Build IMAGE, a .sif file for apptainer."""
    _call(engines.build(find_engine(engine), image, folder, arguments), dry_run)


@command.command("push", epilog=examples("hpcprof container push registry.example/hpcprof:1.0"))
@_engine_options
@click.argument("image")
@click.argument("destination", default="")
def push(engine: str | None, dry_run: bool, image: str, destination: str) -> None:
    """Push IMAGE to its registry, or to DESTINATION (apptainer and podman)."""
    _call(engines.push(find_engine(engine), image, destination), dry_run)


@command.command(
    "run",
    epilog=examples(
        "hpcprof container run registry.example/hpcprof:1.0 -- nsys profile python train.py",
        "hpcprof container run --detach registry.example/hpcprof:1.0",
    ),
)
@_engine_options
@_setup_options
@_name_option
@flag("--detach", help="Start the container in the background, for exec and stop.")
@click.argument("image")
@_program_argument
def run(
    engine: str | None, dry_run: bool, detach: bool, image: str, program: tuple[str, ...], **options: Any
) -> None:
    """Run a command in a new container of IMAGE, a shell by default."""
    if detach and program:
        raise UsageError("--detach takes no command: run it with hpcprof container exec -- COMMAND.")
    setup = ContainerSetup(**options, terminal=_terminal())
    tool = find_engine(engine)
    if detach:
        _call(engines.start(tool, image, setup), dry_run)
    else:
        _call(engines.run(tool, image, program or ["bash"], setup), dry_run)


@command.command("exec", epilog=examples("hpcprof container exec -- nvidia-smi"))
@_engine_options
@_name_option
@_program_argument
def exec_(engine: str | None, dry_run: bool, name: str, program: tuple[str, ...]) -> None:
    """Run a command in the container started by run --detach, a shell by default."""
    setup = ContainerSetup(name=name, terminal=_terminal())
    _call(engines.execute(find_engine(engine), setup, program or ["bash"]), dry_run)


@command.command("test", epilog=examples("hpcprof container test registry.example/hpcprof:1.0"))
@_engine_options
@_setup_options
@click.argument("image")
def test(engine: str | None, dry_run: bool, image: str, **options: Any) -> None:
    """Check that the profilers, MPI, PyTorch and GPUs work in IMAGE; exit 1 unless all do."""
    tool, setup = find_engine(engine), ContainerSetup(**options)
    if not dry_run:
        engines.run_checks(tool, image, setup)
        return
    for argv in engines.checks(tool, image, setup).values():
        echo(masked_command(argv))


@command.command("stop", epilog=examples("hpcprof container stop"))
@_engine_options
@_name_option
def stop(engine: str | None, dry_run: bool, name: str) -> None:
    """Stop the container started by run --detach."""
    _call(engines.stop(find_engine(engine), name), dry_run)


def _terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _call(argv: list[str], dry_run: bool) -> None:
    if dry_run:
        echo(masked_command(argv))
    elif code := run_in_terminal(argv):
        sys.exit(code)
