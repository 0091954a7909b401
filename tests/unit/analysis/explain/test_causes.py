"""The declarations of causes, and what comes from them."""

from __future__ import annotations

import pandas as pd
import pytest

from hpcprof.analysis.explain.cause import Cause, CauseDeclaration, cause_names, cause_of, find_cause
from hpcprof.analysis.explain.causes.small_kernels import SMALL_KERNELS
from hpcprof.analysis.explain.explanation import Explanation
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import UsageError
from tests.golden.causes import DOCUMENT, with_table
from tests.unit.explanations import explained, finding

COLUMNS = ("wall_ns", "compute_ns", "exposed_comm_ns", "exposed_mem_ns", "idle_ns")


def test_an_optimizer_is_not_to_be_prepared_ahead_of_its_step() -> None:
    advice = find_cause(Cause.HOST_WORK).advise("Optimizer.step#Adam.step", (0,))
    assert advice.startswith("Update all parameters in few calls: fused=True")


@pytest.mark.parametrize("name", list(Cause))
def test_a_declaration_is_complete(name: str) -> None:
    cause = find_cause(name)
    assert cause.name == name == name.lower()
    assert cause.title and cause.meaning
    assert not cause.meaning.endswith(".") and cause.column in COLUMNS
    assert cause.remedy.endswith(".")
    for remedy in (cause.remedy, *cause.remedies.values(), *(one.text for one in cause.place_remedies)):
        assert "{" not in remedy.format(where="x", ranks="y")
    for figures in cause.figures:
        assert figures.key in {column.name for column in ANALYSES[figures.analysis].columns}
    assert bool(cause.candidates) <= bool(cause.figures)


def test_the_table_in_the_documentation_is_that_of_the_declarations() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == with_table(text), "run python -m tests.golden.regenerate"


def test_a_name_is_text_and_what_it_was_before() -> None:
    assert Cause.HOST_WORK == "host_work" and Cause.HOST_WORK.value == "host_work"
    assert Cause("host_work") is Cause.HOST_WORK and f"{Cause.HOST_WORK}" == "host_work"
    assert finding(5, cause=Cause("host_work")).cause is Cause.HOST_WORK
    assert list(Cause) == [name for name in cause_names() if name in list(Cause)]
    with pytest.raises(AttributeError):
        Cause.NO_SUCH_CAUSE  # noqa: B018


def test_a_kept_finding_of_a_package_that_is_gone_is_still_told() -> None:
    values = explained(finding(5)).as_json()
    values["findings"][0]["cause"] = "of_a_package"
    (kept,) = Explanation.from_json(values).findings
    assert kept.cause == "of_a_package"
    assert cause_of(kept.cause).title == "of a package"


def test_an_unknown_cause_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="unknown cause 'host_wrk'; did you mean 'host_work'"):
        find_cause("host_wrk")


def test_a_plug_in_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcprof.analysis.explain.cause.load_plugin", lambda group, name: "text")
    with pytest.raises(UsageError, match=r"'odd_cause' is not an hpcprof\.plugins\.causes\.CauseDeclaration"):
        find_cause("odd_cause")
    monkeypatch.setattr(
        "hpcprof.analysis.explain.cause.load_plugin",
        lambda group, name: CauseDeclaration(name="else", title="", meaning="", remedy=""),
    )
    with pytest.raises(UsageError, match="of that name"):
        find_cause("odd_name")


def test_the_kernels_that_show_small_kernels_are_short() -> None:
    """Rebuilt from a public trace: products of 758 µs, which ran most often, were the evidence."""
    kernels = pd.DataFrame({"instances": [41, 40], "total_ns": [31_086_000, 364_000]})
    assert SMALL_KERNELS.figures[1].rows(kernels, "").tolist() == [False, True]
