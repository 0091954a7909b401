"""The page of a study of slowdown in a real browser, without a network."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.report.html import html_study
from hpcprof.results.analysis_table import Row
from hpcprof.study.slowdown_tables import SlowdownTables
from tests.integration.browser import browse
from tests.integration.test_html_report import HOSTILE

COUNTS: Row = {"alone_n": 50, "alone_med_ns": 1000.0, "overlapped_n": 45, "overlapped_med_ns": 1500.0}
RATIO: Row = {"slowdown": 1.5, "ci_low": 1.4, "ci_high": 1.6}
UNSURE: Row = {"slowdown": 1.5, "ci_low": None, "ci_high": None}


def point(step: int, **more: str) -> Row:
    return {
        **more,
        **{"runs": 3, "alone_step_p50_ns": 90, "step_p50_ns": step, "step_min_ns": step, "step_max_ns": 200},
        **{"exposed_comm_pct": 1.5, "slowdown_within": None},
    }


def kernel(name: str | None, figures: Row, **more: str) -> Row:
    shape = {"rank": 0, "name": name, "grid": "1 1 1", "block": "1 1 1"}
    return {**more, **shape, **COUNTS, **figures, "overlap_pct": 40.0}


def group(family: str, covered: str, share: float, figures: Row, **more: str) -> Row:
    place = {"rank": 1, "family": family, "covered": covered, "overlap_pct": share}
    return {**more, **place, **COUNTS, **figures}


def tables(hostile: str = HOSTILE, **more: str) -> SlowdownTables:
    """A study whose kernel, sweep and values have names that try to run."""
    return SlowdownTables(
        name=HOSTILE,
        keys=tuple(more),
        by_point=[point(100, **more), point(120, **more)],
        pairs=[
            kernel("(total)", RATIO, **more),
            kernel("(control)", RATIO, **more),
            kernel(hostile, RATIO, **more),
            kernel(None, UNSURE, **more),
        ],
        by_overlap=[
            group("(all)", "0 %", 0.0, RATIO, **more),
            group("elementwise", ">= 90 %", 99.0, RATIO, **more),
            group("other", ">= 90 %", 98.0, UNSURE, **more),
        ],
        sentence=f"best: {HOSTILE}" if more else "",
    )


@pytest.mark.slow
@pytest.mark.parametrize("sweep", [{}, {HOSTILE: HOSTILE}], ids=["one point", "sweep"])
def test_the_charts_are_drawn_and_no_name_ever_runs(sweep: dict[str, str], tmp_path: Path) -> None:
    page = tmp_path / "study.html"
    page.write_text(html_study(tables(**sweep)), encoding="utf-8")
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", page.read_text(encoding="utf-8"))
    drawn = re.sub(r"<script.*?</script>", "", browse(page, tmp_path), flags=re.DOTALL)
    assert "<title>hpcprof: &lt;/script&gt;" in drawn
    assert '<img src="x"' not in drawn
    titles = re.findall(r"<h2>(.*?)</h2>", drawn)
    assert titles == [
        *(["Points of the sweep"] if sweep else []),
        *("Slowdown by overlap", "Slowdown by kernel family", "Kernel slowdown while communication runs"),
    ]
    assert drawn.count('class="main-svg"') >= len(titles)
    # Three groups, two of them beside communication, and two kernels; of each of two points 4 figures.
    assert len(re.findall(r'<path class="point\b', drawn)) == 3 + 2 + 2 + (6 if sweep else 0)
    # Plotly's buttons are in the uppermost 30 pixels.
    legends = re.findall(r'<g class="legend"[^>]* transform="translate\([\d.]+,([\d.]+)\)"', drawn)
    assert legends and all(float(y) > 30 for y in legends)
    for text in ("n = 45", "elementwise", "Kernel time covered by communication"):
        assert text in drawn


def test_plotly_reads_no_tags_in_a_name() -> None:
    from hpcprof.report.study_charts import study_charts

    drawn = study_charts(tables("f<b>1</b>", **{"k<b>": "v<b>"}))
    for _, _, figure in drawn:
        assert "<b>" not in json.dumps(figure.to_dict())
    assert "f&lt;b&gt;1&lt;/b&gt;" in drawn[-1][2].layout.yaxis.ticktext


def test_what_has_no_interval_has_no_bar() -> None:
    from hpcprof.report.study_charts import study_charts

    by_share, by_family, kernels = (figure for _, _, figure in study_charts(tables()))
    assert [trace.error_y.array for trace in by_share.data] == [pytest.approx((0.1,))] * 2 + [(None,)]
    assert by_family.data[0].error_y.arrayminus == (pytest.approx(0.1), None)
    assert kernels.data[0].error_x.array == (pytest.approx(0.1), None)
    assert kernels.data[0].x == (1.5, 1.5)


def test_a_study_without_kernels_to_compare_has_its_tables() -> None:
    text = html_study(SlowdownTables("name", (), [point(100)], [], []))
    assert "<h2>" not in text
    assert "Runs with and without communication" in text


def test_without_plotly_a_sentence_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    for name in ("hpcprof.report.study_charts", "hpcprof.report.charts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(HpcprofError, match=r"needs plotly: pip install 'hpcprof\[html\]'"):
        html_study(tables())
