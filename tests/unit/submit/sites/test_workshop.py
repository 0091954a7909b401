"""The commands that stand for the scripts of the Polaris workshop."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcprof.cli.render import command as render
from hpcprof.cli.submit import command as submit
from hpcprof.cli.sweep import command as sweep

EXAMPLE = Path(__file__).parents[4] / "examples/polaris-workshop"
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+\.\w+)` \| [^|]+ \| `(hpcprof [^`]+)` \|$", README, re.MULTILINE)


# Nodes, and what --dry-run says of the profiler: as the scripts did it, or meant to.
EXPECTED = {
    "qsub_polaris_sequence_parallelism.sh": (1, "profiler   none\n"),
    "qsub_profile_polaris_sequence_parallelism.sh": (2, "nsys on 8 of 8 ranks"),
    "nsys_wrapper.sh": (2, "nsys on 2 of 8 ranks (0, 4)"),
    "qsub_nsys_wrapper_polaris_sequence_parallelism.sh": (2, "nsys on 2 of 8 ranks (0, 4)"),
    "ncu_wrapper.sh": (2, "ncu on 2 of 8 ranks (0, 4)"),
    "qsub_ncu_wrapper_polaris_sequence_parallelism.sh": (2, "ncu on 2 of 8 ranks (0, 4)"),
    "sequence_parallelism_compute_lineprofile.py": (1, "nsys on 4 of 4 ranks"),
    "qsub_line_profile_polaris_sequence_parallelism.sh": (1, "nsys on 4 of 4 ranks"),
}


def test_the_table_has_the_eight_scripts_of_the_workshop() -> None:
    assert dict(ROWS).keys() == EXPECTED.keys()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, as the working directory."""
    shutil.copy(EXAMPLE / "workshop.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("script", "line"), ROWS, ids=[script for script, _ in ROWS])
def test_the_command_for_a_script_of_the_workshop_makes_its_job(script: str, line: str, folder: Path) -> None:
    nodes, profiled = EXPECTED[script]
    _, verb, *arguments = shlex.split(line)
    if verb == "render":
        done = CliRunner().invoke(render, arguments, catch_exceptions=False)
        assert done.exit_code == 0
        at = arguments.index("--output")
        assert (folder / arguments[at + 1] / "wrapper.sh").is_file()
        del arguments[at : at + 2]
    shown = CliRunner().invoke(submit, [*arguments, "--dry-run"], catch_exceptions=False)
    assert shown.exit_code == 0
    assert profiled in shown.output
    assert f"#PBS -l select={nodes}:system=polaris\n" in shown.output
    assert f" -n {4 * nodes} --ppn 4 --cpu-bind=list:0-7,32-39:" in shown.output
    assert "--sequence-length 4608 --hidden-size 9216 --steps 18 --dtype bfloat16" in shown.output


def test_both_precisions_are_one_sweep(folder: Path) -> None:
    line = next(re.finditer(r"`hpcprof (sweep [^`]+)`", README))[1]
    shown = CliRunner().invoke(sweep, [*shlex.split(line)[1:], "--dry-run"], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "--dtype float32" in " ".join(shown.output.split())
