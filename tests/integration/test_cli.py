"""The command line: what it imports, what it says to wrong input."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import hpcprof as hpcprof_package
from hpcprof.cli.main import COMMANDS, SECTIONS, cli
from tests.conftest import Hpcprof

HEAVY = ("pandas", "sqlalchemy", "torch", "numpy", "mpi4py", "rich")
SUBMIT_HEAVY = ("pandas", "sqlalchemy", "torch", "numpy", "mpi4py")


def imported(arguments: list[str], tmp_path: Path) -> set[str]:
    """Run a command and return the top-level packages that it had imported at its end."""
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('\\nMODULES', *{m.partition('.')[0] for m in sys.modules}))\n"
        f"sys.argv = ['hpcprof', *{arguments!r}]\n"
        "from hpcprof.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("MODULES ")[2].split())


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    assert imported(["--help"], tmp_path).isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit", "--dry-run", "--", "true"],
        ["submit", "--dry-run", "--workload", "sequence-parallel", "-o", "mpiexec=/usr/bin/mpiexec"],
        ["submit", "--wait", "--", "true"],
    ],
    ids=["dry run", "workload", "submit"],
)
def test_submit_imports_neither_torch_nor_pandas_nor_a_database(arguments: list[str], tmp_path: Path) -> None:
    assert imported(arguments, tmp_path).isdisjoint(SUBMIT_HEAVY)


def test_a_report_from_the_store_imports_neither_pandas_nor_torch(tmp_path: Path, hpcprof: Hpcprof) -> None:
    hpcprof("submit", "--wait", "--", "false")
    hpcprof("report")
    assert imported(["report"], tmp_path).isdisjoint({"pandas", "torch", "mpi4py"})


def test_every_command_is_in_exactly_one_section_of_the_help(hpcprof: Hpcprof) -> None:
    named = [name for section in SECTIONS.values() for name in section]
    files = Path(hpcprof_package.__file__).parent.joinpath("cli").glob("*.py")
    commands = {path.stem for path in files if re.search(r"^def command\(", path.read_text(), re.MULTILINE)}
    assert (len(named), set(named)) == (len(set(named)), commands)
    shown = hpcprof("--help").stdout
    assert [line[:-1] for line in shown.splitlines() if line[:-1] in SECTIONS] == list(SECTIONS)
    for name in named:
        assert len(re.findall(rf"^  {name} ", shown, re.MULTILINE)) == 1


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_help_fits_the_terminal_with_the_sentences_in_one_column(
    columns: int, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = hpcprof("--help").stdout.splitlines()
    starts = {len(match[0]) for line in lines if (match := re.match(rf"  ({'|'.join(COMMANDS)}) +", line))}
    assert len(starts) == 1
    assert max(len(line) for line in lines if not line.startswith("    hpcprof ")) < columns


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str, hpcprof: Hpcprof) -> None:
    done = hpcprof(name, "--help")
    assert done.returncode == 0
    assert re.search(r"Examples?:\n +hpcprof", done.stdout)


def test_every_command_that_is_listed_exists_and_is_described_as_its_help_says(hpcprof: Hpcprof) -> None:
    for name, sentence in COMMANDS.items():
        assert sentence in " ".join(hpcprof(name, "--help").stdout.split())


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["sumbit"], 2, "unknown command 'sumbit'; did you mean 'submit'"),
        (["version"], 2, "unknown command 'version' (write hpcprof --version)"),
        (
            ["study", "slowdwn"],
            2,
            "unknown command 'slowdwn' of hpcprof study; did you mean 'slowdown'?",
        ),
        (
            ["study", "slowdown", "--resume", "gone"],
            2,
            "runs/gone has no study.json: name a folder of hpcprof study slowdown.",
        ),
        (
            ["study", "slowdown", "--resume", "x", "--repeats", "2"],
            2,
            "as it was planned: leave out --repeats",
        ),
        (["study", "slowdown", "--resume", "x", "--", "true"], 2, "as it was planned: leave out the program"),
        (["study", "validate", "--faults", "none,gcc"], 2, "unknown fault 'gcc'; did you mean 'gc'?"),
        (["study", "validate", "--resume", "x", "--faults", "gc"], 2, "planned: leave out --faults"),
        (["submit", "--site", "locl", "--", "true"], 2, "unknown site 'locl'; did you mean 'local'?"),
        (["submit", "--workload", "sequence", "--", "x"], 2, "did you mean 'sequence-parallel'"),
        (["submit", "-o", "novalue", "--", "true"], 2, "-o novalue: write it as KEY=VALUE"),
        (["submit", "--ranks-per-node", "0", "--", "true"], 2, "0 is not in the range"),
        (["submit", "--nodes", "two", "--", "true"], 2, "'--nodes': 'two' is not a whole number."),
        (["submit", "--ranks-per-node", "9" * 30, "--", "true"], 2, "ranks; the limit is 10,000,000"),
        (
            ["study", "slowdown", "--alone", "one-rank", "--sweep", "x=1", "--", "true"],
            2,
            "--sweep x: write {x}",
        ),
        (["study", "slowdown", "--repeats", "9" * 30, "--", "true"], 2, "is not in the range 1<=x<=1000"),
        (["export", "--to", "csv", "."], 2, "no runs in runs yet"),
        (["export", "--to", "csv", ""], 2, "give the folder to write to"),
        (["export", "--to", "csv", __file__], 2, "test_cli.py is not a folder: give the folder to write to"),
        (["export", "--to", "chrome", ".", "made"], 1, "nothing written to made: "),
        (["submit", "--template", "missing.j2", "--", "true"], 2, "missing.j2"),
        (["report", "--analysis", "kernel"], 2, "unknown analysis 'kernel'; did you mean 'kernels'"),
        (["report", "--format", "csv"], 2, "choose it with --analysis NAME"),
        (["report"], 2, "no runs in runs yet: hpcprof run -- COMMAND starts one"),
        (["report", "nothing"], 2, "unknown run 'nothing'"),
        (["status", "nothing"], 2, "unknown run 'nothing'"),
        (["collect", ""], 2, "unknown run ''"),
        (["collect", "./nowhere"], 2, "there is no file or folder nowhere."),
        (["collect", __file__], 2, "is not a profile that hpcprof reads"),
        (["collect", ".", "--db", "."], 2, "--db .: that is a folder"),
        (["render", "--save", "", "--", "true"], 1, "cannot write .: Is a directory"),
        (["submit", "--wait", "--", "echo", "\udcff"], 2, "is not valid UTF-8"),
        (["collect", "."], 1, ": hpcprof open --help lists the formats."),
        (["collect", ".", "--db", "nosuch://x"], 2, "--db nosuch://…: this database cannot be used here"),
        (["sites", "check", "missing.yaml"], 2, "missing.yaml"),
        (["open", "/missing/file.sqlite"], 2, "there is no file or folder /missing/file.sqlite"),
    ],
)
def test_a_mistake_is_one_sentence_and_an_exit_code_and_never_a_traceback(
    arguments: list[str], code: int, says: str, hpcprof: Hpcprof
) -> None:
    done = hpcprof(*arguments)
    assert done.returncode == code, done.stderr
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["export", "x"],
            "Missing option '--to'. Choose from: parquet, csv, perfetto, chrome, chakra, goal.",
        ),
        (
            ["report", "--format", "xml"],
            "Invalid value for '--format': 'xml' is not one of 'table', 'csv', 'json'.",
        ),
        (["study", "slowdown", "--xyzzy"], "No such option '--xyzzy'."),
        (["scrub"], "Missing argument 'FILE…'."),
    ],
)
def test_a_wrong_option_is_one_line_that_names_the_help(
    arguments: list[str], says: str, hpcprof: Hpcprof
) -> None:
    done = hpcprof(*arguments)
    command = " ".join(arguments[: 2 if arguments[0] == "study" else 1])
    assert (done.returncode, done.stderr) == (2, f"hpcprof: {says} See hpcprof {command} --help.\n")


def test_without_a_command_the_help_is_shown(hpcprof: Hpcprof) -> None:
    for words in ([], ["study"]):
        done = hpcprof(*words)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("Usage: hpcprof ")


def test_an_unknown_name_comes_with_every_valid_one(hpcprof: Hpcprof) -> None:
    valid = hpcprof("nosuch").stderr.strip().rpartition("Valid: ")[2].rstrip(".").split(", ")
    assert valid == sorted(COMMANDS)


GROUPS = [name for name in COMMANDS if isinstance(cli.get_command(click.Context(cli), name), click.Group)]


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_names_all_its_commands_to_a_name_that_is_none(group: str, hpcprof: Hpcprof) -> None:
    done = hpcprof(group, "nosuch")
    assert done.returncode == 2
    command = cli.get_command(click.Context(cli), group)
    assert isinstance(command, click.Group)
    assert done.stderr.endswith(f"Valid: {', '.join(sorted(command.commands))}.\n")


def test_output_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hpcprof", "--help"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (
        1,
        "hpcprof: the output could not be written: No space left on device.\n",
    )


def test_packages_for_another_python_in_the_path_of_the_shell_are_left_alone(tmp_path: Path) -> None:
    for name in ("click", "msgspec", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('made for Python 3.6')\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}/{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "hpcprof", "sites", "show", "local"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("name: local\n")


def test_a_path_of_the_shell_that_has_hpcprof_itself_stays_the_first(tmp_path: Path) -> None:
    (tmp_path / "hpcprof").symlink_to(Path(hpcprof_package.__file__).parent)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}/"}
    command = [sys.executable, "-c", "import hpcprof.cli, sys; print(sys.path[:2])"]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    assert done.stdout == f"{['', str(tmp_path)]}\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_file_that_is_closed_changes_nothing_else(closed: str, tmp_path: Path) -> None:
    program = f'"{sys.executable}" -m hpcprof query --schema --format csv {closed}; echo $? > code'
    done = subprocess.run(["sh", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout == "") == (">&-" in closed.split())
    assert ((tmp_path / "code").read_text(), done.stderr) == ("0\n", "")


def test_a_folder_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    gone = f"import os; os.chdir(d := {str(tmp_path / 'gone')!r}); os.rmdir(d)"
    (tmp_path / "gone").mkdir()
    program = f"{gone}; import sys; sys.argv[1:] = ['report']; from hpcprof.cli.main import main; main()"
    # The interpreter does not find its modules by the folder that is gone.
    environment = os.environ | {"PYTHONPATH": str(Path(hpcprof_package.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "hpcprof: the current directory no longer exists: change to another one.\n",
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_without_some_characters_shows_the_others(encoding: str, tmp_path: Path) -> None:
    program = "from hpcprof.cli.main import cli, main\ncli.help = 'naïve 内核 \\udcff here'\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"here" in done.stdout


@pytest.mark.parametrize(
    ("name", "size"),
    [*(("COLUMNS", size) for size in ("0", "-5", "wide", "²", "9" * 5000)), ("LINES", "²")],
    ids=["0", "negative", "word", "other digit", "too long", "height"],
)
def test_a_size_of_the_terminal_that_is_none_is_as_if_not_said(
    name: str, size: str, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = hpcprof("sites", "list").stdout
    assert "local" in shown
    monkeypatch.setenv(name, size)
    done = hpcprof("sites", "list")
    assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")


def test_debug_shows_the_traceback(hpcprof: Hpcprof) -> None:
    assert "Traceback" in hpcprof("--debug", "submit", "--site", "locl", "--", "true").stderr
    assert "Traceback" in hpcprof("-v", "--debug", "submit", "--site", "locl", "--", "true").stderr
    assert "Traceback" not in hpcprof("submit", "--site", "locl", "--", "--debug").stderr


def test_a_unique_beginning_of_an_id_names_a_run_and_an_ambiguous_one_is_refused(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    for _ in range(2):
        hpcprof("submit", "--wait", "--", "true")
    first, second = sorted(p.name for p in (tmp_path / "runs").iterdir() if p.is_dir())
    assert first in hpcprof("status", first[:-1]).stdout
    assert second in hpcprof("status", f"runs/{second}").stdout
    done = hpcprof("status", first[:2])
    assert done.returncode == 2
    assert "is ambiguous" in done.stderr


def test_a_run_that_cannot_be_read_is_named_and_the_others_are_there(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    for _ in range(2):
        hpcprof("submit", "--wait", "--", "true")
    first, second = sorted(
        (path for path in (tmp_path / "runs").glob("2*")), key=lambda p: (p / "job.sh").stat().st_mtime
    )
    (first / "run.json").write_text("{")
    (second / "job.sh").unlink()
    for words in (["list"], ["report", "--analysis", "scaling"]):
        done = hpcprof(*words)
        assert done.returncode == 1
        assert done.stderr.endswith(
            f"hpcprof: skipped: {first / 'run.json'} cannot be read: Input data was truncated.\n"
        )
        assert words != ["list"] or second.name in done.stdout
    assert second.name in hpcprof("status", second.name).stdout


def test_rendered_files_run_by_hand_without_hpcprof(hpcprof: Hpcprof, tmp_path: Path) -> None:
    hpcprof("render", "--output", "job", "--", "sh", "-c", "echo $HPCPROF_RANK")
    done = subprocess.run(["bash", "job/job.sh"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "job/logs/rank00000.out").read_text() == "0\n"
    assert (tmp_path / "job/state/finished").read_text() == "0\n"


def test_a_draft_is_rendered_with_what_it_lacks_named_and_submit_refuses_it(hpcprof: Hpcprof) -> None:
    job = ["--site", "polaris", "--workload", "sequence-parallel"]
    draft = hpcprof("render", *job, "--profiler", "nsys", "--profile-ranks", "local=0,nodes=0-1")
    assert draft.returncode == 0
    assert draft.stdout.startswith("#!/bin/bash -l\n# hpcprof render --site polaris")
    assert "#PBS -A" not in draft.stdout
    lacks = draft.stderr.splitlines()
    assert [re.search(r"option filesystems|--account|--queue", line).group() for line in lacks] == [
        "option filesystems",
        "--account",
        "--queue",
    ]
    refused = hpcprof("submit", "--dry-run", *job)
    assert refused.returncode == 2
    assert "needs the option filesystems" in refused.stderr


def test_a_dry_run_leaves_nothing_behind(hpcprof: Hpcprof, tmp_path: Path) -> None:
    done = hpcprof("submit", "--dry-run", "--profiler", "torch", "--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    assert "#!/bin/bash" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["submit"],
        ["sweep", "-P", "n=1,2"],
        ["study", "slowdown", "--alone", "one-rank", "--ranks-per-node", "2"],
    ],
    ids=["submit", "sweep", "study"],
)
def test_a_submit_that_is_refused_leaves_no_run(words: list[str], hpcprof: Hpcprof, tmp_path: Path) -> None:
    done = hpcprof(*words, "--", "echo", "{n}", "\udcff")
    assert done.returncode == 2
    assert "is not valid UTF-8" in done.stderr
    assert not [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]


def test_a_submit_that_would_have_to_wait_where_nothing_waits_leaves_no_run(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    hpcprof("submit", "--", "sleep", "300")
    done = hpcprof("submit", "--after", "last", "--", "true")
    hpcprof("cancel", "last")
    assert (done.returncode, "no queue to wait in" in done.stderr) == (1, True)
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_site_is_shown_as_it_is_resolved_and_a_file_is_checked(hpcprof: Hpcprof, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: local\ndescription: my box\n")
    assert "valid" in hpcprof("sites", "check", "mine.yaml").stdout
    assert "local.yaml: site local is valid" in hpcprof("sites", "check", "local").stdout
    assert "local" in hpcprof("sites", "list").stdout
    assert "scheduler: local" in hpcprof("sites", "show", "local").stdout


def test_bash_completion_offers_the_commands(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from hpcprof.cli.main import main; main()"],
        env={
            **{"_HPCPROF_COMPLETE": "bash_complete", "COMP_WORDS": "hpcprof s", "COMP_CWORD": "1"},
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    offered = {line.partition(",")[2] for line in done.stdout.splitlines()}
    assert offered == {name for name in COMMANDS if name.startswith("s")}


def test_a_list_imports_neither_pandas_nor_a_database_library(tmp_path: Path, hpcprof: Hpcprof) -> None:
    hpcprof("submit", "--", "true")
    assert imported(["list", "--format", "csv"], tmp_path).isdisjoint(SUBMIT_HEAVY)


def test_a_list_shows_the_columns_for_which_the_terminal_is_wide_enough(
    hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    hpcprof("submit", "--job-name", "a", "--wait", "--", "true", "x" * 100)
    for width, headings in ((50, "run state site duration"), (70, "run state site started duration")):
        monkeypatch.setenv("COLUMNS", str(width))
        done = hpcprof("list")
        lines = done.stdout.splitlines()
        assert lines[0].split() == headings.split()
        assert max(map(len, lines)) <= width
        assert "not shown in this width: " in done.stderr
    monkeypatch.delenv("COLUMNS")
    done = hpcprof("list")
    assert ("x" * 100 in done.stdout, done.stderr) == (True, "")


BASH = """\
hpcprof() { "$PYTHON" -m hpcprof "$@"; }
export -f hpcprof
env() { while [[ $1 == *=* ]]; do local -x "$1"; shift; done; "$@"; }
eval "$(_HPCPROF_COMPLETE=bash_source hpcprof)"
COMP_WORDS=(hpcprof submit --site = pol) COMP_CWORD=4
_hpcprof_completion hpcprof
echo "offered ${COMPREPLY[*]}"
complete -p hpcprof
"""


def test_bash_itself_completes_a_value(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH],
        env={**os.environ, "PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout == "offered polaris\ncomplete -o nosort -F _hpcprof_completion hpcprof\n"


@pytest.mark.parametrize("words", ["report --analysis ", "submit --queue ", "status "])
def test_completion_imports_nothing_heavy(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_HPCPROF_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"hpcprof {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) + 1))
    assert imported([], tmp_path).isdisjoint(HEAVY)


def test_ctrl_c_while_a_command_starts_is_one_sentence() -> None:
    program = "import hpcprof.cli; raise KeyboardInterrupt"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode in (130, -signal.SIGINT)
    assert done.stderr.strip() == "hpcprof: interrupted."


def test_a_command_that_waits_says_that_its_run_goes_on_whatever_signal_ends_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hpcprof", "submit", "--no-hook", "--wait", "--", "sleep", "60"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as waiting:
        assert waiting.stdout is not None
        name = waiting.stdout.readline().split()[-1]
        waiting.stdout.readline()  # its first state
        waiting.terminate()
        _, errors = waiting.communicate()
    assert waiting.returncode == 130
    assert errors == f"\nleft {name} running: hpcprof status {name}, hpcprof cancel {name}\n"
    ended = subprocess.run([*command[:3], "cancel", name], cwd=tmp_path, capture_output=True, text=True)
    assert ended.stdout == f"{name} cancelled\n"


@pytest.mark.parametrize("ignored", [True, False])
def test_a_closed_terminal_ends_a_command_in_a_sentence_but_not_under_nohup(ignored: bool) -> None:
    ignore = "signal.signal(signal.SIGHUP, signal.SIG_IGN)" if ignored else ""
    program = f"""
import os, signal, sys
{ignore}
from hpcprof.cli import main
main.log_invocation = lambda *words: os.kill(os.getpid(), signal.SIGHUP)
sys.argv[1:] = ["--version"]
main.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    expected = (0, "") if ignored else (130, "hpcprof: interrupted.\n")
    assert (done.returncode, done.stderr) == expected
