"""The frames of call stacks: which function of a program a thread is in, and whose code that is."""

import re
import sys
from collections.abc import Iterable
from typing import NamedTuple

NO_LINE = -1

BUILT_IN = "<built-in>"
"""The file of functions in C, such as ``fsync``, that Python code calls."""

_INSTALLED_FOLDERS = re.compile(
    r"/(site|dist)-packages/|/lib(32|64)?/python[23][^/]*/|^/(usr/(local/)?|opt/[^/]+/)?lib(32|64|exec)?/"
)
"""The folders of Python's own modules, of installed packages, and of the system's libraries."""

_FRAMES_WITHOUT_CODE = re.compile(
    r"^[<\[(]|^$|^/opt/nvidia/|/nsight-systems|/hook/hpcprof_"
    r"|(^|/)(python[\d.]*|ld-linux[^/]*|lib(python|cuda|nccl|c10|torch)[^/]*)$"
)
"""Frames without a file, of the kernel, the interpreter, PyTorch's and NVIDIA's libraries, and our hook."""

_NOTEBOOK = ("<ipython-input-", "<cell")
_PACKAGES = {
    *sys.stdlib_module_names,
    *("torch", "torchaudio", "torchvision", "triton", "numpy", "scipy", "pandas", "PIL", "cv2", "tqdm"),
    *("accelerate", "datasets", "deepspeed", "lightning", "megatron", "pytorch_lightning"),
    *("transformers", "_distutils_hack", "nvtx", "setuptools", "typing_extensions", "yaml"),
}
"""Modules that are not the user's where a profiler such as PyTorch's names no folder."""


class Frame(NamedTuple):
    """A function in a stack: its name, its file and a line in it, `NO_LINE` if that is unknown.

    In the stacks of PyTorch's profiler, the line is the one where the function begins; in samples, the one
    that runs. Compiled code has a library or a program instead of a file.
    """

    function: str
    file: str
    line: int = NO_LINE


def is_own(frame: Frame) -> bool:
    """Return whether a frame is of the user's code, and not of Python, PyTorch or an installed package."""
    file = frame.file
    if file.startswith(_NOTEBOOK):
        return True
    if _FRAMES_WITHOUT_CODE.search(file) or _INSTALLED_FOLDERS.search(file):
        return False
    return file.startswith("/") or file.partition("/")[0].removesuffix(".py") not in _PACKAGES


def innermost_own(frames: Iterable[Frame]) -> Frame | None:
    """Return the first frame of the user's code in a stack whose innermost frame is first; None without."""
    return next(filter(is_own, frames), None)
