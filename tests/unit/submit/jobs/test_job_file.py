"""Job files: what they may hold, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.job_file import load_job_file
from hpcprof.submit.jobs.request import resolve

GIGL = """\
program: [python, train.py]
profilerConfig:
  should_enable_profiler: true
  profiler_log_dir: /data/traces
  profiler_args: {wait: '0', with_stack: 'True', record_shapes: true}
"""


def test_a_profiler_config_of_gigl_is_the_torch_profiler_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(GIGL)
    job = load_job_file(path)
    assert job.profiler == "torch"
    assert job.profiler_options == {
        "wait": "0",
        "warmup": "2",
        "active": "2",
        "repeat": "1",
        "profile_memory": "true",
        "with_stack": "true",
        "record_shapes": "true",
        "log_dir": "/data/traces",
    }
    path.write_text(GIGL.replace("should_enable_profiler: true", "should_enable_profiler: false"))
    assert load_job_file(path).profiler == "none"


def test_numbers_are_texts_where_an_option_is_text(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "nodes: 2\nwalltime: 1:30:00\naccount: 007\nmem: 64\noptions: {a: 1}\nprogram: [./train, 3, 1e3]\n"
    )
    spec = load_job_file(path)
    assert (spec.nodes, spec.walltime, spec.account, spec.mem) == (2, "1:30:00", "007", "64")
    assert (spec.options, spec.program) == ({"a": "1"}, ("./train", "3", "1e3"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rank: 2\n", r"unknown key 'rank' in .*job\.yaml, line 1; did you mean"),
        ("command: [true]\n", r"unknown key 'command' in .*job\.yaml, line 1; did you mean 'program'"),
        ("nodes: two\n", r"job\.yaml, line 1: nodes = 'two'"),
        ("\nnodes: 1\nmem: [64]\n", r"job\.yaml, line 3: mem: expected text"),
        ("- a\n", "is not a job file"),
        ("options: {a: [1]}\n", r"job\.yaml, line 1: options"),
        ("program: python train.py\n", r"expected a list, got text: write its items as \[A, B\]\.$"),
        ("profilerConfig: {enable: true}\n", r"unknown key 'enable' in .*under profilerConfig"),
        ("profiler: nsys\nprofilerConfig: {}\n", "profilerConfig replaces profiler and profiler_options"),
    ],
)
def test_a_wrong_job_file_is_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        load_job_file(path)


@pytest.mark.parametrize(("key", "value", "least"), [("nodes", 0, 1), ("gpus_per_rank", -1, 0)])
def test_a_number_that_is_too_small_is_refused_with_its_line(
    key: str, value: int, least: int, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"site: generic-slurm\n{key}: {value}\nprogram: ['true']\n")
    place = f"{key} = {value} in {path}, line 2"
    says = f"--{key.replace('_', '-')} {value}: write a whole number from {least} ({place})."
    with pytest.raises(UsageError, match=re.escape(says)):
        resolve(JobSpec(job_file=path))
