"""Make the pictures of the README and the documentation: ``python docs/pictures/make.py``.

The terminal shows the quickstart, run on this machine. The page is the report of profiles of four H200 GPUs
among the data of the tests; the heat map, the comparison and the list of the server show generated profiles,
in which one rank is slow. Needs the workloads' dependencies, Playwright and Chromium.
"""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parent
REPOSITORY = PICTURES.parents[1]
ROOM = 12
COLUMNS = 106
SUBMIT = "submit --site local --workload sequence-parallel --ranks-per-node 2 --profiler torch --wait"
FIRST_SECTIONS = 3
"""The sections of the report that the terminal shows; an empty line ends each."""

RECORDED = {"sequence-parallel": ("sp_bf16", 4), "late-rank": ("planted_late_rank_gpu", 2)}
"""Profiles of GPUs among the data of the tests, and their ranks, by the name of the folder."""

GENERATED = {
    "slow-rank": "64 1200 --slow 37=4",
    "baseline": "4 1200",
    "candidate": "4 1200 --slow 2=6 --seed 2",
}
"""What `tests.data.many_ranks` is asked for: ranks, kernels and more, by the name of the folder."""

SELECT_COLLECTIVE = """() => {
  const { timeline } = document.querySelector('[data-part="timeline"]');
  timeline.search("ncclDev");
  timeline.nextMatch(1);
  timeline.search("");
}"""


@dataclass(frozen=True)
class Picture:
    """What to photograph of a page: the beginning of it, or from the first to the last of some elements."""

    page: str
    width: int
    height: int
    scheme: Literal["light", "dark"] = "light"
    elements: Sequence[str] = ()
    act: str = ""


PICTURES_OF_PAGES = {
    "report": Picture("report", 1280, 1500),
    "report-phone": Picture("report", 390, 844, "dark"),
    "timeline": Picture("report", 1280, 900, elements=('[data-part="timeline"]',), act=SELECT_COLLECTIVE),
    "heat-map": Picture("slow-rank", 1000, 900, elements=('[data-part="heat-map"]',)),
    "charts": Picture("late-rank", 1000, 900, elements=("#chart-account", "#chart-phases")),
    "comparison": Picture("comparison", 1280, 1150),
}

# Rich's own format loads a font from the network.
SVG = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px;
}}
.{unique_id}-title {{ font: bold 18px system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def hpcprof(folder: Path, command: str) -> str:
    """Run an ``hpcprof`` command in a folder and return its output, coloured as on a terminal."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    done = subprocess.run(
        [sys.executable, "-m", "hpcprof", *command.split()],
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def make_terminal(folder: Path, picture: Path) -> None:
    """Run the quickstart in a folder and draw what a user sees of it."""
    submitted = hpcprof(folder, SUBMIT).splitlines()
    # Between the first and the last lines rank 0 prints the benchmark's own table.
    shown = {SUBMIT: [submitted[0], "…", submitted[-1]], "collect": hpcprof(folder, "collect").splitlines()}
    sections = hpcprof(folder, "report").split("\n\n")[:FIRST_SECTIONS]
    shown["report"] = [*"\n\n".join(sections).splitlines(), "", "…"]
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    for command, lines in shown.items():
        console.print(Text.assemble(("$ ", "green"), f"hpcprof {command}"))
        for line in lines:
            console.print(Text.from_ansi(line))
    # With a fixed id the file changes only where its text does.
    console.save_svg(str(picture), title="hpcprof", code_format=SVG, unique_id="terminal")


def write_pages(folder: Path) -> None:
    """Write the pages: reports of profiles of GPUs and of generated ones, and a comparison."""
    for name, (data, ranks) in RECORDED.items():
        (folder / name).mkdir()
        for rank in range(ranks):
            packed = REPOSITORY / f"tests/data/{data}_rank{rank}.sqlite.xz"
            (folder / name / f"rank{rank}.sqlite").write_bytes(lzma.decompress(packed.read_bytes()))
    for name, arguments in GENERATED.items():
        command = [sys.executable, "-m", "tests.data.many_ranks", folder / name, *arguments.split()]
        subprocess.run(command, cwd=REPOSITORY, check=True)
    hpcprof(folder, "report sequence-parallel --html report.html --scrub")
    for name in ("slow-rank", "late-rank"):
        hpcprof(folder, f"report {name} --html {name}.html --scrub")
    hpcprof(folder, "collect baseline candidate")
    hpcprof(folder, "compare baseline candidate --html comparison.html")


def make_pages(folder: Path, pictures: Path) -> None:
    """Write the pages and photograph parts of them on a desk and on a phone, then the server's list."""
    write_pages(folder)
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium on the PATH")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for name, picture in PICTURES_OF_PAGES.items():
            photograph(started, (folder / f"{picture.page}.html").as_uri(), picture, pictures / f"{name}.png")
        with serving(folder) as address:
            photograph(started, address, Picture("", 1280, 420), pictures / "serve.png")
        started.close()


def photograph(browser: Browser, address: str, picture: Picture, path: Path) -> None:
    """Open a page and save a picture of it."""
    context = browser.new_context(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme=picture.scheme,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("html[data-ready]", state="attached")
    if picture.act:
        page.evaluate(picture.act)
    boxes = [box for one in picture.elements if (box := page.locator(one).bounding_box())]
    if not boxes:
        page.screenshot(path=path)
        return
    top = min(box["y"] for box in boxes) - ROOM
    bottom = max(box["y"] + box["height"] for box in boxes)
    clip: Any = {"x": 0, "y": top, "width": picture.width, "height": bottom - top + ROOM}
    page.screenshot(path=path, full_page=True, clip=clip)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve what has been collected in a folder, and yield the address of the list."""
    command = [sys.executable, "-m", "hpcprof", "serve", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        make_terminal(Path(name), PICTURES / "terminal.svg")
        make_pages(Path(name), PICTURES)
