// The matrix of messages: who sends how much to whom. Lines mark where a node ends, so that what stays within a node
// lies in the squares on the diagonal.
import { AXIS, Grid, colourBar, niceStep, picture, text } from "./grid.js";
import { bytes, count, duration } from "./units.js";

const LARGEST = 560;
const CELL = 22;
/** More lines than this would hide what they divide. */
const MOST_NODES = 128;

const WRITTEN = { bytes, count, ns: duration };

/**
 * Draws the matrix.
 * @param {HTMLElement} element
 * @param {object} data of hpcprof.report.page.chart_data
 */
export function messageMatrix(element, data) {
  new MessageMatrix(element, data);
}

class MessageMatrix extends Grid {
  get role() {
    return "matrix";
  }

  extend() {
    const { ranks, block, row, column } = this.data;
    this.lines = this.rows = this.columns = Math.ceil(ranks / block);
    this.cells = new Map(row.map((line, place) => [line * this.lines + column[place], place]));
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

  measure(room) {
    const side = Math.min(room, LARGEST, this.lines * CELL);
    this.size = { width: side, height: side };
  }

  /** Returns a picture with one pixel for each cell; of more cells than pixels, the highest value is seen. */
  image() {
    const shown = Math.min(this.lines, this.size.width);
    const highest = new Float64Array(shown * shown);
    const { row, column } = this.data;
    this.shown.values.forEach((value, place) => {
      const [y, x] = [row[place], column[place]].map((line) => Math.floor((line * shown) / this.lines));
      highest[y * shown + x] = Math.max(highest[y * shown + x], value);
    });
    return picture(shown, shown, highest.map((value) => (value > 0 ? this.share(value) : NaN)));
  }

  label(context) {
    const size = this.size.width;
    const { ranks, nodes } = this.data;
    const scale = size / this.lines / this.data.block;
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
