// The heat map of ranks and steps. A canvas shows any number of ranks: where several cells share a pixel, it
// shows the one furthest from the median, so that one rank among thousands stays visible.
import { AXIS, Grid, add, chooser, colourBar, niceStep, picture, text } from "./grid.js";
import { count, duration } from "./units.js";

const ROW_PIXELS = 18;
const MOST_PIXELS = 560;
/** How many robust standard deviations from the median the colours reach. */
const REACH = 8;
/** The colours reach at least this share of a step, so that noise does not look like a deviation. */
const LEAST_OF_STEP = 0.01;
/** 1.4826 times the median absolute deviation is one standard deviation where values scatter normally. */
const TO_STANDARD_DEVIATIONS = 1.4826;

const SORTS = {
  lateness: "lateness",
  value: "the value shown",
  rank: "rank",
  host: "host",
};

/**
 * Draws the heat map.
 * @param {HTMLElement} element
 * @param {object} data of hpcprof.report.page.heat_map
 */
export function heatMap(element, data) {
  new HeatMap(element, data);
}

class HeatMap extends Grid {
  get role() {
    return "heat map";
  }

  extend(element, heading, controls) {
    const { data } = this;
    this.values = new Map();
    heading.id = `${element.id || "heat-map"}-title`;
    this.quantity.value = data.shown;
    const sorts = Object.entries(SORTS).filter(([id]) => id !== "host" || data.hosts.length > 1);
    this.sorting = chooser(controls, "Sort ranks by", sorts);
    this.meaning = add(element, "p", "", "note");
  }

  /** Takes over what is chosen: the quantity and the order of the ranks. */
  choose() {
    const shown = this.data.quantities.find(({ id }) => id === this.quantity.value);
    this.shown = shown;
    this.cells = this.valuesOf(shown);
    this.scale = scaleOf(this.cells, this.data.median_ns);
    this.order = this.ordered(this.sorting.value);
    this.meaning.textContent = shown.meaning;
    this.at = null;
    this.draw();
  }

  /** Returns the cells of a quantity in nanoseconds; NaN where a rank has no such step. */
  valuesOf(quantity) {
    if (!this.values.has(quantity.id)) {
      const unit = this.data.unit_ns;
      this.values.set(quantity.id, Float64Array.from(quantity.cells, (cell) => (cell === null ? NaN : cell * unit)));
    }
    return this.values.get(quantity.id);
  }

  /** Returns the places of the ranks from top to bottom. */
  ordered(sorting) {
    const places = this.data.ranks.map((_, place) => place);
    if (sorting === "rank") return places;
    if (sorting === "host") return places.sort((a, b) => this.data.host[a] - this.data.host[b] || a - b);
    const key = sorting === "value" ? this.means(this.shown) : this.lateness();
    return places.sort((a, b) => key[b] - key[a] || a - b);
  }

  lateness() {
    if (this.data.late_ns.some((late) => late !== null)) return this.data.late_ns.map((late) => late ?? -1);
    const late = this.data.quantities.find(({ id }) => id === "lateness");
    return late ? this.means(late) : this.data.ranks.map(() => 0);
  }

  /** Returns the mean of a quantity over the steps of each rank. */
  means(quantity) {
    const cells = this.valuesOf(quantity);
    const ranks = this.data.ranks.length;
    return this.data.ranks.map((_, rank) => {
      let sum = 0;
      let steps = 0;
      for (let place = rank; place < cells.length; place += ranks) {
        if (Number.isNaN(cells[place])) continue;
        sum += cells[place];
        steps += 1;
      }
      return steps ? sum / steps : -1;
    });
  }

  measure(width) {
    const { ranks, steps } = this.data;
    const height = Math.min(MOST_PIXELS, ranks.length * ROW_PIXELS);
    this.size = { width, height };
    this.columns = Math.min(steps.length, width);
    this.rows = Math.min(ranks.length, height);
    this.bin();
  }

  /** Finds for each cell of the canvas the rank and step that it shows: those furthest from the median. */
  bin() {
    const { ranks, steps } = this.data;
    this.source = new Int32Array(this.rows * this.columns).fill(-1);
    const far = new Float64Array(this.source.length).fill(-1);
    for (let line = 0; line < ranks.length; line += 1) {
      const row = Math.floor((line * this.rows) / ranks.length);
      for (let step = 0; step < steps.length; step += 1) {
        const place = step * ranks.length + this.order[line];
        const distance = Math.abs(this.cells[place] - this.scale.median);
        const target = row * this.columns + Math.floor((step * this.columns) / steps.length);
        if (distance > far[target]) {
          far[target] = distance;
          this.source[target] = place;
        }
      }
    }
  }

  image() {
    const shares = Array.from(this.source, (place) => (place < 0 ? NaN : this.scale.share(this.cells[place])));
    return picture(this.columns, this.rows, shares);
  }

  label(context) {
    const { height } = this.size;
    context.textAlign = "right";
    const lines = this.data.ranks.length;
    const every = niceStep(lines / (height / 16));
    // In another order than theirs, only the first and the last of thousands of ranks are worth a number.
    if (every === 1 || this.sorting.value === "rank") {
      for (let line = 0; line < lines; line += every) {
        const text = `${line === 0 ? "rank " : ""}${this.data.ranks[this.order[line]]}`;
        context.fillText(text, AXIS - 6, Math.max(7, ((line + 0.5) * height) / lines));
      }
    } else {
      context.fillText(`rank ${this.data.ranks[this.order[0]]}`, AXIS - 6, 7);
      context.fillText(count(lines), AXIS - 6, height / 2 - 7);
      context.fillText("ranks", AXIS - 6, height / 2 + 7);
      context.fillText(`rank ${this.data.ranks[this.order.at(-1)]}`, AXIS - 6, height - 7);
    }
    this.labelSteps(context);
  }

  labelSteps(context) {
    const { width, height } = this.size;
    const { steps } = this.data;
    const every = niceStep(steps.length / Math.max(1, width / 60));
    context.textAlign = "center";
    for (let step = 0; step < steps.length; step += every) {
      const x = AXIS + ((step + 0.5) * width) / steps.length;
      context.fillText(String(steps[step]), x, height + 10);
    }
    context.fillText("step", AXIS + width / 2, height + 26);
  }

  describe() {
    const { low, high, cut } = this.scale;
    const { ranks, steps } = this.data;
    const cells = `${count(ranks.length)} ranks and ${count(steps.length)} steps`;
    this.area.setAttribute(
      "aria-label",
      `${this.shown.label}, ${cells}, sorted by ${SORTS[this.sorting.value]}. ` +
        "Arrow keys move from cell to cell, Enter shows the step in the timeline.",
    );
    const bar = colourBar();
    const from = text("span", `${cut.low ? "≤ " : ""}${duration(low)}`);
    const to = text("span", `${cut.high ? "≥ " : ""}${duration(high)}`);
    const shares = Math.ceil((ranks.length / this.rows) * (steps.length / this.columns));
    const binned = shares > 1 ? ` Up to ${count(shares)} cells share a point, which shows the one furthest from the median.` : "";
    this.legend.replaceChildren(from, bar, to, text("span", binned));
  }

  sentence(row, column) {
    const place = this.source[row * this.columns + column];
    if (place < 0) return "This rank has no such step.";
    const { ranks, steps, hosts, host } = this.data;
    const rank = place % ranks.length;
    const on = hosts.length && host[rank] >= 0 ? ` on ${hosts[host[rank]]}` : "";
    const step = steps[Math.floor(place / ranks.length)];
    const value = duration(this.cells[place]);
    const usual = duration(this.scale.median);
    return `Rank ${ranks[rank]}${on}, step ${step}: ${this.shown.label.toLowerCase()} ${value} (median ${usual})`;
  }

  open() {
    const place = this.at ? this.source[this.at[0] * this.columns + this.at[1]] : -1;
    if (place < 0) return;
    const { ranks, steps } = this.data;
    const detail = { rank: ranks[place % ranks.length], step: steps[Math.floor(place / ranks.length)] };
    document.dispatchEvent(new CustomEvent("hpcprof:show", { detail }));
  }
}

/**
 * Returns the scale of the colours. It reaches `REACH` robust standard deviations from the median, so that one
 * huge value does not make all others look alike.
 */
function scaleOf(cells, step) {
  const values = Float64Array.from(cells.filter((value) => !Number.isNaN(value))).sort();
  const median = middle(values);
  const distances = values.map((value) => Math.abs(value - median)).sort();
  let unit = TO_STANDARD_DEVIATIONS * middle(distances);
  // Where most cells are the same, such as 0, the others set the scale.
  if (unit === 0) unit = middle(distances.filter((distance) => distance > 0)) / 2 || 0;
  const reach = Math.max(REACH * unit, LEAST_OF_STEP * step);
  const lowest = values[0] ?? 0;
  const highest = values.at(-1) ?? 0;
  const low = Math.max(lowest, median - reach);
  const high = Math.max(Math.min(highest, median + reach), low + LEAST_OF_STEP * step);
  return {
    median,
    low,
    high,
    cut: { low: lowest < low, high: highest > high },
    share: (value) => Math.min(1, Math.max(0, (value - low) / (high - low))),
  };
}

const middle = (sorted) => (sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : 0);
