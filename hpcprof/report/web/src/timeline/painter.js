// Draws a timeline on a canvas. Each call draws what is in sight from scratch; what is too short to see is drawn
// from the coarser levels of slices.js, so that a frame costs as much as the screen is wide, however many slices.
import { isPrinting } from "../theme.js";
import { Colours } from "./colours.js";
import { RULER } from "./layout.js";
import { ruler } from "./ruler.js";

const SMALLEST_LABEL = 32;
const MERGED_PIXELS = 2;
const WIDE = 3;
/** Paper shows finer lines than most screens. */
const PAPER_RATIO = 2;
const FONT = "11px system-ui, sans-serif";

/** What of a timeline is to be drawn. */
export class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.widths = new Map();
    this.newTheme();
  }

  /** Takes the colours of the page's theme. */
  newTheme() {
    this.colours = new Colours(this.canvas);
  }

  /** Fits the canvas to its place, in the pixels of the screen. */
  resize(width, height) {
    const ratio = isPrinting() ? PAPER_RATIO : window.devicePixelRatio || 1;
    [this.width, this.height] = [width, height];
    const [x, y] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== x || this.canvas.height !== y) [this.canvas.width, this.canvas.height] = [x, y];
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.ratio = ratio;
  }

  /** Draws a frame; `state` is the timeline. */
  draw(state) {
    const { context, width, height, colours } = this;
    this.state = state;
    this.scale = width / state.view.span;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = colours.background;
    context.fillRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    this.#uncovered();
    for (const row of state.layout.between(state.scrolled + RULER, state.scrolled + height)) this.#row(row);
    this.#area();
    this.#selected();
    this.#ruler();
  }

  x(time) {
    return (time - this.state.view.start) * this.scale;
  }

  /** Marks the times of which there are no slices. */
  #uncovered() {
    const { context, width, height, colours, state } = this;
    context.fillStyle = colours.panel;
    let from = 0;
    for (const [start, end] of [...state.overview.covered, [Infinity, Infinity]]) {
      const to = Math.min(this.x(start), width);
      if (to > from) context.fillRect(from, RULER, to - from, height);
      from = Math.max(from, this.x(end));
    }
  }

  #row(row) {
    const { context, width, state, colours } = this;
    const top = row.top - state.scrolled;
    if (row.type === "rank") {
      context.fillStyle = colours.line;
      context.fillRect(0, top, width, 1);
      if (row.folded) this.#summary(row, top);
      else this.#steps(row, top);
      return;
    }
    this.#stepLines(row, top);
    const model = state.model(row.of.rank, row.track.id);
    if (model?.slices.height) {
      this.#samples(model, model.lanes[0], top + 1, row.lane - 2, !row.folded);
      return;
    }
    const lanes = row.folded ? model?.lanes.slice(0, 1) : model?.lanes;
    lanes?.forEach((lane, depth) => {
      const y = top + depth * row.lane + 1;
      if (y > this.height || y + row.lane < RULER) return;
      this.#lane(model, lane, depth, y, row.lane - 2, !row.folded);
    });
  }

  /** Draws the work of a folded rank: streams in the upper part, communication in the lower one. */
  #summary(row, top) {
    // Without work on a GPU, communication has the room of both.
    const streams = row.of.tracks.some((one) => one.kind === "stream");
    for (const [kind, y, height] of streams ? [["stream", 3, 9], ["communication", 13, 6]] : [["communication", 3, 16]]) {
      for (const track of row.of.tracks.filter((one) => one.kind === kind)) {
        const model = this.state.model(row.of.rank, track.id);
        if (model?.lanes.length) this.#lane(model, model.lanes[0], 0, top + y, height, false);
      }
    }
  }

  #steps(row, top) {
    const { context, colours, width } = this;
    for (const { step, start, end } of row.of.steps) {
      const [low, high] = [Math.max(this.x(start), 0), Math.min(this.x(end), width)];
      if (high - low < 1) continue;
      context.fillStyle = colours.panel;
      context.fillRect(low, top + 4, high - low, 14);
      context.fillStyle = colours.line;
      context.fillRect(this.x(start), top + 4, 1, 14);
      context.fillRect(this.x(end) - 1, top + 4, 1, 14);
      if (high - low > 40) this.#label(`step ${step}`, low, high, top + 11, colours.soft);
    }
  }

  #stepLines(row, top) {
    const { context, colours } = this;
    context.fillStyle = colours.line;
    for (const { start, end } of row.of.steps) {
      for (const time of [start, end]) {
        const x = this.x(time);
        if (x >= 0 && x <= this.width) context.fillRect(Math.round(x), top, 1, row.height);
      }
    }
  }

  /** Draws a level of a track. */
  #lane(model, lane, depth, y, height, labels) {
    const { context, state, colours } = this;
    const { start, end } = state.view;
    const level = lane.atWidth(MERGED_PIXELS / this.scale);
    const [first, last] = level.between(start, end);
    const { slices } = model;
    const searching = model.matches !== null;
    // What is too short to tell apart is drawn as one rectangle from `low` to `reach`.
    let filled = "";
    let low = 0;
    let reach = -1;
    const flush = () => {
      if (reach <= low) return;
      context.fillStyle = filled;
      context.fillRect(low, y, reach - low, height);
    };
    for (let place = first; place < last; place += 1) {
      const high = Math.min(this.x(level.end[place]), this.width);
      // A slice that ends in a pixel that is drawn already adds nothing.
      if (high <= reach) continue;
      const from = Math.max(this.x(level.start[place]), reach, 0);
      const row = level.row[place];
      const fills = colours.of(slices, row);
      const sparse = level.busy[place] < 0.5 * (level.end[place] - level.start[place]);
      const wide = level.count[place] === 1 && high - from > WIDE;
      const shade = wide ? Colours.shade(slices.name[row]) : 0;
      const fill = searching || sparse ? fills.pale : fills.shades[shade];
      if (wide || fill !== filled || from - reach >= 1) {
        flush();
        [filled, low] = [fill, from];
      }
      reach = Math.max(high, from + 1);
      if (!wide) continue;
      context.fillStyle = fill;
      context.fillRect(from, y, reach - from - 0.5, height);
      if (labels && high - from > SMALLEST_LABEL) {
        this.#label(model.shortName(row), from, high, y + height / 2 + 0.5, searching ? colours.soft : fills.ink[shade]);
      }
      low = reach;
    }
    flush();
    if (searching) this.#matches(model, lane.finest, model.matches[depth], y, height, labels);
  }

  /** Draws samples of a node as bars; of several in one place, each is drawn, so that the highest one is seen. */
  #samples(model, lane, y, height, labels) {
    const { context, state, colours } = this;
    const { slices } = model;
    const [first, last] = lane.finest.between(state.view.start, state.view.end);
    for (let place = first; place < last; place += 1) {
      const row = lane.finest.row[place];
      const [low, high] = [Math.max(this.x(slices.start[row]), 0), Math.min(this.x(slices.end[row]), this.width)];
      const tall = Math.max(1, Math.round((height * slices.height[row]) / 100));
      context.fillStyle = colours.of(slices, row).pale;
      context.fillRect(low, y + height - tall, Math.max(high - low - 0.5, 1), tall);
      if (labels && high - low > SMALLEST_LABEL) this.#label(model.shortName(row), low, high, y + height / 2 + 0.5, colours.text);
    }
  }

  #matches(model, finest, places, y, height, labels) {
    const { context, colours, state } = this;
    let low = 0;
    let high = places.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (finest.end[places[middle]] > state.view.start) high = middle;
      else low = middle + 1;
    }
    let reach = -1;
    for (; low < places.length && finest.start[places[low]] < state.view.end; low += 1) {
      const place = places[low];
      const right = Math.min(this.x(finest.end[place]), this.width);
      if (right <= reach) continue;
      const left = Math.max(this.x(finest.start[place]), 0);
      const drawn = Math.max(right - left, 2);
      const row = finest.row[place];
      const shade = Colours.shade(model.slices.name[row]);
      const fills = colours.of(model.slices, row);
      context.fillStyle = fills.shades[shade];
      context.fillRect(left, y, drawn, height);
      context.fillStyle = colours.text;
      context.fillRect(left, y + height - 2, drawn, 2);
      if (labels && drawn > SMALLEST_LABEL) this.#label(model.shortName(row), left, left + drawn, y + height / 2, fills.ink[shade]);
      reach = left + drawn;
    }
  }

  /** Writes a text between two places, as much of it as fits. */
  #label(text, low, high, y, colour) {
    const room = high - low - 6;
    let width = this.widths.get(text);
    if (width === undefined) {
      if (this.widths.size > 5000) this.widths.clear();
      width = this.context.measureText(text).width;
      this.widths.set(text, width);
    }
    const fitting = width <= room ? text.length : Math.floor((text.length * room) / width) - 1;
    if (fitting < 2) return;
    this.context.fillStyle = colour;
    this.context.fillText(fitting < text.length ? `${text.slice(0, fitting)}…` : text, low + 3, y);
  }

  /** Draws the extent of time that is selected. */
  #area() {
    const { area } = this.state;
    if (!area) return;
    const { context, colours, height } = this;
    const [low, high] = [this.x(area.start), this.x(area.end)];
    context.globalAlpha = 0.16;
    context.fillStyle = colours.accent;
    context.fillRect(low, 0, high - low, height);
    context.globalAlpha = 1;
    for (const x of [low, high]) context.fillRect(x, 0, 1, height);
  }

  /** Draws the outline of the selected slice, its arrows, and how far off the clocks of other ranks may be. */
  #selected() {
    const { selected, links } = this.state;
    if (!selected) return;
    const { context, colours } = this;
    const { x, y, width, height } = this.#box(selected);
    this.#uncertainty(selected);
    for (const link of links) this.#arrow(link);
    context.strokeStyle = colours.text;
    context.lineWidth = 2;
    context.strokeRect(x - 1, y - 1, Math.max(width, 2) + 2, height + 2);
  }

  #box({ rank, track, row }) {
    const { slices } = this.state.model(rank, track);
    const place = this.state.layout.place(rank, track, slices.depth[row]);
    const x = this.x(slices.start[row]);
    return { x, width: this.x(slices.end[row]) - x, y: place.top - this.state.scrolled + 1, height: place.height - 2 };
  }

  /** The start of the selected slice, on each other rank as wide as both clocks may be off. */
  #uncertainty({ rank, track, row }) {
    const { context, colours, state } = this;
    const start = state.model(rank, track).slices.start[row];
    const own = state.rank(rank).uncertainty;
    if (own === null) return;
    context.globalAlpha = 0.22;
    context.fillStyle = colours.text;
    for (const of of state.layout.ranks) {
      if (of.rank === rank || of.uncertainty === null) continue;
      const [low, high] = [this.x(start - own - of.uncertainty), this.x(start + own + of.uncertainty)];
      for (const one of state.layout.rows.filter((each) => each.of.rank === of.rank)) {
        context.fillRect(low, one.top - state.scrolled, Math.max(high - low, 1), one.height);
      }
    }
    context.globalAlpha = 1;
  }

  #arrow({ from, to, kind }) {
    const { context, colours } = this;
    const [a, b] = [this.#box(from), this.#box(to)];
    const [x, y] = [a.x, a.y + a.height / 2];
    // A receive that waits begins before the send; the message is there when it ends.
    const [toX, toY] = [kind === "message" ? b.x + b.width : b.x, b.y + b.height / 2];
    const bend = Math.min(60, Math.abs(toX - x) / 2 + 20);
    context.strokeStyle = context.fillStyle = kind === "launch" ? colours.text : colours.communication;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, y);
    context.bezierCurveTo(x + bend, y, toX - bend, toY, toX, toY);
    context.stroke();
    context.beginPath();
    context.moveTo(toX, toY);
    context.lineTo(toX - 7, toY - 4);
    context.lineTo(toX - 7, toY + 4);
    context.fill();
  }

  #ruler() {
    const { context, colours, width, state } = this;
    context.fillStyle = colours.background;
    context.fillRect(0, 0, width, RULER);
    context.fillStyle = colours.line;
    context.fillRect(0, RULER - 1, width, 1);
    for (const { time, label } of ruler(state.view.start, state.view.end, Math.max(2, Math.floor(width / 110)))) {
      const x = this.x(time);
      context.fillStyle = colours.soft;
      context.fillRect(Math.round(x), RULER - 8, 1, 7);
      context.fillText(label, x + 3, RULER / 2 - 2);
    }
    if (state.area) {
      context.fillStyle = colours.accent;
      context.fillRect(this.x(state.area.start), RULER - 4, (state.area.end - state.area.start) * this.scale, 3);
    }
  }
}
