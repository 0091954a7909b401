"""Completion of values: what is offered, and in which form bash, zsh and fish take it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import get_completion_class

from hpcprof.cli.main import cli
from hpcprof.cli.shells import register_shells
from hpcprof.results.store.store import open_store
from hpcprof.results.store.tables import RunRow

POLARIS = ["submit", "--site", "polaris"]


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    register_shells()


def completed(monkeypatch: pytest.MonkeyPatch, *words: str, by: str = "zsh") -> list[str]:
    """Return what a shell is offered for the last word, without its type."""
    last = words[-1] if by == "fish" else str(len(words))
    monkeypatch.setenv("COMP_WORDS", "\n".join(("hpcprof", *words)))
    monkeypatch.setenv("COMP_CWORD", last)
    found = get_completion_class(by)
    assert found is not None
    lines = found(cli, {}, "hpcprof", "_HPCPROF_COMPLETE").complete().splitlines()
    return lines[1::3] if by == "zsh" else [line.partition(",")[2] for line in lines]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["submit", "--site", "pol"], ["polaris"]),
        (["sites", "show", "pol"], ["polaris"]),
        (["list", "--site", "pol"], ["polaris"]),
        (["sites", "new", "mine", "--from", "generic-p"], ["generic-pbs"]),
        (["doctor", "--site=generic-p"], ["--site=generic-pbs"]),
        ([*POLARIS, "--queue", "de"], ["debug", "debug-scaling", "demand"]),
        ([*POLARIS, "--queue", "s"], []),  # small accepts jobs from a routing queue only
        ([*POLARIS, "-o", ""], ["python=", "filesystems=", "mps="]),
        ([*POLARIS, "-o", "filesystems="], ["filesystems=home", "filesystems=eagle"]),
        ([*POLARIS, "-o", "filesystems=home:"], ["filesystems=home:eagle"]),
        (
            ["submit", "--workload", ""],
            ["sequence-parallel", "sequence-parallel-jax", "ddp", "network", "calls"],
        ),
        (["sweep", "--profiler", "n"], ["none", "nsys", "ncu"]),
        (
            ["submit", "--site", "lumi", "--profiler", ""],
            ["none", "torch", "jax", "rocprofv3", "eztrace", "scorep", "scorep-preload", "auto"],
        ),
        (["submit", "--profiler", "torch", "--profiler-option", "rec"], ["record_shapes="]),
        (["report", "--analysis", "kernels"], ["kernels", "kernels_by_shape"]),
        (["report", "--analysis", "roof"], ["roofline"]),  # of one run and of several
        (["explain", "--fail-on", "late_rank"], ["late_rank_host", "late_rank_gpu", "late_rank_compute"]),
        (["whatif", "la"], ["last"]),
        (["templates", "export", "job/pbs."], ["job/pbs.sh.j2"]),
        (["container", "stop", "--engine", "p"], ["podman-hpc", "podman"]),
        (["config", "set", "s"], ["site", "sites."]),
        (
            ["config", "set", "sites.polaris.o"],
            [f"sites.polaris.options.{option}" for option in ("python", "filesystems", "mps")],
        ),
        (["config", "set", "sites.polaris.options.filesystems", ""], ["home", "eagle"]),
        (["config", "set", "sites.polaris.queue", "debug-"], ["debug-scaling"]),
        (["config", "set", "site", "pol"], ["polaris"]),
        (["config", "set", "container_engine", "d"], ["docker"]),
        (["submit", "--site", "nosuch", "--queue", ""], []),
        (["nosuch", ""], []),
    ],
)
def test_the_values_that_may_follow_are_offered(
    words: list[str], offered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed(monkeypatch, *words) == offered


def test_queues_are_those_of_the_site_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("hpcprof.yaml").write_text("site: lumi\n")
    assert completed(monkeypatch, "submit", "--queue", "dev") == ["dev-g"]
    Path("job.yaml").write_text("site: polaris\n")
    assert completed(monkeypatch, "submit", "--job", "job.yaml", "--queue", "debug-") == ["debug-scaling"]


def test_a_broken_file_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("hpcprof.yaml").write_text("site: [\n")
    assert completed(monkeypatch, "submit", "--queue", "") == []


RUNS = ["20261121-143005-train-3fa9", "20261122-101500-sweep-0b17.0", "20261122-101500-sweep-0b17.1"]


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["logs"],
        ["cancel"],
        ["rm"],
        ["tag"],
        ["collect"],
        ["report", "last"],
        ["report", "--against"],
        ["compare"],
        ["compare", "--a"],
        ["export", "--to", "csv"],
        ["resubmit"],
        ["submit", "--from"],
        ["submit", "--after"],
        ["study", "training-table"],
    ],
)
def test_runs_are_offered_the_newest_first_and_sweeps_as_a_whole(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in RUNS:
        (Path("elsewhere") / name).mkdir(parents=True)
        (Path("elsewhere") / name / "run.json").touch()
    monkeypatch.setenv("HPCPROF_RUNS", "elsewhere")
    sweep = RUNS[1].removesuffix(".0")
    assert completed(monkeypatch, *words, "") == ["last", *reversed(RUNS), sweep]
    assert completed(monkeypatch, *words, "20261121") == RUNS[:1]


def test_imported_runs_are_offered_where_results_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(None, Path("runs"))
    store.prepare()
    store.put_profiles(RunRow("profiles-1a2b3c4d", "/profiles"), [])
    assert completed(monkeypatch, "report", "") == ["last", "profiles-1a2b3c4d"]
    assert completed(monkeypatch, "cancel", "") == ["last"]


def test_the_shell_completes_folders_and_programs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, kind in ((["report", "./pro"], "dir"), (["submit", "--", "./pro"], "file")):
        monkeypatch.setenv("COMP_WORDS", "\n".join(("hpcprof", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        found = get_completion_class("bash")
        assert found is not None
        assert found(cli, {}, "hpcprof", "_HPCPROF_COMPLETE").complete() == f"{kind},./pro"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["--site", "=", "pol"], ["polaris"]),
        (["--site", "=", "local", "-o", "mpi"], ["mpiexec="]),
        (["--site", "polaris", "-o", "filesystems", "="], ["home", "eagle"]),
        (["--site", "polaris", "-o", "filesystems", "=", "e"], ["eagle"]),
        (["--site", "polaris", "-o", "filesystems", "=", "home", ":", "e"], ["eagle"]),
        (["--site", "polaris", "-o", "filesystems", "=", "home", "--queue", "cap"], ["capacity"]),
    ],
)
def test_bash_which_splits_words_at_equals_signs_and_colons_gets_the_last_part(
    words: list[str], offered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed(monkeypatch, "submit", *words, by="bash") == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_get_the_whole_word(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(monkeypatch, "submit", "--site=pol", by=shell) == ["--site=polaris"]
    assert completed(monkeypatch, *POLARIS, "-o", "filesystems=e", by=shell) == ["filesystems=eagle"]


@pytest.mark.parametrize(("shell", "part"), [("bash", "compopt -o nospace"), ("zsh", "suffix=(-S '')")])
def test_no_space_follows_a_key_in_the_script_of_a_shell(shell: str, part: str) -> None:
    found = get_completion_class(shell)
    assert found is not None
    assert part in found.source_template


def test_hosts_are_those_of_the_users_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert completed(monkeypatch, "submit", "--host", "") == []
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host polaris aurora *.example !bad\n  User me\nhost lumi?\n")
    assert completed(monkeypatch, "submit", "--host", "") == ["polaris", "aurora"]
    assert completed(monkeypatch, "config", "set", "sites.polaris.host", "") == ["polaris", "aurora"]
