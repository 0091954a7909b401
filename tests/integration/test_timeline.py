"""The timeline of a page, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from hpcprof.report.page.blocks import block, bundle
from tests.integration.chromium import WEB, open_page

HOSTILE = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
NAMES = ["step", HOSTILE, "gemm_kernel", "ncclDevKernel_AllReduce", "cudaLaunchKernel", "planted_kernel"]
STEP, OTHER, GEMM, REDUCE, LAUNCH, PLANTED = range(6)
COMPUTE, COMMUNICATION, RANGE, CALL = 0, 1, 3, 4
MS = 1_000_000
PLANTED_AT, PLANTED_FOR = 60 * MS, 10 * MS

pytestmark = pytest.mark.slow


def track(kind: str, label: str, rows: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """Return a track of rows of start, duration, name, kind of the slice, launch, collective and depth."""
    full = [(*row, *(-1, -1, 0)[len(row) - 4 :]) for row in rows]
    start, duration, name, kinds, launch, collective, depth = (
        list(column) for column in zip(*full, strict=True)
    )
    differences = [
        [b - a for a, b in zip([0, *column], column, strict=False)] for column in (start, launch, collective)
    ]
    names = ("start", "launch", "collective")
    columns = {"duration": duration, "name": name, "slice_kind": kinds, "depth": depth, "info": -1}
    return {
        "kind": kind,
        "label": label,
        "count": len(rows),
        **columns,
        "messages": {"row": [], "number": []},
        **dict(zip(names, differences, strict=True)),
    }


def rank(number: int, late: int) -> dict[str, Any]:
    """Return a rank with two steps of 100 ms, the second one second later."""
    steps = [[3, 0, 100 * MS], [7, 1000 * MS, 1100 * MS]]
    gemms = [(at * MS, 4 * MS, GEMM, COMPUTE, at // 10) for at in range(0, 50, 10)]
    work = [*gemms, (PLANTED_AT, PLANTED_FOR, PLANTED, COMPUTE, 6), (1010 * MS, MS, OTHER, COMPUTE)]
    reduce = [(80 * MS + late, 5 * MS - late, REDUCE, COMMUNICATION, 8, 42)]
    calls = [(at * MS + MS // 2, MS // 4, LAUNCH, CALL, at) for at in range(0, 9)]
    communication = track("communication", "Communication, stream 9", reduce)
    communication["messages"] = {"row": [0], "number": [-9 if number else 9]}
    ranges = [(0, 100 * MS, STEP, RANGE), (10 * MS, 20 * MS, OTHER, RANGE, -1, -1, 1)]
    return {
        "rank": number,
        "uncertainty_ns": 1500,
        "steps": steps,
        "tracks": [
            track("ranges", "Ranges, thread 1", ranges),
            communication,
            track("stream", "GPU work, stream 7", work),
            track("calls", "API calls, thread 1", calls),
        ],
    }


DATA: dict[str, Any] = {
    "notes": [f"The clocks are aligned. {HOSTILE}"],
    "median": 3,
    "worst": 7,
    "strings": NAMES,
    "short": {},
    "family": {},
    "ranks": [rank(0, 0), rank(5, 2 * MS)],
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page that has nothing but a timeline."""
    parts = bundle()
    path = tmp_path_factory.mktemp("page") / "page.html"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{parts.policy}">'
    body = f'<section data-part="timeline" hidden></section>{block("timeline-data", DATA)}'
    head += f"<title>page</title><style>{parts.style}</style>"
    body += f"<script>{parts.script}</script>"
    path.write_text(
        f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{body}</body>', encoding="utf-8"
    )
    return path


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    opened = open_page(browser, file)
    yield opened.page
    assert opened.complaints == []
    assert opened.page.title() == "page"


def of_timeline(page: Page, expression: str) -> Any:
    """Return what an expression of the timeline ``t`` is, after a frame."""
    return page.evaluate(
        f"() => {{ const t = document.querySelector('.timeline').timeline; t.draw(); return {expression}; }}"
    )


def span(page: Page) -> float:
    return float(of_timeline(page, "t.view.span"))


def place(page: Page, time: float, number: int, kind: str) -> tuple[float, float]:
    """Return where on the canvas a time of a track is."""
    x, y = of_timeline(
        page,
        "(() => { const row = t.layout.rows.find("
        f"(one) => one.of.rank === {number} && one.track?.kind === '{kind}');"
        f"return [t.painter.x({time}), row.top - t.scrolled + 8]; }})()",
    )
    return x, y


def pixel(page: Page, x: float, y: float) -> list[int]:
    """Return red, green and blue of the canvas."""
    data = of_timeline(
        page,
        "[...t.painter.context.getImageData("
        f"{x} * t.painter.ratio, {y} * t.painter.ratio, 1, 1).data.slice(0, 3)]",
    )
    return list(data)


def click(page: Page, time: float, number: int, kind: str) -> None:
    x, y = place(page, time, number, kind)
    page.locator(".timeline canvas").click(position={"x": x, "y": y})


def panel(page: Page) -> str:
    return page.locator(".timeline-panel").inner_text()


def test_a_planted_slice_is_drawn_in_its_place_and_colour(page: Page) -> None:
    x, y = place(page, PLANTED_AT + 0.9 * PLANTED_FOR, 5, "stream")
    red, green, blue = pixel(page, x, y)
    assert blue > 150
    assert blue > red + 50 < green + 50
    before, _ = place(page, PLANTED_AT - MS, 5, "stream")
    assert min(pixel(page, before, y)) > 230
    after, _ = place(page, PLANTED_AT + PLANTED_FOR + MS, 5, "stream")
    assert min(pixel(page, after, y)) > 230


def test_keys_zoom_and_move_and_tab_leaves_the_timeline(page: Page) -> None:
    page.locator(".timeline-scroller").focus()
    before = span(page)
    page.keyboard.press("w")
    assert span(page) == pytest.approx(before / 1.25)
    start = of_timeline(page, "t.view.start")
    page.keyboard.press("d")
    assert of_timeline(page, "t.view.start") == pytest.approx(start + 0.1 * span(page))
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("s")
    assert span(page) == pytest.approx(before)
    page.keyboard.press("?")
    assert "zoom in and out" in page.locator(".timeline-help").inner_text()
    for _ in range(30):
        page.keyboard.press("Tab")
        if not page.evaluate("document.querySelector('.timeline-frame').contains(document.activeElement)"):
            break
    assert not page.evaluate("document.querySelector('.timeline-frame').contains(document.activeElement)")


def test_the_wheel_zooms_around_the_pointer_and_a_drag_moves(page: Page) -> None:
    box = page.locator(".timeline canvas").bounding_box()
    assert box is not None
    under = of_timeline(page, f"t.view.start + 0.25 * {box['width']} / t.painter.scale")
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 100)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_function("document.querySelector('.timeline').timeline.view.span < 60e6")
    assert of_timeline(page, f"t.painter.x({under})") == pytest.approx(0.25 * box["width"], abs=2)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.25 * box["width"] + 200, box["y"] + 100, steps=4)
    page.mouse.up()
    assert of_timeline(page, f"t.painter.x({under})") == pytest.approx(0.25 * box["width"] + 200, abs=2)


def test_search_finds_lights_and_goes_on(page: Page) -> None:
    page.get_by_label("Search the timeline").fill("PLANTED")
    assert page.locator(".timeline-found").inner_text() == "2 found"
    x, y = place(page, 2 * MS, 0, "stream")
    pale = pixel(page, x, y)
    page.keyboard.press("Enter")
    assert page.locator(".timeline-found").inner_text() == "1 of 2"
    assert "planted_kernel" in panel(page)
    page.keyboard.press("Enter")
    assert page.locator(".timeline-found").inner_text() == "2 of 2"
    page.get_by_role("button", name="Previous").click()
    assert page.locator(".timeline-found").inner_text() == "1 of 2"
    page.get_by_label("Search the timeline").fill("")
    assert sum(pixel(page, x, y)) < sum(pale)
    page.get_by_label("Search the timeline").fill("no such kernel")
    assert page.locator(".timeline-found").inner_text() == "nothing found"


def test_a_selected_time_has_the_sums_of_its_slices(page: Page) -> None:
    box = page.locator(".timeline canvas").bounding_box()
    assert box is not None
    low, high = (place(page, time, 0, "stream")[0] for time in (22 * MS, 65 * MS))
    page.mouse.move(box["x"] + low, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + high, box["y"] + 10, steps=3)
    page.mouse.up()
    start, end = of_timeline(page, "[t.area.start, t.area.end]")
    of_rank = DATA["ranks"][0]["tracks"][2]
    starts = [sum(of_rank["start"][: i + 1]) for i in range(of_rank["count"])]
    inside = [
        max(0, min(at + length, end) - max(at, start))
        for at, length in zip(starts, of_rank["duration"], strict=True)
    ]
    summed = of_timeline(page, "t.model(0, 2).sum(t.area.start, t.area.end, false)")
    assert summed["time"] == pytest.approx(sum(inside))
    assert summed["count"] == sum(part > 0 for part in inside) == 4
    tracks, names = page.locator(".timeline-panel table").all()
    rows = [row.locator("td").all_inner_texts() for row in tracks.locator("tbody tr").all()]
    assert ["0", "GPU work, stream 7", "4", f"{sum(inside) / MS:.2f} ms"] in [row[:4] for row in rows]
    found = {row.locator("td").all_inner_texts()[0] for row in names.locator("tbody tr").all()}
    assert {"gemm_kernel", "planted_kernel", "step", HOSTILE} <= found


def test_a_slice_shows_its_details_and_its_arrows_can_be_followed(page: Page) -> None:
    click(page, 82 * MS, 0, "communication")
    assert "80.000000 ms" in panel(page)
    assert "5.000 ms (5,000,000 ns)" in panel(page)
    links = of_timeline(page, "t.links.map((one) => [one.kind, one.from.rank, one.to.rank])")
    assert links == [["launch", 0, 0], ["collective", 0, 5], ["message", 0, 5]]
    assert "sends to rank 5: ncclDevKernel_AllReduce, 2.000 ms later" in panel(page)
    assert "on rank 5: ncclDevKernel_AllReduce, 2.000 ms later" in panel(page)
    page.keyboard.press("[")
    assert "cudaLaunchKernel" in panel(page)
    page.keyboard.press("]")
    assert "ncclDevKernel_AllReduce" in panel(page)
    page.keyboard.press("Escape")
    assert "Click a slice" in panel(page)


def test_hostile_names_are_text(page: Page) -> None:
    page.evaluate("document.querySelector('.timeline').timeline.view.show(1000e6, 1020e6)")
    click(page, 1010.5 * MS, 0, "stream")
    assert HOSTILE in panel(page)
    assert page.locator("img").count() == 0


def test_others_can_show_a_rank_and_a_step(page: Page, browser: Browser, file: Path) -> None:
    show = "(detail) => document.dispatchEvent(new CustomEvent('hpcprof:show', { detail }))"
    page.evaluate(show, {"rank": 5, "step": 7})
    start, end = of_timeline(page, "[t.view.start, t.view.end]")
    assert 990 * MS < start < 1000 * MS
    assert 1100 * MS < end < 1110 * MS
    page.evaluate(show, {"rank": 5, "step": None, "start_ns": 20 * MS, "end_ns": 30 * MS})
    assert of_timeline(page, "[t.area.start, t.area.end]") == [20 * MS, 30 * MS]
    page.evaluate(show, {"rank": 5, "step": 99})
    assert "Step 99 is not in this page" in panel(page)
    page.evaluate(show, {"rank": 77, "step": 7})
    assert "Rank 77 is not in this page" in panel(page)
    opened = open_page(browser, file.as_uri() + "#rank=5&step=7")
    assert of_timeline(opened.page, "t.view.start") == pytest.approx(start)


def test_ranks_and_tracks_fold(page: Page) -> None:
    first = page.get_by_role("button", name="Rank 0 ± 1.5 µs")
    assert first.get_attribute("aria-expanded") == "true"
    height = of_timeline(page, "t.layout.height")
    first.click()
    assert first.get_attribute("aria-expanded") == "false"
    assert of_timeline(page, "t.layout.height") < height
    x, _ = place(page, PLANTED_AT + 9 * MS, 5, "stream")
    y = of_timeline(page, "t.layout.rows[0].top + 6")
    red, _, blue = pixel(page, x, y)
    assert blue > red + 50


def test_a_phone_shows_the_timeline_without_scrolling_sideways(browser: Browser, file: Path) -> None:
    opened = open_page(browser, file, viewport={"width": 360, "height": 700}, color_scheme="dark")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
    x, y = place(opened.page, PLANTED_AT - MS, 0, "stream")
    assert max(pixel(opened.page, x, y)) < 60


@pytest.fixture(scope="module")
def modules() -> Iterator[str]:
    """The address of the page's modules."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(WEB / "src")))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_what_tells_least_is_folded_until_the_ranks_fit(modules: str, browser: Browser) -> None:
    page = browser.new_context().new_page()
    page.goto(f"{modules}/page.css")
    folded = page.evaluate(
        """async (address) => {
          const { Layout } = await import(`${address}/timeline/layout.js`);
          const tracks = [
            { id: "deep", kind: "ranges", levels: 8 },
            { id: "flat", kind: "ranges", levels: 1 },
            { id: "gpu", kind: "ranges", levels: 2, label: "Ranges on the GPU" },
            { id: "stream", kind: "stream", levels: 1 },
            { id: "calls", kind: "calls", levels: 2 },
          ];
          const ranks = [0, 1, 2, 3].map((rank) => ({ rank, tracks }));
          const fit = (height) => {
            const layout = new Layout(ranks, 4);
            layout.fit(height);
            const folded = [...layout.foldedTracks, ...layout.foldedRanks].map((one) => `${one}`);
            const names = folded.map((one) => one.replace(/.*[/]/, ""));
            return [[...new Set(names)].sort(), layout.height <= height];
          };
          return [2000, 1100, 600, 450, 250].map(fit);
        }""",
        modules,
    )
    assert folded == [
        [[], True],
        [["calls"], True],
        [["calls", "deep"], True],
        [["calls", "deep", "flat", "gpu"], True],
        [["1", "2", "3"], False],
    ]


def test_linked_timelines_show_the_same_time_since_their_anchors(modules: str, browser: Browser) -> None:
    page = browser.new_context().new_page()
    page.goto(f"{modules}/page.css")
    spans = page.evaluate(
        """async ([address, data]) => {
          const { Timeline } = await import(`${address}/timeline/timeline.js`);
          const { embeddedSource } = await import(`${address}/timeline/embedded.js`);
          const { LinkedViews } = await import(`${address}/timeline/view.js`);
          const linked = new LinkedViews();
          const both = [3, 7].map((median) => {
            const element = document.body.appendChild(document.createElement("div"));
            return new Timeline(element, embeddedSource({ ...data, median }), { linked });
          });
          for (const one of both) await one.ready;
          both[0].view.show(20e6, 40e6);
          const after = both.map(({ view }) => [view.start, view.end]);
          both[1].view.pan(5e6);
          return [...after, [both[0].view.start, both[0].view.end]];
        }""",
        [modules, DATA],
    )
    assert spans == [[20 * MS, 40 * MS], [1020 * MS, 1040 * MS], [25 * MS, 45 * MS]]


def test_a_source_that_sends_parts_keeps_what_is_selected_and_may_fail(
    modules: str, browser: Browser
) -> None:
    page = browser.new_context().new_page()
    page.goto(f"{modules}/page.css")
    found = page.evaluate(
        """async ([address, data]) => {
          const { Timeline } = await import(`${address}/timeline/timeline.js`);
          const { embeddedSource } = await import(`${address}/timeline/embedded.js`);
          const style = Object.assign(document.createElement("link"), { rel: "stylesheet" });
          style.href = `${address}/page.css`;
          await new Promise((resolve) => { style.onload = resolve; document.head.append(style); });
          const whole = embeddedSource(data);
          const columns = ["start", "end", "depth", "kind", "name", "info", "launch", "collective"];
          let fails = false;
          let asked = 0;
          // As a server does, it sends only what overlaps the time that is asked for.
          const slices = async ({ start, end, ranks }) => {
            asked += 1;
            if (fails) throw new Error("the server is gone");
            return (await whole.slices()).filter(({ rank }) => ranks.includes(rank)).map((all) => {
              const inside = (row) => all.start[row] < end && all.end[row] > start;
              const rows = [...all.start.keys()].filter(inside);
              const taken = (column) => column.constructor.from(rows, (row) => column[row]);
              return { ...all, ...Object.fromEntries(columns.map((name) => [name, taken(all[name])])) };
            });
          };
          const overview = async () => ({ ...(await whole.overview()), complete: false });
          const element = document.body.appendChild(document.createElement("div"));
          const timeline = new Timeline(element, { overview, slices }, {});
          await timeline.ready;
          const name = () => {
            const { rank, track, row } = timeline.selected;
            return timeline.model(rank, track).name(row);
          };
          const move = async (start, end) => {
            const before = asked;
            timeline.view.show(start, end);
            timeline.draw();
            await new Promise((resolve) => setTimeout(resolve));
            return asked - before;
          };
          timeline.select(timeline.hit(timeline.painter.x(65e6), timeline.layout.place(0, 2, 0).top + 5));
          const row = timeline.selected.row;
          const first = name();
          const counts = [await move(64e6, 66e6), await move(64.5e6, 65.5e6)];
          const again = [name(), timeline.selected.row !== row];
          fails = true;
          await move(1000e6, 1001e6);
          return { first, counts, again, said: timeline.panel.element.textContent };
        }""",
        [modules, DATA],
    )
    assert found["first"] == "planted_kernel"
    # A view inside what was answered, and not much finer, asks for nothing.
    assert found["counts"] == [1, 0]
    assert found["again"] == ["planted_kernel", True]
    assert found["said"] == "The slices cannot be loaded: the server is gone"
