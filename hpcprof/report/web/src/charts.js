// The charts of the pages. Each is drawn again when its width changes; its colours are those of page.css, so
// that they follow the theme without a new drawing.
import * as Plot from "@observablehq/plot";
import { areas, bars, modes, phases, steps } from "./time_charts.js";
import { curves, intervals, roofline, scatter } from "./kernel_charts.js";
import { LABELS, addChart, axisOf, rowLabels, styled } from "./chart_parts.js";
import { bytes, bytesTicks, duration, durationTicks, durationTickValues, percent } from "./units.js";

const DRAWN = { areas, bars, curves, intervals, modes, phases, roofline, scatter, steps };

/**
 * Draws charts one below the other.
 * @param {HTMLElement} element
 * @param {object[]} charts of hpcprof.report.page.chart_data
 */
export function drawCharts(element, charts) {
  for (const chart of charts) addChart(element, chart, DRAWN[chart.kind]);
}

/**
 * Draws how a time became another one: a bar for each part that adds to it or takes from it.
 * @param {HTMLElement} element
 * @param {object} data
 * @param {{name: string, ns: number}[]} data.parts which add up to `to` minus `from`
 * @param {number} data.from nanoseconds, as is `to`
 * @param {number} data.to
 * @param {[string, string]} [data.names] of both sides
 * @param {string} [data.title]
 * @param {string} [data.note]
 */
export function waterfall(element, data) {
  addChart(element, { title: "Where the difference comes from", note: "", ...data }, drawWaterfall);
}

const signed = (ns) => `${ns < 0 ? "-" : ns > 0 ? "+" : ""}${duration(Math.abs(ns))}`;

function drawWaterfall({ parts, from, to, names = ["A", "B"], title, note }, width) {
  let end = from;
  const rows = [{ label: names[0], low: 0, high: from, text: duration(from), fill: "var(--idle)", ends: from }];
  for (const { name, ns } of parts) {
    const start = end;
    end += ns;
    const fill = ns > 0 ? "var(--wait)" : "var(--overlap)";
    rows.push({ label: name, low: Math.min(start, end), high: Math.max(start, end), text: signed(ns), fill, ends: end });
  }
  rows.push({ label: names[1], low: 0, high: to, text: duration(to), fill: "var(--idle)", ends: to });
  rows.forEach((row, place) => (row.place = place));
  const most = Math.max(...rows.map(({ high }) => high));
  // The sides are much longer than their difference: the axis begins shortly before the shortest bar.
  const least = Math.min(...rows.map(({ ends }) => ends));
  const low = least > 0.5 * most ? Math.max(0, least - 0.6 * (most - least) - 0.002 * most) : 0;
  const labels = rowLabels(rows, width);
  return styled(
    {
      title,
      note,
      width,
      ...labels.frame(40),
      marginRight: 90,
      x: { domain: [low, most], axis: null },
    },
    [
      axisOf("x", durationTickValues(low, most, labels.ticks(90)), durationTicks(most), low > 0 ? "time of a step (the axis does not begin at 0)" : "time of a step"),
      Plot.rectX(rows, {
        x1: (row) => Math.max(low, row.low),
        x2: "high",
        ...labels.band,
        fill: "fill",
      }),
      Plot.ruleX(rows.slice(0, -1), {
        x: "ends",
        y1: (row) => row.place + labels.bottom,
        y2: (row) => row.place + 1 + labels.top,
        stroke: "currentColor",
        strokeOpacity: 0.5,
      }),
      Plot.text(rows, { x: "high", y: labels.middle, text: "text", textAnchor: "start", dx: 5, fill: "currentColor" }),
      ...labels.marks,
    ],
  );
}

/**
 * Draws a figure of the runs of a program over time.
 * @param {HTMLElement} element
 * @param {object} data
 * @param {string} [data.unit] of the figure: ns, or pct for percent
 * @param {{time: number, value: number, label: string}[]} data.points time in UTC seconds; the label names the run
 * @param {{time: number, probability: number, label?: string}[]} data.changes where the figure changed
 * @param {string} [data.title]
 * @param {string} [data.note]
 */
export function history(element, data) {
  addChart(element, { title: "Step time of the runs", note: "", ...data }, drawHistory);
}

/** Writes a time in UTC, as the table does: its day at midnight, else its day and hour. */
function utc(date) {
  const [day, time] = date.toISOString().split("T");
  return time.startsWith("00:00:00") ? day : `${day.slice(5)}\n${time.slice(0, time.startsWith(":00", 5) ? 5 : 8)}`;
}

/** Writers of the values of a metric and of the ticks of its axis up to the largest one, by its unit. */
const WRITERS = {
  ns: [duration, durationTicks],
  bytes: [bytes, bytesTicks],
  pct: [(value) => percent(value / 100), () => (value) => percent(value / 100)],
};

function writersOf(unit) {
  const name = { j: "J", mhz: "MHz" }[unit] ?? unit;
  const amount = (value) => `${value.toLocaleString("en", { maximumSignificantDigits: 4 })} ${name}`;
  return WRITERS[unit] ?? [amount, () => amount];
}

function drawHistory({ points, changes, title, note, unit = "ns" }, width) {
  const dated = points.map((point) => ({ ...point, date: new Date(1000 * point.time) }));
  const changed = changes.map((change) => ({
    date: new Date(1000 * change.time),
    text: [change.label, percent(change.probability)].filter(Boolean).join(", "),
  }));
  const most = Math.max(...points.map(({ value }) => value));
  const least = Math.min(...points.map(({ value }) => value));
  const low = Math.max(0, least - Math.max(0.1 * most, most - least));
  const high = 1.05 * most;
  const [written, ticks] = writersOf(unit);
  return styled(
    { title, note, width, height: 300, marginLeft: 64, marginTop: 30, x: { type: "utc", axis: null }, y: { domain: [low, high], axis: null } },
    [
      axisOf("y", unit === "ns" ? durationTickValues(low, high) : undefined, ticks(most)),
      Plot.axisX({ anchor: "bottom", ticks: Math.max(2, Math.floor(width / 120)), tickFormat: utc, label: null }),
      Plot.ruleX(changed, { x: "date", stroke: "var(--wait)", strokeWidth: 2, strokeDasharray: "4,3" }),
      Plot.text(changed, { ...LABELS, x: "date", text: "text", frameAnchor: "top", dy: -14 }),
      Plot.line(dated, { x: "date", y: "value", stroke: "var(--series-1)", strokeOpacity: 0.5 }),
      Plot.dot(dated, { x: "date", y: "value", fill: "var(--series-1)", r: 4, title: (one) => `${one.label}\n${written(one.value)}`, tip: true }),
    ],
  );
}
