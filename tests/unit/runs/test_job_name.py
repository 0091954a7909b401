"""A job without a name is named after its script, whatever starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.runs.job_name import command_options, default_job_name, imported_modules


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python3 train.py", "train"),
        ("/opt/conda/bin/python3.12 -u -X dev -W ignore src/train.py --lr 1", "train"),
        ("python -m package.module --lr 1", "module"),
        ("python -m package.__main__", "package"),
        ("python -c pass", "python"),
        ("python", "python"),
        ("bash run.sh", "run"),
        ("bash -o pipefail -eu ./run.sh", "run"),
        ("sh -ec true", "sh"),
        ("bash python3 train.py", "train"),
        ("torchrun --nproc-per-node=4 --standalone train.py", "train"),
        ("torchrun --nproc_per_node 4 --no_python bash run.sh", "run"),
        ("torchrun --nnodes 2 -m package.module", "module"),
        ("python -m torch.distributed.run --nnodes 2 train.py", "train"),
        ("./train.py", "train"),
        ("/usr/bin/env true", "true"),
        ("env X=1 uv run --with numpy python -u train.py", "train"),
        ("apptainer exec --nv image.sif timeout 60 ./solver -n 2", "solver"),
        ("conda run -n env torchrun train.py", "train"),
        ("env", "env"),
        ("./solver.x -m x.y", "solver.x"),
        ("pythonic", "pythonic"),
        ("/", "job"),
    ],
)
def test_a_job_is_named_after_its_script(command: str, name: str) -> None:
    assert default_job_name(command.split()) == name


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("python -u train.py --lr 1e-3 --batch-size=64", {"lr": "1e-3", "batch-size": "64"}),
        ("python -m package.module --compile --n 8", {"compile": "yes", "n": "8"}),
        ("torchrun --nproc-per-node=4 train.py batch=8", {"batch": "8"}),
        ("uv run --project . train.py --lr 1", {"lr": "1"}),
        (
            "./solver -n 64 --shift -1.5 in.txt 3",
            {"n": "64", "shift": "-1.5", "argument 1": "in.txt", "argument 2": "3"},
        ),
        ("python", {}),
    ],
)
def test_options_are_those_of_the_script(command: str, options: dict[str, str]) -> None:
    assert command_options(command.split()) == options


def test_modules_are_those_that_the_script_names(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for text, modules in (
        ("import os\nimport jax.numpy as jnp\n", {"os", "jax"}),
        ("    from flax import linen\n", {"flax"}),
        ("# import jax\nimport jaxtyping, torch\n", {"jaxtyping", "torch"}),
    ):
        script.write_text(text)
        assert imported_modules(["python", "-u", "train.py", "--lr", "1"], str(tmp_path)) == modules
    assert not imported_modules(["python", "other.py"], str(tmp_path))
    assert not imported_modules(["python", "-m", "package"], str(tmp_path))
    assert not imported_modules([], str(tmp_path))
