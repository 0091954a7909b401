"""``hpcprof explain`` and ``hpcprof whatif``: what they print, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hpcprof.analysis.explain.changes import Prediction
from hpcprof.analysis.explain.explanation import Explanation
from hpcprof.cli.explain import command as explain
from hpcprof.cli.whatif import command as whatif
from hpcprof.common.errors import UsageError
from hpcprof.results.store.store import RankResults, open_store
from hpcprof.results.store.tables import ProfileRow, RunRow
from tests.unit.explanations import MS, explained, finding

EXPLANATION = explained(finding(13, 11), finding(2))


@pytest.fixture(autouse=True)
def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collected run whose explanation is known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    store = open_store(None, Path("runs"))
    store.prepare()
    profile = ProfileRow("run-1", 0, "f", "0" * 64, 1, "nsys", None, "", None, None, analysis_version=1)
    store.put_profiles(RunRow("run-1", str(tmp_path / "gone")), [RankResults(profile, {})])

    def known(*_: object, as_recorded: bool) -> Explanation:
        return EXPLANATION

    monkeypatch.setattr("hpcprof.results.ask.explanation.explain", known)


def explaining(*words: str) -> Result:
    return CliRunner().invoke(explain, ["run-1", *words], catch_exceptions=False)


def test_the_text_has_the_findings_and_the_commands_that_show_their_evidence() -> None:
    done = explaining()
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("A step takes 100.0 ms (median of 6 steps on 2 ranks).\n")
    assert "               hpcprof report run-1 --analysis idle_causes\n" in done.stdout


def test_json_has_the_findings_that_are_shown() -> None:
    found = json.loads(explaining("--format", "json").stdout)
    assert found == EXPLANATION.in_short().as_json()
    assert len(found["findings"]) == 1


@pytest.mark.parametrize(
    ("gates", "code", "said"),
    [
        (["host_work"], 3, "hpcprof: found host work in data on all ranks: 13.00 ms of each step, 13.0 %"),
        (["host_work:13.5", "host_sync"], 0, ""),
        (["host_sync", "host_work:2"], 3, "2.000 ms of each step"),
        (
            ["contention:5", "host_sync"],
            0,
            "hpcprof: --fail-on contention could not be judged: one rank was profiled",
        ),
        # A check that judged nothing must not pass.
        (["contention:5"], 4, "hpcprof: --fail-on contention could not be judged: one rank was profiled"),
    ],
)
def test_a_finding_that_a_check_does_not_allow_exits_with_3_and_is_named(
    gates: list[str], code: int, said: str
) -> None:
    done = explaining(*(word for gate in gates for word in ("--fail-on", gate)))
    assert done.exit_code == code
    assert said in done.stderr if said else done.stderr == ""


def test_mistakes_are_named_before_anything_is_read() -> None:
    with pytest.raises(UsageError, match="unknown cause 'gpu' of --fail-on"):
        CliRunner().invoke(explain, ["no-such-run", "--fail-on", "gpu"], catch_exceptions=False)
    with pytest.raises(UsageError, match="unknown change 'cpu' in"):
        CliRunner().invoke(whatif, ["no-such-run", "--set", "cpu*0"], catch_exceptions=False)


def test_a_prediction_is_printed_with_the_error_of_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def known(run: object, store: object, texts: object) -> Prediction:
        given.append(texts)
        return Prediction(87 * MS, 85 * MS, 89 * MS, 100 * MS, 0.6, 6, 80 * MS, 92 * MS)

    monkeypatch.setattr("hpcprof.results.ask.explanation.what_if", known)
    words = ["run-1", "--set", "range:data*0", "--set", "comm*0"]
    done = CliRunner().invoke(whatif, words, catch_exceptions=False)
    assert (done.exit_code, given) == (0, [("range:data*0", "comm*0")])
    assert done.stdout.splitlines()[::2] == [
        "The median step would take 87.00 ms (between 85.00 ms and 89.00 ms).",
        "Elapsed time per step: 80.00 ms; measured: 92.00 ms.",
    ]
