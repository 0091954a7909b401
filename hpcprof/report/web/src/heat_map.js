// The heat map of ranks and steps. A canvas shows any number of ranks: where several cells share a pixel, it
// shows the one furthest from the median, so that one rank among thousands stays visible.
import { widthIn } from "./theme.js";
import { count, duration } from "./units.js";

const ROW_PIXELS = 18;
const MOST_PIXELS = 560;
const AXIS = 64;
/** How many robust standard deviations from the median the colours reach. */
const REACH = 8;
/** The colours reach at least this share of a step, so that noise does not look like a deviation. */
const LEAST_OF_STEP = 0.01;
/** 1.4826 times the median absolute deviation is one standard deviation where values scatter normally. */
const TO_STANDARD_DEVIATIONS = 1.4826;

/** Cividis (Nuñez, Anderton and Renslow, 2018): it looks alike to readers with and without colour blindness. */
const CIVIDIS = ["#00204c", "#213d6b", "#555b6c", "#7b7a77", "#a59c74", "#d3c064", "#ffe945"].map((text) =>
  [1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16)),
);

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

class HeatMap {
  constructor(element, data) {
    this.data = data;
    this.values = new Map();
    this.build(element);
    this.choose();
    new ResizeObserver(() => this.draw()).observe(this.area);
    document.addEventListener("hpcprof:theme", () => this.draw());
  }

  build(element) {
    const { data } = this;
    const heading = add(element, "h2", data.title);
    heading.id = `${element.id || "heat-map"}-title`;
    add(element, "p", data.note, "note");
    const controls = add(element, "p", "", "heat-map-controls no-print");
    this.quantity = chooser(controls, "Show", data.quantities.map(({ id, label }) => [id, label]));
    this.quantity.value = data.shown;
    const sorts = Object.entries(SORTS).filter(([id]) => id !== "host" || data.hosts.length > 1);
    this.sorting = chooser(controls, "Sort ranks by", sorts);
    for (const choice of [this.quantity, this.sorting]) choice.addEventListener("change", () => this.choose());
    this.meaning = add(element, "p", "", "note");
    this.area = add(element, "div", "", "heat-map-area");
    this.area.tabIndex = 0;
    this.area.setAttribute("role", "application");
    this.area.setAttribute("aria-roledescription", "heat map");
    this.canvas = add(this.area, "canvas", "");
    this.canvas.setAttribute("aria-hidden", "true");
    this.marker = add(this.area, "div", "", "heat-map-marker");
    this.said = add(element, "p", "", "heat-map-said");
    this.said.setAttribute("role", "status");
    this.legend = add(element, "div", "", "heat-map-legend");
    this.listen();
  }

  listen() {
    for (const name of ["pointermove", "pointerdown"]) this.area.addEventListener(name, (event) => this.point(event));
    // A click has whole pixels only, which of thousands of ranks may be those of the rank above.
    this.area.addEventListener("click", () => this.open());
    this.area.addEventListener("keydown", (event) => this.press(event));
    this.area.addEventListener("focus", () => this.at ?? this.moveTo(0, 0));
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

  draw() {
    const { ranks, steps } = this.data;
    const width = Math.floor(widthIn(this.area)) - AXIS;
    if (width <= 0) return;
    const height = Math.min(MOST_PIXELS, ranks.length * ROW_PIXELS);
    this.columns = Math.min(steps.length, width);
    this.rows = Math.min(ranks.length, height);
    this.bin();
    this.paint(width, height);
    this.describe();
    this.mark();
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

  paint(width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.size = { width, height };
    this.canvas.style.width = `${width + AXIS}px`;
    this.canvas.style.height = `${height + 34}px`;
    this.canvas.width = Math.round((width + AXIS) * ratio);
    this.canvas.height = Math.round((height + 34) * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image(), AXIS, 0, width, height);
    this.label(context);
  }

  /** Returns a picture with one pixel for each cell. */
  image() {
    const picture = document.createElement("canvas");
    picture.width = this.columns;
    picture.height = this.rows;
    const context = picture.getContext("2d");
    const pixels = context.createImageData(this.columns, this.rows);
    this.source.forEach((place, target) => {
      if (place >= 0) pixels.data.set([...colourOf(this.scale.share(this.cells[place])), 255], 4 * target);
    });
    context.putImageData(pixels, 0, 0);
    return picture;
  }

  label(context) {
    const style = getComputedStyle(this.area);
    const { width, height } = this.size;
    context.fillStyle = style.color;
    context.font = `12px ${style.fontFamily}`;
    context.textBaseline = "middle";
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

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left - AXIS;
    const y = event.clientY - box.top;
    if (x < 0 || y < 0 || x >= this.size.width || y >= this.size.height) return;
    this.moveTo(Math.floor((y * this.rows) / this.size.height), Math.floor((x * this.columns) / this.size.width));
  }

  press(event) {
    const [row, column] = this.at ?? [0, 0];
    const moves = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      PageUp: [row - 10, column],
      PageDown: [row + 10, column],
      Home: [row, 0],
      End: [row, this.columns - 1],
    };
    if (event.key in moves) this.moveTo(...moves[event.key]);
    else if (event.key === "Enter") this.open();
    else return;
    event.preventDefault();
  }

  moveTo(row, column) {
    this.at = [clamp(row, this.rows), clamp(column, this.columns)];
    this.mark();
  }

  /** Shows which cell is chosen, and says what it holds. */
  mark() {
    this.marker.hidden = !this.at;
    if (!this.at) {
      this.said.textContent = "Point at a cell, or move with the arrow keys.";
      return;
    }
    const [row, column] = (this.at = [clamp(this.at[0], this.rows), clamp(this.at[1], this.columns)]);
    const { width, height } = this.size;
    const style = this.marker.style;
    style.left = `${AXIS + (column * width) / this.columns}px`;
    style.top = `${(row * height) / this.rows}px`;
    style.width = `${width / this.columns}px`;
    style.height = `${height / this.rows}px`;
    this.said.textContent = this.sentence(this.source[row * this.columns + column]);
  }

  sentence(place) {
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
export const clamp = (place, length) => Math.min(length - 1, Math.max(0, place));

export function colourOf(share) {
  const place = share * (CIVIDIS.length - 1);
  const left = Math.min(CIVIDIS.length - 2, Math.floor(place));
  return CIVIDIS[left].map((low, part) => Math.round(low + (place - left) * (CIVIDIS[left + 1][part] - low)));
}

/** Returns a bar with the colours from low to high. */
export function colourBar() {
  const bar = document.createElement("span");
  bar.className = "heat-map-bar";
  bar.style.background = `linear-gradient(to right, ${CIVIDIS.map((parts) => `rgb(${parts.join(" ")})`).join(", ")})`;
  return bar;
}

/** Returns the smallest of 1, 2, 5, 10, 20… that is at least `least`. */
export function niceStep(least) {
  let power = 1;
  while (power * 10 <= least) power *= 10;
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
}

export function text(tag, content) {
  const made = document.createElement(tag);
  made.textContent = content;
  return made;
}

export function add(parent, tag, content, name = "") {
  const made = text(tag, content);
  if (name) made.className = name;
  parent.append(made);
  return made;
}

export function chooser(parent, label, choices) {
  const named = add(parent, "label", `${label} `);
  const select = add(named, "select", "");
  for (const [id, name] of choices) add(select, "option", name).value = id;
  return select;
}
