"""Time in which the timeline of a page draws a frame: ``python benchmarks/timeline_frames.py [SLICES]``.

Chromium opens a timeline of 16 ranks with generated slices, all unfolded, and a script moves and zooms in it,
one change a frame: from everything down to single slices and back, moving at each level. Printed are the time
of drawing and, of a second round that Chromium traces, the CPU time of the main thread for each frame: of the
script alone, and of all tasks with style, layout and painting. It takes Chromium on the PATH and
``pip install playwright``.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from bisect import bisect_right
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

from playwright.sync_api import sync_playwright

SOURCES = Path(__file__).parents[1] / "hpcprof/report/web/src"
RANKS = 16
AIM_MS = 16
TASK = "ThreadControllerImpl::RunTask"
CATEGORIES = ["devtools.timeline", "toplevel"]

PAGE = """async ([address, count, ranks]) => {
  const { Timeline } = await import(`${address}/timeline/timeline.js`);
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: `${address}/page.css` });
  await new Promise((resolve) => { style.onload = resolve; document.head.append(style); });
  // Numbers that look random and are the same in each round.
  let seed = 1;
  const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  const strings = Array.from({ length: 60 }, (_, i) => `void kernel_${i}<float, ${i}>(Params)`);
  const kinds = ["ranges", "communication", "stream", "stream", "calls", "calls"];
  const each = Math.ceil(count / ranks / kinds.length);
  const whole = 100e6;
  const all = [];
  for (let rank = 0; rank < ranks; rank += 1) {
    kinds.forEach((kind, track) => {
      const start = new Float64Array(each);
      const end = new Float64Array(each);
      let at = 0;
      for (let row = 0; row < each; row += 1) {
        const room = (whole / each) * (0.2 + 1.6 * random());
        start[row] = at;
        end[row] = at + room * (0.3 + 0.7 * random());
        at += room;
      }
      const fixed = { ranges: 3, communication: 1, calls: 4 }[kind];
      const none = new Int32Array(each).fill(-1);
      all.push({
        rank, track, strings, short: {}, start, end, depth: new Uint8Array(each),
        kind: Uint8Array.from(start, () => fixed ?? (random() < 0.2 ? 2 : 0)),
        name: Int32Array.from(start, () => Math.floor(random() * strings.length)),
        info: none, launch: none, collective: none, messages: { row: none, number: none },
      });
    });
  }
  const overview = {
    start: 0, end: whole, covered: [[0, whole]], notes: [], complete: true,
    places: [{ label: "All", start: 0, end: whole }],
    ranks: Array.from({ length: ranks }, (_, rank) => ({
      rank, uncertainty: 5000, steps: [{ step: 0, start: 0, end: whole }],
      tracks: kinds.map((kind, id) => ({ id, kind, label: `${kind} ${id}`, levels: 1 })),
    })),
  };
  const source = { overview: async () => overview, slices: async () => all };
  const element = document.body.appendChild(document.createElement("section"));
  const timeline = new Timeline(element, source, { open: ranks });
  await timeline.ready;
  const { view, scroller } = timeline;
  const middle = () => (view.start + view.end) / 2;
  const moves = [];
  for (const zoom of [0.9, 1 / 0.9]) {
    for (let step = 0; step < 90; step += 1) moves.push(() => view.zoom(zoom, middle()));
    for (let step = 0; step < 30; step += 1) moves.push(() => view.pan(0.05 * view.span));
  }
  for (const span of [1, 0.3, 0.1, 0.03, 0.01, 0.001]) {
    moves.push(() => view.show(0.4 * whole, 0.4 * whole + span * whole));
    for (let step = 0; step < 40; step += 1) {
      moves.push(() => view.pan(0.03 * view.span * (step < 20 ? 1 : -1)));
    }
    for (let step = 0; step < 10; step += 1) moves.push(() => (scroller.scrollTop += 60));
    moves.push(() => (scroller.scrollTop = 0));
  }
  window.round = async () => {
    const drawn = [];
    for (const move of moves) {
      await new Promise((resolve) => {
        requestAnimationFrame(() => {
          move();
          const from = performance.now();
          timeline.draw();
          drawn.push(performance.now() - from);
          resolve();
        });
      });
    }
    return drawn;
  };
  return all.length * each;
}"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    """Print the times of a frame."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(SOURCES)))
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(f"{address}/page.css")
        slices = page.evaluate(PAGE, [address, count, RANKS])
        drawn = page.evaluate("window.round()")
        browser.start_tracing(page=page, categories=CATEGORIES)
        page.evaluate("window.round()")
        script, tasks = cpu_times(json.loads(browser.stop_tracing())["traceEvents"])
        print(f"Chromium {browser.version}, {slices:,} slices of {RANKS} ranks, {len(drawn)} frames")
        browser.close()
    server.shutdown()
    for name, times in (("drawing", drawn), ("script, CPU time", script), ("main thread, CPU time", tasks)):
        cuts = statistics.quantiles(times, n=100)
        late = sum(time > AIM_MS for time in times)
        print(
            f"{name:22} p50 {cuts[49]:5.1f} ms   p95 {cuts[94]:5.1f} ms   max {max(times):5.1f} ms   "
            f"over {AIM_MS} ms: {late}"
        )


def cpu_times(events: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return the CPU time of the script and of all tasks of its thread for each frame, in ms."""
    frames = sorted((e for e in events if e["name"] == "FireAnimationFrame"), key=lambda e: e["ts"])
    thread = frames[0]["tid"]
    tasks = sorted(
        (e["ts"], e["tdur"]) for e in events if e["name"] == TASK and e["tid"] == thread and "tdur" in e
    )
    starts = [at for at, _ in tasks]
    # A task begins before the frame's callback that runs in it.
    cuts = [bisect_right(starts, frame["ts"]) - 1 for frame in frames]
    total = [sum(time for _, time in tasks[low:high]) / 1e3 for low, high in pairwise(cuts)]
    return [frame["tdur"] / 1e3 for frame in frames], total


if __name__ == "__main__":
    main()
