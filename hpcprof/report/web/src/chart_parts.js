// What all charts have in common: the place with title and note, the style, axes, and labels of rows.
import * as Plot from "@observablehq/plot";
import { widthIn } from "./theme.js";

/** From this width on, the labels of rows stand beside their bars, else above them. */
const WIDE = 620;
const CHARACTER = 7.6;
/** The width of 1 em of a label as Plot measures texts, with room for wider fonts. */
export const EM = 13.5;
const MOST_LABEL = 320;
/** The most of the width that labels take, so that there is room for bars. */
export const MOST_SHARE = 0.34;

export const COLOURS = {
  compute: "var(--compute)",
  copies: "var(--copy)",
  idle: "var(--idle)",
  communication: "var(--exposed-comm)",
  "exposed communication": "var(--exposed-comm)",
  "waiting for peers": "var(--wait)",
  allocated: "var(--compute)",
  "reserved beyond that": "var(--idle)",
  "reserved, not allocated": "var(--idle)",
};

/** Returns the colour of the series with a number. */
export const seriesColour = (number) => `var(--series-${(number % 8) + 1})`;

/** Text upon a drawing, with a border that keeps it readable. */
export const LABELS = { fill: "currentColor", stroke: "var(--background)", strokeWidth: 4 };

/** Adds a chart to an element: its title, its note, and a drawing that follows the width. */
export function addChart(element, chart, draw) {
  const figure = document.createElement("figure");
  figure.className = "chart";
  if (chart.id) figure.id = `chart-${chart.id}`;
  const title = document.createElement("h2");
  title.textContent = chart.title;
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = chart.note;
  const place = document.createElement("div");
  figure.append(title, note, place);
  element.append(figure);
  let drawn = 0;
  const follow = () => {
    const width = Math.floor(widthIn(place));
    if (width === drawn || width <= 0) return;
    drawn = width;
    place.replaceChildren(...[draw(chart, width)].flat());
  };
  follow();
  new ResizeObserver(follow).observe(place);
  document.addEventListener("hpcprof:theme", follow);
}

/** Returns a drawing in the style of the page, named for readers who do not see it. */
export function styled({ title, note, ...options }, marks) {
  const drawing = Plot.plot({
    ariaLabel: title,
    ariaDescription: note,
    className: "hpcprof-plot",
    style: { background: "transparent", color: "inherit", fontFamily: "inherit", fontSize: "12px", overflow: "visible" },
    color: { type: "identity" },
    ...options,
    marks,
  });
  drawing.setAttribute("role", "img");
  // Plot names its marks by a label that groups without a role may not have.
  for (const mark of drawing.querySelectorAll("g[aria-label]")) {
    mark.dataset.mark = mark.getAttribute("aria-label");
    mark.removeAttribute("aria-label");
  }
  return drawing;
}

/** Returns an axis with given ticks and a grid. */
export function axisOf(name, ticks, tickFormat, label = null) {
  const [axis, grid] = name === "x" ? [Plot.axisX, Plot.gridX] : [Plot.axisY, Plot.gridY];
  const anchor = name === "x" ? { anchor: "bottom" } : { anchor: "left" };
  return [
    grid(ticks, { stroke: "var(--line)", strokeOpacity: 1 }),
    axis(ticks, { ...anchor, ticks, tickFormat, tickSize: 0, label, labelArrow: "none", labelAnchor: "center" }),
  ];
}

/** Returns a legend: the names of series with their colours. */
export function legend(names, colours) {
  const list = document.createElement("ul");
  list.className = "legend";
  for (const name of names) {
    const item = document.createElement("li");
    const patch = document.createElement("span");
    patch.style.background = colours(name);
    item.append(patch, name);
    list.append(item);
  }
  return list;
}

/**
 * Lays out the labels of rows: beside the rows where there is room, else above them.
 * A row takes 1 of the y scale; its drawing lies between `top` and `bottom`.
 */
export function rowLabels(rows, width) {
  const longest = Math.max(...rows.map(({ label }) => label.length), 4);
  const wide = width >= WIDE;
  const marginLeft = wide ? Math.min(MOST_LABEL, MOST_SHARE * width, 16 + longest * CHARACTER) : 4;
  const room = (wide ? marginLeft - 10 : width - 10) / EM;
  const at = wide ? { dx: -8, textAnchor: "end", x: null, frameAnchor: "left" } : { textAnchor: "start", frameAnchor: "left" };
  const height = wide ? 28 : 46;
  const [top, bottom] = wide ? [0.14, 0.86] : [0.46, 0.94];
  const mark = Plot.text(rows, {
    ...at,
    y: (_, place) => place + (wide ? 0.5 : 0.24),
    text: "label",
    lineWidth: room,
    textOverflow: "ellipsis",
    title: (row) => row.full ?? row.label,
    fill: "currentColor",
    clip: false,
  });
  return {
    /** The frame of the drawing, with room below the rows. */
    frame: (below) => ({ height: rows.length * height + below, marginLeft, marginTop: 8, marginBottom: 38, y: { domain: [rows.length, 0], axis: null } }),
    /** The vertical ends of the bar of a row. */
    band: { y1: (row) => row.place + top, y2: (row) => row.place + bottom },
    height,
    top,
    bottom,
    middle: (row) => row.place + (top + bottom) / 2,
    ticks: (space) => Math.max(2, Math.floor((width - marginLeft - space) / 70)),
    marks: [mark],
    wide,
  };
}
