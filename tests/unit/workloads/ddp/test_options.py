"""Options, settings and model files of the ddp workload: an error is one sentence with its place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.common.errors import UsageError
from hpcprof.submit.rendering.job_scripts import render_scripts
from hpcprof.submit.sites.files import load_site
from hpcprof.workloads import catalogue
from hpcprof.workloads.ddp.benchmark import captured_by_default, check_cuda_version, middle_steps
from hpcprof.workloads.ddp.options import TrainingParameters, check_model_file, parse
from tests.jobs import make_job

MODEL = """
def get_model(rank, cap_size): ...
def get_dataloader(rank, batchsize): ...
def forward_pass(model, inputs): ...
def backward_pass(output): ...
"""
LOCAL = {"cap_size": 2, "epochs": 3, "batchsize": 16}


def folder(path: Path, local: Any = LOCAL, other: Any = None, model: str = MODEL) -> Path:
    path.mkdir(exist_ok=True)
    (path / "define_model.py").write_text(model)
    (path / "local_config.json").write_text(local if isinstance(local, str) else json.dumps(local))
    (path / "global_config.json").write_text(json.dumps(other or {}))
    return path


def sentence(*arguments: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_arguments_give_the_defaults() -> None:
    assert parse([]) == TrainingParameters()


def test_flags_and_settings_say_the_same_thing(tmp_path: Path) -> None:
    path = folder(tmp_path / "in", {**LOCAL, "warmup_epochs": 1})
    model = str(path / "define_model.py")
    flags = f"--model {model} --bucket-cap-mb 2 --epochs 3 --batch-size 16 --warmup-epochs 1"
    assert parse(["--input", str(path)]) == parse(flags.split())
    assert parse(["--input", str(path), "--epochs", "5"]).epochs == 5


def test_the_global_file_comes_before_the_local_one(tmp_path: Path) -> None:
    path = folder(tmp_path / "in", {**LOCAL, "epochs": 9}, {"epochs": 2, "world_size": 4})
    assert (parse(["--input", str(path)]).epochs, parse(["--input", str(path)]).world_size) == (2, 4)


@pytest.mark.parametrize(
    ("local", "other", "says"),
    [
        ({"cap_size": 2, "epochs": 3}, {}, "the key batchsize is missing"),
        ({**LOCAL, "batch_size": 1}, {}, "unknown key 'batch_size' in {0}/local_config.json; did you mean"),
        ({**LOCAL, "epochs": 0}, {}, "{0}/local_config.json: epochs is 0: it must be a whole number from 1."),
        ({**LOCAL, "epochs": True}, {}, "epochs is true: it must be a whole number"),
        ({**LOCAL, "cap_size": "2"}, {}, 'cap_size is "2": it must be a number of MB above 0.'),
        (LOCAL, {"cuda_version_check": 12.1}, "cuda_version_check is 12.1: it must be a text"),
        (LOCAL, {"nsys_path": "/no/nsys"}, "nsys_path is /no/nsys, which does not exist."),
        (LOCAL, {"python_path": "/no/python"}, "python_path is /no/python, which does not exist."),
        ("[1]", {}, "must contain a JSON object"),
        ('{\n"epochs": }', {}, "local_config.json, line 2: not JSON"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_one_sentence(local: Any, other: Any, says: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "in", local, other)
    assert says.format(path) in sentence("--input", str(path))


def test_a_missing_folder_or_file_is_one_sentence(tmp_path: Path) -> None:
    assert sentence("--input", str(tmp_path / "no")).endswith("the folder does not exist.")
    path = folder(tmp_path / "in")
    (path / "global_config.json").unlink()
    assert "global_config.json cannot be read: No such file" in sentence("--input", str(path))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            "--model gtp2",
            "unknown model 'gtp2' (the name of a model file ends with .py); did you mean 'gpt2'",
        ),
        ("--bucket-cap-mb 0", "'0' is not a number of MB above 0"),
        ("--bucket-cap-mb nan", "'nan' is not a number of MB above 0"),
        ("--epochs 2 --warmup-epochs 2", "--warmup-epochs 2 leaves none of the 2 epochs to measure."),
        ("--model bert --sequence-length 513", "--sequence-length 513: bert supports at most 512."),
        ("--comm-hook none", "argument --comm-hook: invalid choice"),
        ("--bucket-cap 2", "unknown option '--bucket-cap' of ddp; did you mean '--bucket-cap-mb'"),
        ("--model no.py", "no.py cannot be read: No such file or directory."),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments: str, says: str) -> None:
    assert says in sentence(*arguments.split())


@pytest.mark.parametrize("key", ["tools", "world-size", "cuda-version", "cuda-visible-devices"])
def test_what_only_a_settings_file_can_say_is_no_option_and_not_offered_as_one(key: str) -> None:
    said = sentence(f"--{key}", "1")
    assert said.startswith(f"unknown option '--{key}' of ddp")
    assert f"--{key}" not in said.partition("of ddp")[2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("def backward_pass(output)", "def backward(output)"), "does not define backward_pass(output); "
         "it defines get_model in line 2, get_dataloader in line 3, forward_pass in line 4."),
        (("(model, inputs)", "(model)"), "line 4: forward_pass takes (model), but is called with (model, "),
        (("(output)", "(output, loss)"), "line 5: backward_pass takes (output, loss), but is called with"),
        (("(rank, cap_size): ...", "(rank, cap_size) ..."), "line 2: expected ':'."),
    ],
)  # fmt: skip
def test_a_model_file_that_lacks_something_is_named_with_its_line(
    change: tuple[str, str], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.py"
    path.write_text(MODEL.replace(*change))
    said = sentence("--model", str(path))
    assert said.startswith(str(path)) and says in said


@pytest.mark.parametrize(
    "text",
    [
        MODEL.replace("(output)", "(*output)"),
        MODEL.replace("(output)", "(output, scale=1)"),
        MODEL.replace("def backward_pass(output): ...", "backward_pass = print"),
        MODEL.replace("def backward_pass(output): ...", "from x import y as backward_pass"),
        MODEL.replace("def backward_pass(output): ...", "if 1:\n    def backward_pass(output): ..."),
        "from functions import *",
    ],
)
def test_what_can_have_the_functions_is_not_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(text)
    check_model_file(tmp_path / "m.py")


def test_settings_for_another_number_of_ranks_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "in", {**LOCAL, "world_size": 2})
    workload = catalogue.find("ddp")
    workload.check(["--input", str(path)], 2)
    with pytest.raises(UsageError, match=r"world_size is 2 in .*, but the job has 4 ranks"):
        workload.check(["--input", str(path)], 4)


def test_the_programs_that_settings_name_are_those_that_the_scripts_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys = tmp_path / "my nsys"
    nsys.touch()
    path = folder(tmp_path / "in", LOCAL, {"nsys_path": str(nsys), "python_path": sys.executable})
    monkeypatch.setattr(sys, "executable", "/somewhere/else/python")
    site = load_site("local")
    job = make_job(site, workload="ddp", arguments=["--input", str(path)], profiler="nsys",
                   options={"mpiexec": "/usr/bin/mpiexec"})  # fmt: skip
    texts = render_scripts(site, job, tmp_path / "run", ["hpcprof"])
    assert f"set -- '{nsys}' profile " in texts["wrapper.sh"]
    assert f"'{nsys}' --type=sqlite " in texts["wrapper.sh"]
    assert "/somewhere/else" not in texts["job.sh"].replace("/somewhere/else/mpiexec", "")


def test_cuda_versions_are_compared_as_far_as_they_are_given() -> None:
    for wanted, found in (("12.8", "12.8"), ("13", "13.0"), (None, "13.0"), ("11.8", None)):
        check_cuda_version(wanted, found)
    for wanted, found in (("11.8", "13.0"), ("1", "13.0"), ("13.00", "13.0")):
        with pytest.raises(UsageError, match=r"but PyTorch was built with CUDA 13\.0"):
            check_cuda_version(wanted, found)


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 50))
def test_the_middle_has_as_much_on_both_sides(count: int, first: int, length: int) -> None:
    ((start, last),) = middle_steps(count, first, first + length)
    before, after = start - first, first + length - 1 - last
    assert last - start + 1 == min(count, length)
    assert 0 <= before - after <= 1


def test_a_default_capture_has_20_steps_or_as_many_as_10_s_hold() -> None:
    assert [captured_by_default(ns) for ns in (0, 10**6, 10**9, 9 * 10**9)] == [20, 20, 10, 3]


def test_the_seeds_step_is_the_middle_of_the_last_epoch() -> None:
    assert middle_steps(1, 200, 300) == ((250, 250),)
