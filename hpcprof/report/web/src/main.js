// The script of a page: mounts each part that the page has data for.
import { drawCharts, history, waterfall } from "./charts.js";
import { readBlock } from "./data.js";
import { showFinding, showFromFindings } from "./first_screen.js";
import { heatMap } from "./heat_map.js";
import { messageMatrix } from "./message_matrix.js";
import { drawTables } from "./tables.js";
import { followTheme } from "./theme.js";
import { drawTimeline } from "./timeline/embedded.js";
import { drawTiles } from "./timeline/tiles.js";
import { LinkedViews } from "./timeline/view.js";

const linked = new LinkedViews();

/** What draws a part: a function of its element and its data. The data are the block `<part>-data`. */
const PARTS = {
  charts: drawCharts,
  "heat-map": heatMap,
  history: (element, series) => series.forEach((one) => history(element, one)),
  messages: messageMatrix,
  tables: drawTables,
  timeline: (element, data) => (data.address ? drawTiles : drawTimeline)(element, data),
  "timeline-a": (element, data) => drawSide(element, data, "A"),
  "timeline-b": (element, data) => drawSide(element, data, "B"),
  waterfall,
};

/** Draws the timeline of one side of a comparison; both move together. */
function drawSide(element, data, side) {
  return drawTimeline(element, data, { linked, title: `Timeline of ${side}` });
}

async function mount(element) {
  const draw = PARTS[element.dataset.part];
  const data = draw ? await readBlock(`${element.dataset.part}-data`) : null;
  if (data === null) return;
  element.hidden = false;
  await draw(element, data);
}

/** Tells the parts what the address names: `#rank=3&step=7`, or `#finding=2&rank=3&step=7`. */
function showAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const [finding, rank, step] = ["finding", "rank", "step"].map((name) => (words.has(name) ? Number(words.get(name)) : null));
  // A finding of another rank or step is one of an earlier explanation.
  if (rank === null || (Number.isInteger(finding) && showFinding(finding, rank, step))) return;
  const detail = { rank, step };
  document.dispatchEvent(new CustomEvent("hpcprof:show", { detail }));
}

async function start() {
  followTheme();
  for (const element of document.querySelectorAll("[data-part]")) {
    try {
      await mount(element);
    } catch (error) {
      // The other parts are still worth reading.
      element.hidden = false;
      const said = document.createElement("p");
      said.className = "warning";
      said.textContent = `This part cannot be shown: ${error.message}`;
      element.append(said);
      console.error(error);
    }
  }
  showFromFindings();
  document.documentElement.dataset.ready = "";
  showAddress();
  window.addEventListener("hashchange", showAddress);
}

start();
