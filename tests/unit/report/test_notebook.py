"""Objects of the Python interface as HTML, and savings as a picture."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

from hpcprof.analysis.explain.cause import Cause
from hpcprof.common import notebook
from hpcprof.report.notebook import html_of
from tests.unit.explanations import explained, finding


def test_an_explanation_is_the_cards_of_the_page_with_a_style_for_them_alone() -> None:
    html = html_of(explained(finding(20, 15), finding(10, 8, Cause.HOST_SYNC)))
    assert html is not None
    assert html.count('<article class="finding"') == 2
    assert "Saves 20.00 ms of each step, 20.0 %" in html
    assert html.startswith('<div class="hpcprof"><style>.hpcprof{')
    assert ":root" not in html
    assert "run-title" not in html


def test_a_finding_is_its_cause_saving_and_remedy() -> None:
    html = str(html_of(finding(20, 15)))
    assert html.startswith("<b>host work: ")
    assert "saving: 20.00 ms of each step" in html
    assert "remedy: Prefetch." in html


def test_other_objects_have_no_picture() -> None:
    assert html_of("a text") is None


def test_without_a_renderer_nothing_is_shown() -> None:
    before = notebook._renderers[:]
    notebook._renderers.clear()
    try:
        assert explained()._repr_html_() is None
        notebook.register_renderer(lambda shown: type(shown).__name__)
        assert explained()._repr_html_() == "Explanation"
    finally:
        notebook._renderers[:] = before


def test_savings_are_drawn_with_their_intervals_the_largest_on_top() -> None:
    axes = Mock()
    assert explained(finding(20, 15), finding(10, 8, Cause.HOST_SYNC), finding(None)).plot(axes) is axes
    (names, savings), others = axes.barh.call_args
    assert names == ["host_sync\ndata", "host_work\ndata"]
    torch_step = replace(finding(20, 15), where="ProfilerStep#N")
    explained(torch_step).plot(axes)
    assert axes.barh.call_args[0][0] == ["host_work\nsteps of PyTorch's profiler"]
    assert savings == [10, 20]
    assert others["xerr"] == [[2, 5], [0, 0]]
