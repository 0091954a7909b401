// The matrix of messages: who sends how much to whom. Lines mark where a node ends, so that what stays within a node
// lies in the squares on the diagonal.
import { add, chooser, clamp, colourBar, colourOf, niceStep, text } from "./heat_map.js";
import { widthIn } from "./theme.js";
import { bytes, count, duration } from "./units.js";

const AXIS = 64;
const BELOW = 34;
const LARGEST = 560;
const CELL = 22;
/** More lines than this would hide what they divide. */
const MOST_NODES = 128;

const WRITTEN = { bytes, count, ns: duration };

/**
 * Draws the matrix.
 * @param {HTMLElement} element
 * @param {object} data of hpcprof.report.page.message_matrix
 */
export function messageMatrix(element, data) {
  new MessageMatrix(element, data);
}

class MessageMatrix {
  constructor(element, data) {
    this.data = data;
    this.lines = Math.ceil(data.ranks / data.block);
    this.cells = new Map(data.row.map((row, place) => [row * this.lines + data.column[place], place]));
    this.build(element);
    this.choose();
    new ResizeObserver(() => this.draw()).observe(this.area);
    document.addEventListener("hpcprof:theme", () => this.draw());
  }

  build(element) {
    const { data } = this;
    add(element, "h2", data.title);
    add(element, "p", data.note, "note");
    const controls = add(element, "p", "", "heat-map-controls no-print");
    this.quantity = chooser(controls, "Show", data.quantities.map(({ id, label }) => [id, label]));
    this.quantity.addEventListener("change", () => this.choose());
    this.area = add(element, "div", "", "heat-map-area");
    this.area.tabIndex = 0;
    this.area.setAttribute("role", "application");
    this.area.setAttribute("aria-roledescription", "matrix");
    this.canvas = add(this.area, "canvas", "");
    this.canvas.setAttribute("aria-hidden", "true");
    this.marker = add(this.area, "div", "", "heat-map-marker");
    this.said = add(element, "p", "", "heat-map-said");
    this.said.setAttribute("role", "status");
    this.legend = add(element, "div", "", "heat-map-legend");
    for (const name of ["pointermove", "pointerdown"]) this.area.addEventListener(name, (event) => this.point(event));
    this.area.addEventListener("keydown", (event) => this.press(event));
    this.area.addEventListener("focus", () => this.at ?? this.moveTo(0, 0));
  }

  choose() {
    this.shown = this.data.quantities.find(({ id }) => id === this.quantity.value);
    const values = this.shown.values.filter((value) => value > 0);
    this.low = Math.min(...values);
    this.high = Math.max(...values);
    this.draw();
  }

  /** Returns the place of a value between the lowest and the highest, on a logarithmic scale. */
  share(value) {
    if (value <= this.low) return this.low === this.high ? 1 : 0;
    return Math.log(value / this.low) / Math.log(this.high / this.low);
  }

  draw() {
    const room = Math.floor(widthIn(this.area)) - AXIS;
    if (room <= 0) return;
    this.size = Math.min(room, LARGEST, this.lines * CELL);
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [this.size + AXIS, this.size + BELOW];
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image(), AXIS, 0, this.size, this.size);
    this.frame(context);
    this.describe();
    this.mark();
  }

  /** Returns a picture with one pixel for each cell; of more cells than pixels, the highest value is seen. */
  image() {
    const shown = Math.min(this.lines, this.size);
    const highest = new Float64Array(shown * shown);
    const { row, column } = this.data;
    this.shown.values.forEach((value, place) => {
      const [y, x] = [row[place], column[place]].map((line) => Math.floor((line * shown) / this.lines));
      highest[y * shown + x] = Math.max(highest[y * shown + x], value);
    });
    const picture = document.createElement("canvas");
    picture.width = picture.height = shown;
    const context = picture.getContext("2d");
    const pixels = context.createImageData(shown, shown);
    highest.forEach((value, place) => {
      if (value > 0) pixels.data.set([...colourOf(this.share(value)), 255], 4 * place);
    });
    context.putImageData(pixels, 0, 0);
    return picture;
  }

  frame(context) {
    const { size } = this;
    const { ranks, nodes } = this.data;
    const style = getComputedStyle(this.area);
    const scale = size / this.lines / this.data.block;
    context.strokeStyle = context.fillStyle = style.color;
    context.strokeRect(AXIS + 0.5, 0.5, size - 1, size - 1);
    if (nodes.length <= MOST_NODES) {
      context.globalAlpha = 0.6;
      for (const rank of nodes.slice(1)) {
        const at = Math.round(rank * scale) + 0.5;
        context.strokeRect(AXIS + at, 0, 0, size);
        context.strokeRect(AXIS, at, size, 0);
      }
      context.globalAlpha = 1;
    }
    context.font = `12px ${style.fontFamily}`;
    context.textBaseline = "middle";
    const every = niceStep(ranks / (size / 22));
    for (let rank = 0; rank < ranks; rank += every) {
      const at = (rank + 0.5) * scale;
      context.textAlign = "right";
      context.fillText(`${rank === 0 ? "from " : ""}${rank}`, AXIS - 6, Math.max(7, at));
      context.textAlign = "center";
      if (rank % (2 * every) === 0 || size / (ranks / every) > 34) context.fillText(String(rank), AXIS + at, size + 10);
    }
    context.textAlign = "left";
    context.fillText("to rank", AXIS, size + 26);
  }

  describe() {
    const { ranks, row } = this.data;
    const known = `${this.shown.label} from each of ${count(ranks)} ranks to each other, ${count(row.length)} cells. `;
    this.area.setAttribute("aria-label", `${known}Arrow keys move from cell to cell.`);
    const write = WRITTEN[this.shown.unit];
    const [from, to] = [this.low, this.high].map((value) => text("span", write(value)));
    this.legend.replaceChildren(from, colourBar(), to, text("span", "No colour: no messages."));
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left - AXIS;
    const y = event.clientY - box.top;
    if (x < 0 || y < 0 || x >= this.size || y >= this.size) return;
    this.moveTo(...[y, x].map((at) => Math.floor((at * this.lines) / this.size)));
  }

  press(event) {
    const [row, column] = this.at ?? [0, 0];
    const moves = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      Home: [row, 0],
      End: [row, this.lines - 1],
    };
    if (!(event.key in moves)) return;
    this.moveTo(...moves[event.key]);
    event.preventDefault();
  }

  moveTo(row, column) {
    this.at = [clamp(row, this.lines), clamp(column, this.lines)];
    this.mark();
  }

  mark() {
    this.marker.hidden = !this.at;
    if (!this.at) {
      this.said.textContent = "Point at a cell, or move with the arrow keys.";
      return;
    }
    const [row, column] = this.at;
    const side = this.size / this.lines;
    Object.assign(this.marker.style, {
      left: `${AXIS + column * side}px`,
      top: `${row * side}px`,
      width: `${side}px`,
      height: `${side}px`,
    });
    this.said.textContent = this.sentence(row, column);
  }

  sentence(row, column) {
    const who = `From ${this.named(row)} to ${this.named(column)}`;
    const place = this.cells.get(row * this.lines + column);
    if (place === undefined) return `${who}: no messages`;
    const values = this.data.quantities.map(({ label, unit, values }) => `${label.toLowerCase()} ${WRITTEN[unit](values[place])}`);
    return `${who}: ${values.join(", ")}`;
  }

  named(line) {
    const { block, ranks, nodes, node_names: names } = this.data;
    const [first, last] = [line * block, Math.min(ranks, (line + 1) * block) - 1];
    const rank = first === last ? `rank ${first}` : `ranks ${first}-${last}`;
    const node = nodes.findLastIndex((begins) => begins <= first);
    return nodes.length > 1 ? `${rank} on ${names[node]}` : rank;
  }
}
