"""Tables of a study: on the terminal, and as CSV."""

from __future__ import annotations

from pathlib import Path

import click

from hpcprof.analysis.framework.declaration import Analysis
from hpcprof.cli.tables import show_analysis
from hpcprof.report.tables_export import write_csv
from hpcprof.results.analysis_table import AnalysisTable


def show_and_write(analysis: Analysis, stored: AnalysisTable, folder: Path) -> None:
    """Print an analysis and write it to ``folder``/NAME.csv, whole."""
    click.echo(f"\n{analysis.title}")
    show_analysis(analysis, stored)
    write_csv(folder / f"{analysis.name}.csv", [column.name for column in analysis.columns], stored.rows)
