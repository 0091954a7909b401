"""The contents of an image, and the files that build it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcprof.common import __version__
from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import UsageError, writing
from hpcprof.submit.rendering.templates import render_text

DOCKERFILE = "Dockerfile"
DEFINITION = "hpcprof.def"
_TEMPLATES = {DOCKERFILE: "container/Dockerfile.j2", DEFINITION: "container/apptainer.def.j2"}

# A version is unquoted in an ARG line, and in double quotes in a shell.
_VERSION = re.compile(r"[0-9A-Za-z.+~:-]+")
_BASE = re.compile(
    r"[a-z0-9][\w./-]*(?::\d+/[\w./-]+)?(?::(?P<tag>[\w.-]+))?(?P<digest>@sha256:[0-9a-f]{64})?", re.ASCII
)
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_WHEEL = re.compile(r"[\w.+-]+\.whl", re.ASCII)


@dataclass(frozen=True)
class Image:
    """The contents of an image.

    The defaults fit together: Open MPI is that of the base's Ubuntu 22.04, NVIDIA's repository for Ubuntu
    22.04 has both Nsight tools, and this Nsight Compute is the last one that writes ``.ncu-rep``.
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
        """The port of sshd; only root may listen on ports below 1024."""
        return 2222 if self.user else 22

    def versions(self) -> dict[str, str]:
        """Return the versions that this image needs, by the names of their build arguments."""
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
    """Check that an image can be built, and that later builds give the same image."""
    base = _BASE.fullmatch(image.base)
    if base is None:
        raise UsageError(f"--base {image.base!r} is not the name of an image: write REGISTRY/NAME:TAG.")
    if not base["digest"] and base["tag"] in (None, "latest"):
        raise UsageError(
            f"--base {image.base}: name a tag other than latest, or a digest: latest changes between builds."
        )
    if image.efa and not image.mpi:
        raise UsageError("--efa needs MPI, which starts the ranks over EFA: leave out --no-mpi.")
    if image.nccl_tests and not image.efa:
        raise UsageError("--nccl-tests needs the Open MPI of EFA: give --efa too.")
    for name, version in image.versions().items():
        if not _VERSION.fullmatch(version):
            raise UsageError(f"{name}={version!r} is not a version.")
    if image.user and (not _USER.fullmatch(image.user) or image.user == "root"):
        raise UsageError(f"--user {image.user!r}: write the name of a user other than root, in lower case.")
    if image.wheel and not _WHEEL.fullmatch(image.wheel):
        raise UsageError(f"--wheel {image.wheel!r}: name a wheel in the build folder, without its path.")


def render(image: Image, command_line: str) -> dict[str, str]:
    """Return the texts of the build files by name: one for Docker and Podman, one for Apptainer."""
    check(image)
    values: dict[str, Any] = {
        **{field: getattr(image, field) for field in ("base", "mpi", "efa", "nccl_tests", "user", "wheel")},
        "ssh_port": image.ssh_port,
        "versions": image.versions(),
        "command_line": command_line,
    }
    return {file: render_text(name, values) for file, name in _TEMPLATES.items()}


def write_build_files(texts: Mapping[str, str], folder: Path) -> list[Path]:
    """Write the build files of `render` to a folder, and return their paths."""
    paths = [folder / name for name in texts]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts.values(), strict=True):
            write_atomically(path, text)
    return paths


def build_file_in(folder: Path, name: str) -> Path:
    """Return the path of a build file in a folder."""
    path = folder / name
    if not path.is_file():
        raise UsageError(f"{path} does not exist: write it with hpcprof container render --output {folder}.")
    return path
