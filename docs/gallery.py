"""The Sphinx directive ``gallery``: reports of programs whose slow part is known, as pages of the site."""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"


@dataclass(frozen=True)
class Recorded:
    """Profiles in ``tests/data``, by a pattern of names, and what is known of the program without them."""

    title: str
    files: str
    known: str


REPORTS = {
    "late-rank": Recorded(
        "Two H200, DDP: a rank computes longer",
        "planted_late_rank_gpu_rank*.sqlite.xz",
        "GPT-2 under nsys; the GPU of rank 1 has more work. Measured without a profiler, that costs 12.0 "
        "ms a step (10.5 to 13.5).",
    ),
    "host-work": Recorded(
        "Two H200, DDP: the host is busy",
        "planted_host_work_rank*.sqlite.xz",
        "A perceptron under nsys; the host works between steps. Measured without a profiler, that costs "
        "10.97 ms a step (10.65 to 11.30).",
    ),
    "sequence-parallel": Recorded(
        "Four H200: all-gather, two products, reduce-scatter",
        "sp_bf16_rank*.sqlite.xz",
        "The sequence-parallel benchmark in its serial mode, under nsys: no product hides communication.",
    ),
    "mpi-stencil": Recorded(
        "Four ranks of MPI in C",
        "mpi_stencil_slow_rank*.sqlite.xz",
        "A halo exchange under nsys, without a GPU. It measured 12.67 ms a step; rank 2 computes 12.29 ms, "
        "the others up to 8.37.",
    ),
    "eztrace": Recorded(
        "Four ranks of MPI under EZTrace",
        "eztrace_chain.tar.xz",
        "A line of ranks; rank 2 computes twice as long: 106.2 ms instead of 45.7 to 48.8.",
    ),
    "jax": Recorded(
        "Two ranks of JAX",
        "jax_slow_rank*.xplane.pb.xz",
        "Products and an all-reduce on CPU cores; rank 1 sleeps 20 ms in a function named augment.",
    ),
    "pipeline": Recorded(
        "A pipeline of a training in production",
        "pipeline_job.parquet",
        "Operations of 8 ranks (2 data parallel, 4 stages) from ByteDance-Seed/StragglerAnalysis; the last "
        "stage has more work.",
    ),
}


class Gallery(SphinxDirective):
    """Insert a list of the reports, each with what is known of its program."""

    def run(self) -> list[nodes.Node]:
        """Return the list."""
        reports = nodes.definition_list()
        for name, report in REPORTS.items():
            link = nodes.reference("", report.title, refuri=f"gallery/{name}.html")
            known = nodes.definition("", nodes.paragraph("", report.known))
            reports += nodes.definition_list_item("", nodes.term("", "", link), known)
        return [reports]


def write_reports(app: Sphinx, exception: Exception | None) -> None:
    """Write the reports beside the pages of the site: those that are older than hpcprof or their profiles."""
    if exception is not None or app.builder.format != "html":
        return
    pages = Path(app.outdir) / "gallery"
    pages.mkdir(exist_ok=True)
    sources = (path for name in ("hpcprof", "templates") for path in (ROOT / name).rglob("*.*"))
    changed = max(path.stat().st_mtime for path in sources if path.suffix != ".pyc" and path.is_file())
    with TemporaryDirectory() as place:
        for name, report in REPORTS.items():
            folder = Path(place) / name
            folder.mkdir()
            files = [*DATA.glob(report.files)]
            page = pages / f"{name}.html"
            newest = max(changed, *(path.stat().st_mtime for path in files))
            if page.exists() and page.stat().st_mtime > newest:
                continue
            for path in files:
                unpack(path, folder)
            command = [sys.executable, "-m", "hpcprof", "report", name, "--html", str(page), "--scrub"]
            environment = {**os.environ, "HPCPROF_RUNS": place}
            subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True)


def unpack(path: Path, folder: Path) -> None:
    """Unpack a profile into a folder."""
    if path.name.endswith(".tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    elif path.suffix == ".xz":
        (folder / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    else:
        (folder / path.name).write_bytes(path.read_bytes())


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive with Sphinx."""
    app.add_directive("gallery", Gallery)
    app.connect("build-finished", write_reports)
    return {"parallel_read_safe": True}
