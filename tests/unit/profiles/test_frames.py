"""Frames of call stacks."""

from __future__ import annotations

import pytest

from hpcprof.profiles.frames import Frame, innermost_own, is_own


@pytest.mark.parametrize(
    "file",
    [
        "train.py",
        "data/loader.py",
        "/home/me/project/train.py",
        "<ipython-input-3-abc>",
        "/scratch/me/build/solver",
        "/scratch/me/lib/libkernels.so",
    ],
)
def test_code_of_the_user_is_own(file: str) -> None:
    assert is_own(Frame("f", file))


@pytest.mark.parametrize(
    "file",
    [
        "threading.py",
        "torch/nn/modules/module.py",
        "multiprocessing/queues.py",
        "/opt/venv/lib/python3.12/site-packages/torch/optim/adam.py",
        "/usr/lib/python3.12/threading.py",
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/home/me/python/lib/libpython3.11.so.1.0",
        "/opt/nvidia/nsight-systems/2025.3/target-linux-x64/libToolsInjection64.so",
        "/usr/bin/python3.12",
        "[kernel.kallsyms]",
        "<frozen importlib._bootstrap>",
        "<string>",
        "runs/r/hook/hpcprof_pulse.py",
        "",
    ],
)
def test_code_of_libraries_and_of_the_interpreter_is_not_own(file: str) -> None:
    assert not is_own(Frame("f", file))


def test_of_a_stack_the_first_own_frame_counts() -> None:
    stack = [Frame("wait", "threading.py", 3), Frame("load", "train.py", 7), Frame("main", "train.py", 20)]
    assert innermost_own(stack) == stack[1]
    assert innermost_own(stack[:1]) is None
