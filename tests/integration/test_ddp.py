"""The ddp workload on real ranks: MPI or torchrun starts them, gloo carries the data."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcprof.profiles.readers.results import parse_result
from hpcprof.workloads.schema import Training
from tests.conftest import Hpcprof
from tests.integration.mpi import PYTHON, Finished, forking_python, mpi

pytestmark = pytest.mark.slow

WORKLOAD = [*PYTHON, "-m", "hpcprof.workloads.ddp"]
SMALL = ["--epochs", "2", "--steps-per-epoch", "8", "--bucket-cap-mb", "0.3"]

# A model file that uses torch, DDP and transformer without importing them.
README_MODEL = """
def get_model(rank, cap_size):
    model_name = 'gpt2'
    model = getattr(transformer, model_name)().to(rank)
    model = DDP(model, device_ids=[rank], bucket_cap_mb=cap_size)
    return model

def get_dataloader(rank, batchsize):
    example = (torch.LongTensor(batchsize, 512).random_() % 1000).to(rank)
    labels = torch.randint(0, 10, (batchsize,)).to(rank)
    data_loader = [(example, labels)] * 100
    return data_loader

def forward_pass(model, inputs):
    output = model(inputs)
    return output

def backward_pass(output):
    output.last_hidden_state.backward(output.last_hidden_state)
"""
SMALL_GPT2 = """
from types import SimpleNamespace
import torch

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, 4)
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, tokens):
        return SimpleNamespace(last_hidden_state=self.linear(self.embedding(tokens)))

gpt2 = Small
"""
MODEL = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
steps = 0
class Short(list):
    def __len__(self):
        return 6
    def __iter__(self):
        return iter([torch.ones(16, 4)] * 2)
def get_model(rank, cap_size):
    return DDP(torch.nn.Linear(4, 4).to(rank), device_ids=[rank], bucket_cap_mb=cap_size)
def get_dataloader(rank, batchsize):
    return [torch.randn(batchsize, 4)] * 6
def forward_pass(model, inputs):
    global steps
    steps += 1
    {forward}
    return model(inputs).square().mean()
def backward_pass(output):
    output.backward()
    return output
"""


def training(run: Finished) -> list[Training]:
    found = [result.training for result in run.results()]
    assert None not in found
    return [one for one in found if one is not None]


def model_file(folder: Path, forward: str = "") -> Path:
    path = folder / "my_model.py"
    path.write_text(MODEL.format(forward=forward))
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return mpi(2, [*WORKLOAD, *SMALL], tmp_path_factory.mktemp("plain"))


def test_it_succeeds_and_measures_the_last_epoch(plain: Finished) -> None:
    assert (plain.code, plain.stderr) == (0, "")
    for result in plain.results():
        assert list(result.phase_ns) == ["data", "forward", "backward", "optimizer"]
        assert len(result.step_ns) == 8
        for step, phases in zip(result.step_ns, zip(*result.phase_ns.values(), strict=True), strict=True):
            assert 0 < sum(phases) <= step


def test_ranks_train_on_their_own_data_and_end_with_the_same_parameters(plain: Finished) -> None:
    first, second = plain.results()
    assert first.correctness is not None and second.correctness is not None
    assert second.correctness.passed and second.correctness.relative_error == 0
    own, other = training(plain)
    assert own.loss != other.loss


def test_another_seed_gives_other_losses(plain: Finished, tmp_path: Path) -> None:
    other = mpi(2, [*WORKLOAD, *SMALL, "--seed", "7"], tmp_path)
    assert [t.loss for t in training(other)] != [t.loss for t in training(plain)]


def test_buckets_are_those_that_ddp_rebuilt_and_hold_every_gradient(plain: Finished) -> None:
    for found in training(plain):
        assert found.buckets_rebuilt
        # Three layers of 256 x 256 and one of 256 x 10, with their biases, in float32.
        assert sum(found.bucket_bytes) == 4 * (3 * (256 * 256 + 256) + 256 * 10 + 10)
        assert len(found.bucket_bytes) > 1


def test_torchrun_starts_the_same_training_without_mpi_and_the_same_seed_gives_the_same_losses(
    tmp_path: Path, plain: Finished
) -> None:
    # torchrun starts its workers by the Python of PYTHON_EXEC.
    python = str(forking_python(tmp_path))
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "-m", "hpcprof.workloads.ddp", *SMALL],
        cwd=tmp_path, env=os.environ | {"PYTHON_EXEC": python}, capture_output=True, text=True, timeout=480,
    )  # fmt: skip
    run = Finished(done.returncode, done.stdout, done.stderr, tmp_path)
    assert run.code == 0, run.stderr
    assert [result.rank for result in run.results()] == [0, 1]
    assert "mpi" not in run.results()[0].versions
    assert [t.loss for t in training(run)] == [t.loss for t in training(plain)]


def test_without_a_sum_of_gradients_the_parameters_are_not_compared(tmp_path: Path) -> None:
    for option in (["--comm-hook", "noop"], ["--no-sync"]):
        run = mpi(2, [*WORKLOAD, *SMALL, *option], tmp_path)
        assert (run.code, run.stderr) == (0, "")
        assert [result.correctness for result in run.results()] == [None, None]
        assert training(run)[0].loss != training(run)[1].loss


@pytest.mark.parametrize("option", ["--comm-hook=bf16", "--comm-hook=builtin", "--static-graph"])
def test_every_way_of_summing_keeps_the_replicas_equal(option: str, tmp_path: Path) -> None:
    run = mpi(2, [*WORKLOAD, *SMALL, option, "--gradient-as-bucket-view"], tmp_path)
    assert (run.code, run.stderr) == (0, "")
    assert all(result.correctness and result.correctness.passed for result in run.results())


def test_faults_take_turns_by_epoch_and_cost_time_in_half_of_its_steps(tmp_path: Path) -> None:
    faults = ["--fault", "late_rank_host:ms=2000", "--fault", "exposed_communication", "--fault-blocks"]
    run = mpi(2, [*WORKLOAD, *SMALL, *faults, "--epochs", "3", "--warmup-epochs", "1"], tmp_path)
    assert (run.code, run.stderr) == (0, "")
    first, second = run.results()
    assert first.parameters["fault"] == "late_rank_host:ms=2000,rank=1 exposed_communication"
    # Sums that begin late are the same sums.
    assert first.correctness and first.correctness.passed
    slept = [time >= 2_000_000_000 for time in second.phase_ns["data"]]
    assert slept == [True] * 2 + [False] * 4 + [True] * 2 + [False] * 8
    # The other rank does not sleep, but waits; its step may begin later.
    assert min(first.step_ns[step] for step in (1, 7)) >= 1_000_000_000
    assert not first.notes and max(first.phase_ns["data"]) < 2_000_000_000


def test_training_in_bf16_computes_other_losses_and_keeps_the_replicas_equal(
    plain: Finished, tmp_path: Path
) -> None:
    run = mpi(2, [*WORKLOAD, *SMALL, "--precision", "bf16"], tmp_path)
    assert (run.code, run.stderr) == (0, "")
    found = run.results()[0]
    assert found.parameters["precision"] == "bf16"
    assert found.correctness and found.correctness.passed
    rounded, exact = training(run)[0].loss, training(plain)[0].loss
    assert rounded != exact and rounded == pytest.approx(exact, rel=0.02)


def test_the_folder_of_the_seeds_readme_runs_as_it_stands(tmp_path: Path, hpcprof: Hpcprof) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    (folder / "define_model.py").write_text(README_MODEL)
    # The folder has its own module transformer, with a small model, which takes precedence.
    (folder / "transformer.py").write_text(SMALL_GPT2)
    local = {"world_size": 1, "cap_size": 2, "epochs": 2, "batchsize": 2}
    (folder / "local_config.json").write_text(json.dumps(local))
    settings = {
        "cuda_visible_devices": "0,1",
        "cuda_version_check": "11.8",
        "ncu_path": sys.executable,
        "python_path": sys.executable,
    }
    (folder / "global_config.json").write_text(json.dumps(settings))
    python = f"python={forking_python(tmp_path)}"
    done = hpcprof("submit", "--workload", "ddp", "-o", python, "--wait", "--", "--input", "input")
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("runs/*/results/rank00000.json")
    result = parse_result(path.read_text())
    assert len(result.step_ns) == 100
    assert result.training is not None
    assert (result.training.unit, result.training.captured) == ("tokens", [[40, 59]])
    assert result.training.bucket_bytes == [4 * (1000 * 4 + 4 * 4 + 4)]


def test_a_forward_that_fails_on_one_rank_ends_the_job_and_names_rank_step_and_line(tmp_path: Path) -> None:
    forward = "if torch.distributed.get_rank() == 1 and steps == 9: raise ValueError('too hot')"
    path = model_file(tmp_path, forward)
    run = mpi(2, [*WORKLOAD, "--model", str(path), "--epochs", "2"], tmp_path)
    assert run.code == 1
    assert f"rank 1: epoch 1, step 2: forward_pass raised: ValueError: too hot ({path}, line 17)." in run.said
    assert "Traceback" not in run.stderr


def test_a_rank_that_hangs_ends_the_job_within_the_timeout(tmp_path: Path) -> None:
    forward = "import time; torch.distributed.get_rank() == 1 and steps == 9 and time.sleep(600)"
    path = model_file(tmp_path, forward)
    run = mpi(2, [*WORKLOAD, "--model", str(path), "--epochs", "2", "--timeout", "10"], tmp_path)
    assert run.code == 1
    assert any(line.startswith("rank 0: epoch 1, step 2: backward_pass raised:") for line in run.said)


def test_a_loss_that_is_no_number_is_said(tmp_path: Path) -> None:
    path = model_file(tmp_path, "inputs = inputs * (float('nan') if steps == 10 else 1)")
    run = mpi(2, [*WORKLOAD, "--model", str(path), "--epochs", "2"], tmp_path)
    assert (run.code, run.said) == (1, ["rank 0: the loss is not finite from measured step 3 on."])
    assert training(run)[0].loss[2] is not None and training(run)[0].loss[3] is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ("import torch\n", "import torch\nimport no_such_module\n"),
            "line 3: ModuleNotFoundError",
        ),
        (("* 6", "[:0]"), "get_dataloader returned no batches"),
        (("[torch.randn(batchsize, 4)] * 6", "Short()"), "epoch 0, step 2: the loader yields fewer batches"),
        (("[torch.randn(batchsize, 4)] * 6", "iter(())"), "without a length"),
    ],
)
def test_a_model_file_that_cannot_be_used_is_one_sentence(
    change: tuple[str, str], sentence: str, tmp_path: Path
) -> None:
    path = model_file(tmp_path)
    path.write_text(path.read_text().replace(*change))
    run = mpi(1, [*WORKLOAD, "--model", str(path)], tmp_path)
    (said,) = run.said
    assert run.code in (1, 2) and sentence in said


def test_a_capture_beyond_the_measured_steps_says_which_steps_there_are(tmp_path: Path) -> None:
    run = mpi(1, [*WORKLOAD, *SMALL], tmp_path, HPCPROF_PROFILER="torch", HPCPROF_CAPTURE_STEPS="3-9")
    assert run.code == 2
    assert run.said == [
        "rank 0: steps 3 to 9 are selected for capture, but the measured steps are 0 to 7 "
        "(1 of 2 epochs of 8 steps)."
    ]


def test_the_middle_steps_are_profiled_with_phases_and_buckets(tmp_path: Path, hpcprof: Hpcprof) -> None:
    python = f"python={forking_python(tmp_path)}"
    job = ["--workload", "ddp", "-o", python, "--ranks-per-node", "2", "--profiler", "torch", "--wait"]
    assert hpcprof("submit", *job, "--", *SMALL, "--capture-steps", "3").returncode == 0
    assert hpcprof("collect").returncode == 0
    steps = json.loads(hpcprof("report", "--analysis", "steps", "--format", "json").stdout)
    assert [row["step"] for row in steps] == [0, 1, 2]
    phases = json.loads(hpcprof("report", "--analysis", "phases", "--format", "json").stdout)
    assert [row["phase"] for row in phases if row["rank"] == 1] == [
        "data",
        "forward",
        "backward",
        "optimizer",
        "(rest)",
    ]
    ranges = json.loads(hpcprof("report", "--analysis", "ranges", "--format", "json").stdout)
    assert {"allreduce 0", "allreduce 1"} <= {row["range"] for row in ranges}
    assert "samples/s over all ranks" in hpcprof("report").stdout


def test_the_preset_of_backward_alone_captures_no_other_phase(tmp_path: Path) -> None:
    preset = ["--capture", "backward", "--capture-steps", "1"]
    run = mpi(1, [*WORKLOAD, *SMALL, *preset], tmp_path, HPCPROF_PROFILER="torch")
    assert run.code == 0, run.stderr
    (path,) = (tmp_path / "profiles").iterdir()
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert names.count("backward") == 1
    assert not {"forward", "optimizer", "iteration"} & set(names)


def test_a_schedule_on_one_rank_chooses_among_all_measured_steps(tmp_path: Path, hpcprof: Hpcprof) -> None:
    python = f"python={forking_python(tmp_path)}"
    ranks = ["--ranks-per-node", "2", "--profiler", "torch", "--profile-ranks", "1"]
    job = ["--workload", "ddp", "-o", python, *ranks]
    schedule = ["--profiler-option", "wait=3", "--profiler-option", "active=2", "--wait"]
    done = hpcprof("submit", *job, *schedule, "--", *SMALL)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.glob("runs/*/profiles/*")] == ["rank00001.trace.json.gz"]


def test_without_mpi4py_the_remedy_is_said(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('No module named mpi4py')")
    run = mpi(1, WORKLOAD, tmp_path)
    assert run.code == 1
    (sentence,) = run.said
    assert "Ranks started by MPI need mpi4py" in sentence and "torchrun" in sentence
