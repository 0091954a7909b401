"""Make the pictures of the README: ``python docs/pictures/make.py``.

The terminal shows the quickstart, run on this machine. The page is the report of profiles of four H200 GPUs
among the data of the tests. Needs the workloads' dependencies, Playwright and Chromium.
"""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parent
REPOSITORY = PICTURES.parents[1]
COLUMNS = 106
SUBMIT = "submit --site local --workload sequence-parallel --ranks-per-node 2 --profiler torch --wait"
FIRST_SECTIONS = 3
"""The sections of the report that the terminal shows; an empty line ends each."""

PAGES: dict[str, tuple[int, int, Literal["light", "dark"]]] = {
    "report": (1280, 1500, "light"),
    "report-phone": (390, 844, "dark"),
}
"""The pictures of the page: width, height and theme."""

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


def make_pages(folder: Path, pictures: Path) -> None:
    """Report profiles of GPUs as an HTML page, and photograph its beginning on a desk and on a phone."""
    profiles = folder / "sequence-parallel"
    profiles.mkdir()
    for rank in range(4):
        packed = REPOSITORY / f"tests/data/sp_bf16_rank{rank}.sqlite.xz"
        (profiles / f"rank{rank}.sqlite").write_bytes(lzma.decompress(packed.read_bytes()))
    hpcprof(folder, "report sequence-parallel --html report.html --scrub")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium on the PATH")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for name, (width, height, scheme) in PAGES.items():
            context = started.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
            )
            page = context.new_page()
            page.goto((folder / "report.html").as_uri())
            page.wait_for_selector("html[data-ready]", state="attached")
            page.screenshot(path=pictures / f"{name}.png")
        started.close()


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        make_terminal(Path(name), PICTURES / "terminal.svg")
        make_pages(Path(name), PICTURES)
