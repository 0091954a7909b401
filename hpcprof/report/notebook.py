"""Objects of the Python interface as HTML for notebooks, from the parts of the pages."""

import io
from collections.abc import Iterable
from functools import singledispatch
from html import escape

import pandas as pd
from markupsafe import Markup
from rich.console import Console, RenderableType

from hpcprof.analysis.explain.cause import cause_of
from hpcprof.analysis.explain.changes import Prediction
from hpcprof.analysis.explain.explanation import Explanation, Finding
from hpcprof.analysis.predict.pipeline import PipelinePrediction
from hpcprof.analysis.predict.scale import ScalePrediction
from hpcprof.common.errors import HpcprofError
from hpcprof.report.comparison import Comparison, in_a_sentence
from hpcprof.report.comparison_page import metrics_table
from hpcprof.report.contents import gather
from hpcprof.report.explanation import HIDDEN, evidence, predicted, saved
from hpcprof.report.page.blocks import bundle
from hpcprof.report.page.first_screen import FirstScreen, explanation_screen, first_screen
from hpcprof.report.page.page import page_environment, render_page
from hpcprof.report.scale_prediction import pipeline_text, scale_text
from hpcprof.report.terminal import LOSSES_TITLE
from hpcprof.results.api import Results, RunTimeline

_LINE_WIDTH = 110
"""The characters in a line of what is printed."""


@singledispatch
def html_of(value: object) -> str | None:
    """Return an object as HTML; None for one that has no picture."""
    return None


@html_of.register
def _results(results: Results) -> str:
    try:
        return _screen(first_screen(gather(results.run, results.store, None)), results.id)
    except HpcprofError as error:
        return f"<p>{escape(str(error))}</p>"


@html_of.register
def _explanation(explanation: Explanation) -> str:
    return _screen(explanation_screen(explanation))


@html_of.register
def _finding(finding: Finding) -> str:
    cause = cause_of(finding.cause)
    rows = [("saving", saved(finding)), ("remedy", finding.remedy)]
    rows += [(name, "; ".join(figures)) for name, figures in evidence(finding)]
    heading = Markup("<b>{}</b>").format(
        f"{cause.title}: {cause.meaning}{finding.where and f': {finding.where}'}"
    )
    return heading + Markup().join(Markup("<br>{}: {}").format(*row) for row in rows)


@html_of.register
def _prediction(prediction: Prediction) -> str:
    return _preformatted(predicted(prediction, changed=True))


@html_of.register
def _scale(prediction: ScalePrediction) -> str:
    return _preformatted([scale_text([prediction], (), ())])


@html_of.register
def _pipeline(prediction: PipelinePrediction) -> str:
    return _preformatted([pipeline_text(prediction)])


@html_of.register
def _comparison(comparison: Comparison) -> str:
    sentences = [
        comparison.waterfall and in_a_sentence(comparison.waterfall),
        comparison.conclusion(),
        *comparison.reasons,
    ]
    table = metrics_table(comparison).data
    columns = {c["header"]: c.get("texts", c["values"]) for c in table["columns"]} if table else {}
    paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences if sentence)
    return f"{paragraphs}{pd.DataFrame(columns).to_html(index=False)}"


@html_of.register
def _timeline(timeline: RunTimeline) -> str:
    from hpcprof.report.page.timeline_data import timeline_data

    data = {"timeline": timeline_data(timeline.run, timeline.store)}
    page = render_page("report/page.html.j2", [], data, [("timeline", "Timeline")])
    return (
        f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts" '
        f'title="Timeline of {escape(timeline.run.id)}" '
        f'style="width: 100%; height: {timeline.height}px; border: 0"></iframe>'
    )


def _screen(screen: FirstScreen, title: str = "") -> str:
    """Return a first screen, with the style of the pages for it alone."""
    template = page_environment(None).get_template("report/report.html.j2")
    values = {
        "screen": screen,
        "facts": screen.facts,
        "explained": bool(screen.conclusion or screen.cards),
        "scrub_note": "",
        "predictions": [],
        "hidden_title": HIDDEN,
        "lacking_title": LOSSES_TITLE,
    }
    parts = "".join(template.blocks["first_screen"](template.new_context(values)))
    style = str(bundle().style).replace(":root", "&").replace("body{", "&{")
    name = Markup("<h2>{}</h2>").format(title) if title else ""
    links = '.hpcprof a[href^="#"]{pointer-events:none;color:inherit;text-decoration:none}'
    links += '.hpcprof a[href^="#table-"]{display:none}'  # a notebook has no tables to lead to
    return f'<div class="hpcprof"><style>.hpcprof{{{style}}}{links}</style>{name}{parts}</div>'


def _preformatted(parts: Iterable[RenderableType]) -> str:
    console = Console(record=True, width=_LINE_WIDTH, file=io.StringIO())
    for part in parts:
        console.print(part, highlight=False, markup=False)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
