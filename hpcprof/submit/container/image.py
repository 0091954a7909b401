"""What an image holds, and the files that build it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, FileSystemLoader, StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hpcprof.common import __version__
from hpcprof.common.errors import UsageError
from hpcprof.submit.rendering.templates import template_path

DOCKERFILE = "Dockerfile"
DEFINITION = "hpcprof.def"
_TEMPLATES = {DOCKERFILE: "container/Dockerfile.j2", DEFINITION: "container/apptainer.def.j2"}

# A version stands unquoted in an ARG line and inside double quotes in a shell.
_VERSION = re.compile(r"[0-9A-Za-z.+~:-]+")
_BASE = re.compile(
    r"[a-z0-9][\w./-]*(?::\d+/[\w./-]+)?(?::(?P<tag>[\w.-]+))?(?P<digest>@sha256:[0-9a-f]{64})?", re.ASCII
)
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_WHEEL = re.compile(r"[\w.+-]+\.whl", re.ASCII)


@dataclass(frozen=True)
class Image:
    """What an image holds.

    The defaults fit together: the packages of Open MPI are those of the base's Ubuntu 22.04, both Nsight
    tools stand in NVIDIA's repository for it, and this Nsight Compute is the last to write ``.ncu-rep``.
    """

    base: str = "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-devel"
    nsys: str = "2026.4.1"
    ncu: str = "2026.2.1"
    mpi: bool = True
    openmpi: str = "4.1.2-2ubuntu1"
    mpi4py: str = "4.1.2"
    efa: bool = False
    efa_installer: str = "1.48.0"
    nccl_tests: bool = False
    nccl_tests_version: str = "2.16.9"
    user: str = ""
    wheel: str = ""

    @property
    def ssh_port(self) -> int:
        """The port of sshd: below 1024 only root may listen."""
        return 2222 if self.user else 22

    def versions(self) -> dict[str, str]:
        """Return the versions that this image needs, by the name of their build argument."""
        needed = {"NSYS_VERSION": self.nsys, "NCU_VERSION": self.ncu}
        if self.mpi:
            needed["MPI4PY_VERSION"] = self.mpi4py
        if self.efa:
            needed["EFA_INSTALLER_VERSION"] = self.efa_installer
        elif self.mpi:
            needed["OPENMPI_VERSION"] = self.openmpi
        if self.nccl_tests:
            needed["NCCL_TESTS_VERSION"] = self.nccl_tests_version
        return needed if self.wheel else {**needed, "HPCPROF_VERSION": __version__}


def check(image: Image) -> None:
    """Check that an image can be built, and again to the same result.

    Raises
    ------
    UsageError
        For the first thing that is wrong.
    """
    base = _BASE.fullmatch(image.base)
    if base is None:
        raise UsageError(f"--base {image.base!r} is not an image's name: write it as REGISTRY/NAME:TAG.")
    if not base["digest"] and base["tag"] in (None, "latest"):
        raise UsageError(
            f"--base {image.base}: name a tag other than latest, or a digest, so that builds are repeatable."
        )
    if image.efa and not image.mpi:
        raise UsageError("--efa needs MPI, which starts the ranks over it: leave out --no-mpi.")
    if image.nccl_tests and not image.efa:
        raise UsageError("--nccl-tests are built against EFA's Open MPI: give --efa too.")
    for name, version in image.versions().items():
        if not _VERSION.fullmatch(version):
            raise UsageError(f"{name}={version!r} is not a version.")
    if image.user and (not _USER.fullmatch(image.user) or image.user == "root"):
        raise UsageError(f"--user {image.user!r}: write a user's name other than root, in lower case.")
    if image.wheel and not _WHEEL.fullmatch(image.wheel):
        raise UsageError(f"--wheel {image.wheel!r}: name a wheel in the build folder, without a path.")


def render(image: Image, command_line: str) -> dict[str, str]:
    """Return the build files by name: one for Docker and Podman, one for Apptainer.

    Raises
    ------
    UsageError
        If the image cannot be built, or a template of the user's is wrong.
    """
    check(image)
    values: dict[str, Any] = {
        **{field: getattr(image, field) for field in ("base", "mpi", "efa", "nccl_tests", "user", "wheel")},
        "ssh_port": image.ssh_port,
        "versions": image.versions(),
        "version": __version__,
        "command_line": command_line,
    }
    environment = ImmutableSandboxedEnvironment(
        loader=ChoiceLoader([FileSystemLoader(folder) for folder in template_path()]),
        undefined=StrictUndefined,
        autoescape=False,  # no HTML; `check` lets nothing through that a shell would read
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["comment"] = lambda text: re.sub(r"[\r\n]+", " ", text)
    try:
        return {file: environment.get_template(name).render(values) for file, name in _TEMPLATES.items()}
    except TemplateError as error:
        raise UsageError(f"the container's template is wrong: {error.message or error}.") from None


def found_in(folder: Path, name: str) -> Path:
    """Return a build file in a folder.

    Raises
    ------
    UsageError
        If it is not there.
    """
    path = folder / name
    if not path.is_file():
        raise UsageError(f"there is no {path}: write it by hpcprof container render --output {folder}.")
    return path
