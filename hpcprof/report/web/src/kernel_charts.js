// The charts of kernels: intervals of their slowdown, the roofline, and the points of a sweep.
import * as Plot from "@observablehq/plot";
import { LABELS, axisOf, legend, rowLabels, seriesColour, styled } from "./chart_parts.js";
import { duration, durationTicks, durationTickValues, percent } from "./units.js";

/** The height of a point of a row with several. */
const POINT = 8;
const SYMBOLS = ["circle", "diamond2", "square", "triangle"];
const RATES = [[1e12, "TFLOP/s"], [1e9, "GFLOP/s"], [1e6, "MFLOP/s"], [1, "FLOP/s"]];

function rate(perSecond) {
  const [size, name] = RATES.find(([least]) => perSecond >= least) ?? RATES.at(-1);
  return `${(perSecond / size).toLocaleString("en", { maximumSignificantDigits: 3 })} ${name}`;
}

/** Returns the names of the series among points, in the order of their first appearance. */
const seriesOf = (points) => [...new Set(points.map(({ series }) => series))];

function withColours(points) {
  const names = seriesOf(points);
  const number = (name) => names.indexOf(name);
  const colour = (name) => seriesColour(number(name));
  const symbol = (point) => SYMBOLS[Math.floor(number(point.series) / 8) % SYMBOLS.length];
  return { names, colour, symbol };
}

/** Ratios with their intervals, a row for each kernel or family; 1 is no change. */
export function intervals(chart, width) {
  const rows = chart.rows.map((row, place) => ({ ...row, place }));
  const labels = rowLabels(rows, width);
  const points = rows.flatMap((row) => row.points.map((point, number) => ({ ...point, label: row.full ?? row.label, at: apart(row, number, labels) })));
  const { names, colour, symbol } = withColours(points);
  const domain = rangeWithOne(points);
  const drawing = styled(
    {
      title: chart.title,
      note: chart.note,
      width,
      ...labels.frame(0),
      height: rows.length * Math.max(labels.height + 6, POINT * Math.max(...rows.map((row) => row.points.length))) + 50,
      marginRight: 24,
      x: { domain, axis: null },
      symbol: { type: "identity" },
    },
    [
      Plot.gridX({ stroke: "var(--line)", strokeOpacity: 1, ticks: labels.ticks(24) }),
      Plot.axisX({ anchor: "bottom", ticks: labels.ticks(24), tickSize: 0, label: chart.axis, labelAnchor: "center", labelArrow: "none" }),
      Plot.ruleX([1], { stroke: "currentColor" }),
      Plot.link(
        points.filter(({ low }) => low !== null),
        { x1: "low", x2: "high", y1: "at", y2: "at", stroke: (point) => colour(point.series), strokeWidth: 1.5, clip: true },
      ),
      ...beyond(points, domain, colour),
      Plot.dot(points, {
        x: "value",
        y: "at",
        r: 3.5,
        fill: (point) => colour(point.series),
        symbol,
        title: (point) => `${point.label}\n${ofInterval(point)}\n${point.detail}`,
        tip: true,
      }),
      ...labels.marks,
    ],
  );
  return names.length > 1 ? [legend(names, colour), drawing] : [drawing];
}

/** Returns where a point of a row lies, so that the row's points are beside each other. */
const apart = (row, number, labels) =>
  row.place + labels.top + ((number + 0.5) / row.points.length) * (labels.bottom - labels.top);

function ofInterval({ value, low, high }) {
  const interval = low === null ? "no interval" : `95 % interval ${low.toFixed(3)} to ${high.toFixed(3)}`;
  return `${value.toFixed(3)}, ${interval}`;
}

/** Marks the intervals that are cut where the axis ends. */
function beyond(points, [least, most], colour) {
  const arrow = (cut, x, text, textAnchor) =>
    Plot.text(points.filter(cut), { x, y: "at", text: () => text, textAnchor, fill: (point) => colour(point.series) });
  return [
    arrow(({ high }) => high !== null && high > most, most, "▸", "end"),
    arrow(({ low }) => low !== null && low < least, least, "◂", "start"),
  ];
}

/**
 * Returns the range of an axis of ratios, from 0 at the least: it holds 1 and all values. One wide interval does not
 * press them together; intervals get as much room beside the values as these take.
 */
function rangeWithOne(points) {
  const values = [1, ...points.map(({ value }) => value)];
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const room = most - least || 0.05;
  const low = Math.max(least - room, Math.min(least, ...points.map((point) => point.low ?? least)) - 0.05 * room);
  const high = Math.min(most + room, Math.max(most, ...points.map((point) => point.high ?? most)) + 0.05 * room);
  return [Math.max(0, low), high];
}

/** Ratios over a share in percent. */
export function scatter(chart, width) {
  const { names, colour, symbol } = withColours(chart.points);
  const drawing = styled(
    {
      title: chart.title,
      note: chart.note,
      width,
      height: 380,
      marginLeft: 56,
      marginBottom: 42,
      x: { domain: [0, 100], axis: null, insetLeft: 10, insetRight: 10 },
      y: { domain: rangeWithOne(chart.points), axis: null },
      symbol: { type: "identity" },
    },
    [
      axisOf("x", [0, 20, 40, 60, 80, 100], (share) => `${share} %`, chart.x_axis),
      Plot.gridY({ stroke: "var(--line)", strokeOpacity: 1 }),
      Plot.axisY({ tickSize: 0, label: chart.axis, labelArrow: "none" }),
      Plot.ruleY([1], { stroke: "currentColor" }),
      Plot.link(
        chart.points.filter(({ low }) => low !== null),
        { x1: "x", x2: "x", y1: "low", y2: "high", stroke: (point) => colour(point.series), clip: true },
      ),
      Plot.dot(chart.points, {
        x: "x",
        y: "value",
        r: 4,
        fill: (point) => colour(point.series),
        symbol,
        title: (point) => `${point.series}\n${ofInterval(point)}\n${point.x.toFixed(1)} % covered, ${point.detail}`,
        tip: true,
      }),
    ],
  );
  return [legend(names, colour), drawing];
}

/** Kernels by their arithmetic intensity and rate, below the peaks of the GPU. */
export function roofline(chart, width) {
  const xs = chart.points.map(({ x }) => x);
  const ys = chart.points.map(({ y }) => y);
  const ridge = (peak) => peak / chart.dram_per_s;
  const ridges = chart.dram_per_s ? chart.ceilings.map(([, peak]) => ridge(peak)) : [];
  const x = [Math.min(...xs, ...ridges) / 3, Math.max(...xs, ...ridges) * 4];
  const y = [Math.min(...ys) / 3, Math.max(...ys, ...chart.ceilings.map(([, peak]) => peak)) * 2.5];
  const top = Math.max(...chart.ceilings.map(([, peak]) => peak), 0);
  const roofs = chart.ceilings.map(([name, peak]) => ({ name, peak, from: ridges.length ? ridge(peak) : x[0] }));
  const longest = Math.max(...chart.points.map(({ ns }) => ns));
  const named = chart.points.filter(({ ns }) => ns === longest).slice(0, 1);
  const memory = chart.dram_per_s && top ? [{ x1: x[0], y1: x[0] * chart.dram_per_s, x2: ridge(top), y2: top }] : [];
  return styled(
    {
      title: chart.title,
      note: chart.note,
      width,
      height: 420,
      marginLeft: 84,
      marginBottom: 42,
      marginTop: 24,
      x: { type: "log", domain: x, axis: null },
      y: { type: "log", domain: y, axis: null },
    },
    [
      axisOf("x", powers(x), (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 }), "arithmetic intensity (FLOP/byte)"),
      axisOf("y", powers(y), rate),
      Plot.link(memory, { x1: "x1", y1: "y1", x2: "x2", y2: "y2", stroke: "var(--copy)", strokeWidth: 2, clip: true }),
      Plot.link(roofs, { x1: "from", x2: x[1], y1: "peak", y2: "peak", stroke: "var(--compute)", strokeWidth: 2 }),
      Plot.text(roofs, { ...LABELS, x: x[1], y: "peak", text: (one) => `${one.name}: ${rate(one.peak)}`, textAnchor: "end", dy: -9 }),
      Plot.text(memory, {
        ...LABELS,
        x: ({ x1, x2 }) => Math.sqrt(x1 * x2),
        y: ({ y1, y2 }) => Math.sqrt(Math.max(y1, y[0]) * y2),
        text: () => `DRAM: ${(chart.dram_per_s / 1e9).toLocaleString("en", { maximumFractionDigits: 0 })} GB/s`,
        textAnchor: "end",
        dx: -10,
        dy: -6,
      }),
      Plot.dot(chart.points, {
        x: "x",
        y: "y",
        r: (point) => 3 + 12 * Math.sqrt(point.ns / longest),
        fill: (point) => (point.bound === "dram" ? "var(--copy)" : "var(--compute)"),
        fillOpacity: 0.75,
        stroke: "currentColor",
        strokeWidth: 0.7,
        title: (point) => `${point.label}\n${point.detail}`,
        tip: true,
      }),
      Plot.text(named, { ...LABELS, x: "x", y: "y", text: "label", textAnchor: "end", dx: -12, lineWidth: 20, textOverflow: "ellipsis" }),
    ],
  );
}

/** Returns the powers of ten in a range, and 2 and 5 times them where there are few. */
function powers([low, high]) {
  const found = [];
  for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high; power += 1) found.push(10 ** power);
  return found;
}

const WRITTEN = {
  ns: { text: duration, ticks: durationTickValues, format: durationTicks },
  pct: { text: (value) => percent(value / 100), format: () => (value) => `${value} %` },
  ratio: { text: (value) => value.toFixed(3), format: () => (value) => String(value) },
};

/** Panels one below the other, which share their points: those of a sweep. */
export function curves(chart, width) {
  const labels = chart.points.map((name, place) => ({ name, place }));
  return [
    ...(chart.panels[0].lines.length > 1 ? [legend(chart.panels[0].lines.map(({ name }) => name), (name) => seriesColour(chart.panels[0].lines.findIndex((line) => line.name === name)))] : []),
    ...chart.panels.map((panel, number) => panelOf(chart, panel, labels, width, number === chart.panels.length - 1)),
  ];
}

function panelOf(chart, panel, labels, width, last) {
  const written = WRITTEN[panel.unit];
  const points = panel.lines.flatMap((line, number) =>
    line.values.map((value, place) => ({
      place,
      value,
      number,
      line: line.name,
      low: line.low?.[place] ?? null,
      high: line.high?.[place] ?? null,
    })),
  );
  const known = points.flatMap(({ value, low, high }) => [value, low, high]).filter((value) => value !== null);
  const [least, most] = [Math.min(...known), Math.max(...known)];
  const domain = [panel.unit === "ratio" ? Math.max(0, least - 0.05 * (most - least || 1)) : 0, most * 1.05 || 1];
  const ticks = written.ticks?.(...domain, 5);
  const every = Math.max(1, Math.ceil(labels.length / Math.max(1, (width - 90) / 90)));
  return styled(
    {
      title: `${chart.title}: ${panel.title}`,
      note: chart.note,
      width,
      height: last ? 190 : 160,
      marginLeft: 76,
      marginTop: 26,
      marginBottom: last ? 44 : 14,
      x: { domain: [-0.3, labels.length - 0.7], axis: null },
      y: { domain, axis: null },
    },
    [
      Plot.gridY(...(ticks ? [ticks] : []), { stroke: "var(--line)", strokeOpacity: 1, ...(ticks ? {} : { ticks: 4 }) }),
      Plot.axisY({ ...(ticks ? { ticks } : { ticks: 4 }), tickFormat: written.format(most), tickSize: 0, label: null }),
      Plot.text([panel.title], { frameAnchor: "top-left", dy: -18, fill: "currentColor", fontWeight: 600, text: (one) => one }),
      Plot.link(
        points.filter(({ low }) => low !== null),
        { x1: "place", x2: "place", y1: "low", y2: "high", stroke: (point) => seriesColour(point.number) },
      ),
      Plot.line(points, { x: "place", y: "value", z: "line", stroke: (point) => seriesColour(point.number) }),
      Plot.dot(points.filter(({ value }) => value !== null), {
        x: "place",
        y: "value",
        fill: (point) => seriesColour(point.number),
        r: 4,
        title: (point) => `${labels[point.place].name}\n${point.line}: ${written.text(point.value)}`,
        tip: true,
      }),
      ...(last
        ? [
            Plot.text(
              labels.filter(({ place }) => place % every === 0),
              { x: "place", text: "name", frameAnchor: "bottom", dy: 16, lineWidth: 7.5, textOverflow: "ellipsis", fill: "currentColor" },
            ),
            Plot.text([chart.axis], { frameAnchor: "bottom", dy: 34, text: (one) => one, fill: "currentColor" }),
          ]
        : []),
    ],
  );
}
