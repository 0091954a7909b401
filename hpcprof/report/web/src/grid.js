// A grid of coloured cells on a canvas, such as a heat map: one cell is chosen with the pointer or the arrow keys.
import { widthIn } from "./theme.js";

export const AXIS = 64;
const BELOW = 34;
const PAGE = 10;

/** Cividis (Nuñez, Anderton and Renslow, 2018): it looks alike to readers with and without colour blindness. */
const CIVIDIS = ["#00204c", "#213d6b", "#555b6c", "#7b7a77", "#a59c74", "#d3c064", "#ffe945"].map((text) =>
  [1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16)),
);

/**
 * The part that all grids share. A subclass has `role`, and the methods `choose`, which takes over what is chosen,
 * `measure(room)`, which sets `size`, `rows` and `columns`, `image`, `label(context)`, `describe` and
 * `sentence(row, column)`; it may have `extend` and `open`.
 */
export class Grid {
  constructor(element, data) {
    this.data = data;
    this.build(element);
    this.choose();
    new ResizeObserver(() => this.draw()).observe(this.area);
    document.addEventListener("hpcprof:theme", () => this.draw());
  }

  build(element) {
    const { data } = this;
    const heading = add(element, "h2", data.title);
    add(element, "p", data.note, "note");
    const controls = add(element, "p", "", "heat-map-controls no-print");
    this.quantity = chooser(controls, "Show", data.quantities.map(({ id, label }) => [id, label]));
    this.extend(element, heading, controls);
    for (const choice of controls.querySelectorAll("select")) choice.addEventListener("change", () => this.choose());
    this.area = add(element, "div", "", "heat-map-area");
    this.area.tabIndex = 0;
    this.area.setAttribute("role", "application");
    this.area.setAttribute("aria-roledescription", this.role);
    this.canvas = add(this.area, "canvas", "");
    this.canvas.setAttribute("aria-hidden", "true");
    this.marker = add(this.area, "div", "", "heat-map-marker");
    this.said = add(element, "p", "", "heat-map-said");
    this.said.setAttribute("role", "status");
    this.legend = add(element, "div", "", "heat-map-legend");
    for (const name of ["pointermove", "pointerdown"]) this.area.addEventListener(name, (event) => this.point(event));
    // A click has whole pixels only, which of thousands of ranks may be those of the rank above.
    this.area.addEventListener("click", () => this.open());
    this.area.addEventListener("keydown", (event) => this.press(event));
    this.area.addEventListener("focus", () => this.at ?? this.moveTo(0, 0));
  }

  extend() {}

  open() {}

  draw() {
    const room = Math.floor(widthIn(this.area)) - AXIS;
    if (room <= 0) return;
    this.measure(room);
    const { width, height } = this.size;
    const ratio = window.devicePixelRatio || 1;
    Object.assign(this.canvas.style, { width: `${width + AXIS}px`, height: `${height + BELOW}px` });
    this.canvas.width = Math.round((width + AXIS) * ratio);
    this.canvas.height = Math.round((height + BELOW) * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image(), AXIS, 0, width, height);
    const style = getComputedStyle(this.area);
    context.strokeStyle = context.fillStyle = style.color;
    context.font = `12px ${style.fontFamily}`;
    context.textBaseline = "middle";
    this.label(context);
    this.describe();
    this.mark();
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const { width, height } = this.size;
    const x = event.clientX - box.left - AXIS;
    const y = event.clientY - box.top;
    if (x < 0 || y < 0 || x >= width || y >= height) return;
    this.moveTo(Math.floor((y * this.rows) / height), Math.floor((x * this.columns) / width));
  }

  press(event) {
    const [row, column] = this.at ?? [0, 0];
    const moves = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      PageUp: [row - PAGE, column],
      PageDown: [row + PAGE, column],
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
    const [width, height] = [this.size.width / this.columns, this.size.height / this.rows];
    Object.assign(this.marker.style, {
      left: `${AXIS + column * width}px`,
      top: `${row * height}px`,
      width: `${width}px`,
      height: `${height}px`,
    });
    this.said.textContent = this.sentence(row, column);
  }
}

/** Returns a picture with one pixel for each cell; `shares` has a number from 0 to 1 for each, or NaN for no colour. */
export function picture(columns, rows, shares) {
  const made = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
  const context = made.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  shares.forEach((share, place) => {
    if (!Number.isNaN(share)) pixels.data.set([...colourOf(share), 255], 4 * place);
  });
  context.putImageData(pixels, 0, 0);
  return made;
}

const clamp = (place, length) => Math.min(length - 1, Math.max(0, place));

function colourOf(share) {
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
