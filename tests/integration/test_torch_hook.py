"""The start-up hook of the PyTorch profiler in real programs, which mark nothing."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from hpcprof.results.ask.explanation import kept_explanation
from hpcprof.results.store.store import open_store
from hpcprof.runs.directory import all_runs
from hpcprof.submit.profilers import PROFILERS
from hpcprof.submit.profilers.base import Target
from tests.conftest import Hpcprof
from tests.integration.mpi import forking_python

TRAINING = """\
import os, sys, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Its workers are forked while the profiler records, and import what the program imports.
    for _ in range(2):
        for (batch,) in DataLoader(TensorDataset(torch.ones(28, 4)), batch_size=2, num_workers=1):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    print(os.environ["SITE_OF_THE_USER"], sys.modules["sitecustomize"].__file__, flush=True)
    dist.barrier()
    # Tearing down gloo's threads aborts about one of eight processes of torch 2.13, also without hpcprof.
    os._exit(0)

main()
"""
INFERENCE = """\
import torch

model = torch.nn.Linear(4, 1)
with torch.no_grad():
    for _ in range(20):
        model(torch.ones(2, 4))
"""
OWN_SITE = "import os\nos.environ['SITE_OF_THE_USER'] = 'mine'\n"


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    """The folder that a run has of the hook."""
    folder = tmp_path / "run" / "hook"
    for name, text in PROFILERS["torch"].start_up(Target(None, ranks=1)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def python(tmp_path: Path, hook: Path) -> Python:
    """Run a statement with the modules of the folder ``own`` on the path, and with the hook or without."""
    own = tmp_path / "own"
    own.mkdir()

    def run(statement: str, hooked: bool = True) -> subprocess.CompletedProcess[str]:
        path = [str(hook), str(own)] if hooked else [str(own)]
        variables = {
            "PYTHONPATH": os.pathsep.join(path),
            "HPCPROF_PROFILE_OUTPUT": str(tmp_path / "rank00000"),
        }
        environment = {**os.environ, **variables, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", statement]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    return run


def test_the_next_sitecustomize_runs_in_its_own_name(python: Python, tmp_path: Path) -> None:
    (tmp_path / "own/sitecustomize.py").write_text("value = __file__")
    done = python("import sys, sitecustomize; print(sitecustomize.value, 'torch' in sys.modules)")
    assert (done.stdout, done.stderr) == (f"{tmp_path}/own/sitecustomize.py False\n", "")


@pytest.mark.parametrize("text", ["1 / 0", "import no_such_module", "not python", "raise SystemExit(3)"])
def test_an_error_in_the_next_sitecustomize_is_the_same_as_without_the_hook(
    text: str, python: Python, tmp_path: Path
) -> None:
    (tmp_path / "own/sitecustomize.py").write_text(text)
    with_hook, without = python("print(1)"), python("print(1)", hooked=False)
    assert with_hook.returncode == without.returncode
    assert with_hook.stdout == without.stdout
    assert with_hook.stderr.splitlines()[-1:] == without.stderr.splitlines()[-1:]


def test_a_torch_that_cannot_be_imported_fails_as_without_the_hook_also_the_second_time(
    python: Python, tmp_path: Path
) -> None:
    (tmp_path / "own/torch.py").write_text("raise ImportError('no driver')")
    again = "try:\n    import torch\nexcept ImportError as error:\n    print(error)\n"
    done = python(f"{again}{again}import torch.optim")
    assert done.stdout == "no driver\nno driver\n"
    assert done.stderr.splitlines()[-1] == "ImportError: no driver"
    assert "hpcprof" not in done.stderr.replace(str(tmp_path), "")


def test_a_module_called_torch_that_is_not_pytorch_is_left_alone(python: Python, tmp_path: Path) -> None:
    (tmp_path / "own/torch.py").write_text("light = 'on'")
    done = python("import torch; print(torch.light, torch.__spec__.loader.name)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "on torch\n", "")


@pytest.mark.slow
def test_an_ordinary_ddp_script_with_data_loaders_and_a_sitecustomize_of_its_own_is_recorded(
    hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(OWN_SITE)
    (tmp_path / "train.py").write_text(TRAINING)
    monkeypatch.setenv("PYTHONPATH", f"{own}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    job = ["--ranks-per-node", "2", "--profiler", "torch", "--wait"]
    done = hpcprof("submit", *job, "--", str(forking_python(tmp_path)), "train.py")
    assert done.returncode == 0, done.stderr
    (run,) = all_runs(tmp_path / "runs")
    for rank in range(2):
        assert (run.path / f"logs/rank0000{rank}.out").read_text() == f"mine {own}/sitecustomize.py\n"
        said = (run.path / f"logs/rank0000{rank}.err").read_text()
        assert said.count("hpcprof: ") == 1, said
        assert "hpcprof: recorded optimizer steps 5 to 24 of SGD, counted from 0.\n" in said
    collected = hpcprof("collect")
    assert collected.returncode == 0, collected.stderr
    steps = json.loads(hpcprof("report", "--analysis", "step_times", "--format", "json").stdout)
    assert sorted((row["rank"], row["step"]) for row in steps) == list(product(range(2), range(5, 25)))
    phases = json.loads(hpcprof("report", "--analysis", "phases", "--format", "json").stdout)
    assert {(row["phase"], row["steps"]) for row in phases} >= {("Optimizer.step#SGD.step", 20)}


@pytest.mark.slow
def test_inference_without_an_optimizer_is_recorded_by_time(hpcprof: Hpcprof, tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text(INFERENCE)
    job = ["--profiler", "torch", "--profiler-option", "record_shapes=true", "--wait"]
    done = hpcprof("submit", *job, "--", str(forking_python(tmp_path)), "infer.py")
    assert done.returncode == 0, done.stderr
    (run,) = all_runs(tmp_path / "runs")
    assert "since it took no optimizer step.\n" in (run.path / "logs/rank00000.err").read_text()
    trace = gzip.decompress((run.path / "profiles/rank00000.trace.json.gz").read_bytes())
    assert trace.count(b'"name": "aten::linear"') == 20
    assert b'"Input Dims"' in trace
    assert hpcprof("collect").returncode == 0


@pytest.mark.slow
def test_a_program_without_pytorch_says_why_there_is_no_trace_and_collect_repeats_it(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    submitted = hpcprof("submit", "--profiler", "torch", "--wait", "--", "echo", "hello")
    assert submitted.returncode == 0
    assert (submitted.stdout + submitted.stderr).count("the program ran no PyTorch operation") == 1
    done = hpcprof("collect")
    assert done.returncode == 1
    assert ": the program ran no PyTorch operation, or Python skipped the start-up hook" in done.stderr


@pytest.mark.slow
def test_each_run_of_a_repeat_is_explained(hpcprof: Hpcprof, tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text(INFERENCE)
    job = ["--repeat", "2", "--profiler", "torch", "--", str(forking_python(tmp_path)), "infer.py"]
    done = hpcprof("run", *job)
    assert done.returncode == 0, done.stderr
    store = open_store(None, tmp_path / "runs")
    assert [kept_explanation(run, store) is not None for run in all_runs(tmp_path / "runs")] == [True, True]


@pytest.mark.slow
def test_a_rendered_job_has_the_hook_too(hpcprof: Hpcprof, tmp_path: Path) -> None:
    done = hpcprof("render", "--profiler", "torch", "--output", "job", "--", "sh", "-c", "echo $PYTHONPATH")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "job/hook/sitecustomize.py").is_file()
    subprocess.run(["bash", "job/job.sh"], cwd=tmp_path, check=True)
    assert (tmp_path / "job/logs/rank00000.out").read_text().startswith(f"{tmp_path}/job/hook")


@pytest.mark.slow
def test_a_run_has_the_hook_unless_it_was_submitted_without(hpcprof: Hpcprof, tmp_path: Path) -> None:
    show = 'echo "${PYTHONPATH-unset}"'
    for selection in (["--no-hook"], ["--ranks-per-node", "2", "--profiler", "torch"]):
        assert hpcprof("submit", *selection, "--wait", "--", "sh", "-c", show).returncode == 0
    plain, other_rank = all_runs(tmp_path / "runs")
    assert not (plain.path / "hook/sitecustomize.py").exists()
    inherited = os.environ.get("PYTHONPATH", "unset")
    assert (plain.path / "logs/rank00000.out").read_text() == f"{inherited}\n"
    hooked = (other_rank.path / "logs/rank00001.out").read_text()
    assert hooked.startswith(f"{other_rank.path}/hook")
