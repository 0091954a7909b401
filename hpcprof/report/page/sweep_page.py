"""The table of a sweep as one HTML file."""

from collections.abc import Callable, Sequence

from hpcprof.report.page.page import render_page
from hpcprof.results.across.sweeps import HEADERS, SweepPoint, sweep_sentence


def html_sweep(
    sweep: str,
    points: Sequence[SweepPoint],
    template: str = "report/sweep.html.j2",
    run_page: Callable[[str], str] | None = None,
    **values: object,
) -> str:
    """Return the points of a sweep as HTML, the best one marked.

    ``template`` extends that of the sweep, and ``run_page`` returns the address of a run's page by its id.
    """
    return render_page(
        template,
        [],
        {},
        (),
        None,
        sweep=sweep,
        points=points,
        headers=HEADERS,
        sentence=sweep_sentence(points),
        run_page=run_page,
        **values,
    )
