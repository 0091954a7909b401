// The charts of times: of steps, phases, accounts, modes, and whatever divides into bars.
import * as Plot from "@observablehq/plot";
import { COLOURS, EM, LABELS, MOST_SHARE, axisOf, legend, rowLabels, seriesColour, styled } from "./chart_parts.js";
import { bytes, bytesTicks, duration, durationTicks, durationTickValues } from "./units.js";

/** Ranks whose phase differs by less than this share of the step are alike. */
const LIKE = 0.02;
const MOST_SAID = 8;

const series = (name) => COLOURS[name] ?? "var(--series-1)";

/** Bars, one for each row: of one value, or of parts that add up. */
export function bars(chart, width) {
  const inBytes = chart.unit === "bytes";
  const [written, ticksOf] = inBytes ? [bytes, bytesTicks] : [duration, durationTicks];
  const rows = chart.rows.map((row, place) => ({ ...row, place, total: sum(row.parts) }));
  const parts = rows.flatMap(stacked);
  const most = Math.max(1, ...rows.map((row) => Math.max(row.total, row.tick ?? 0)));
  const names = [...new Set(parts.map(({ name }) => name))].filter((name) => parts.some((part) => part.name === name && part.value));
  const labels = rowLabels(rows, width);
  const said = (row) => (labels.wide && row.detail ? `${written(row.total)} · ${row.detail}` : written(row.total));
  const space = labels.wide ? Math.min(320, MOST_SHARE * width, 16 + Math.max(...rows.map((row) => said(row).length)) * 7) : 74;
  const drawing = styled(
    {
      title: chart.title,
      note: chart.note,
      width,
      ...labels.frame(46),
      marginRight: space,
      x: { domain: [0, most], axis: null },
    },
    [
      axisOf("x", tickValues(most, labels.ticks(space), inBytes), ticksOf(most)),
      Plot.rect(parts, {
        x1: "low",
        x2: "high",
        ...labels.band,
        fill: (part) => series(part.name),
        stroke: "var(--background)",
        strokeWidth: parts.length > rows.length ? 0.5 : 0,
        title: (part) => [part.full ?? part.label, `${part.name}: ${written(part.value)}`, part.detail].filter(Boolean).join("\n"),
        tip: true,
      }),
      Plot.ruleX(
        rows.filter(({ tick }) => tick),
        {
          x: "tick",
          ...labels.band,
          stroke: "currentColor",
          strokeWidth: 2,
        },
      ),
      Plot.text(rows, {
        x: (row) => Math.max(row.total, row.tick ?? 0),
        y: labels.middle,
        text: said,
        textAnchor: "start",
        lineWidth: (space - 8) / EM,
        textOverflow: "ellipsis",
        dx: 6,
        fill: "currentColor",
      }),
      ...labels.marks,
    ],
  );
  return names.length > 1 ? [legend(names, series), drawing] : [drawing];
}

const sum = (parts) => parts.reduce((total, [, value]) => total + value, 0);

function stacked(row) {
  let high = 0;
  return row.parts.map(([name, value]) => {
    const low = high;
    high += value;
    return { ...row, name, value, low, high };
  });
}

/** Returns round ticks from 0 on: those of times are 1, 2 or 5 of a unit apart, and sizes are decimal too. */
const tickValues = (most, ticks, inBytes) => (inBytes ? undefined : durationTickValues(0, most, ticks));

/** The time of each step: a band over the ranks, and the steps that stand out by name. */
export function steps(chart, width) {
  const points = chart.step.map((step, place) => ({
    step,
    low: chart.min_ns[place],
    middle: chart.p50_ns[place],
    p95: chart.p95_ns[place],
    high: chart.max_ns[place],
  }));
  const [least, most] = [Math.min(...chart.min_ns), Math.max(...chart.max_ns)];
  const usual = points[points.length >> 1].middle;
  const space = Math.max(0, 0.3 * usual - (most - least)) / 2 + 0.08 * (most - least);
  const [low, high] = [Math.max(0, least - space), most + space];
  const last = Math.max(1, chart.step.at(-1));
  const band = (from, to, strength) =>
    Plot.areaY(points, { x: "step", y1: from, y2: to, fill: "var(--series-1)", fillOpacity: strength, clip: true });
  return styled(
    {
      title: chart.title,
      note: chart.note,
      width,
      height: 260,
      marginLeft: 70,
      marginTop: 18,
      marginBottom: 40,
      x: { domain: [chart.step[0], Math.max(chart.step[0] + 1, last)], axis: null },
      y: { domain: [low, high], axis: null },
    },
    [
      axisOf("y", durationTickValues(low, high), durationTicks(high)),
      axisOf("x", stepTicks(chart.step, width), (step) => step.toLocaleString("en"), "step"),
      ...(chart.ranks > 1 ? [band("low", "high", 0.22), band("middle", "p95", 0.28)] : []),
      Plot.lineY(points, { x: "step", y: "middle", stroke: "var(--series-1)", strokeWidth: 1.6 }),
      Plot.dot(chart.outliers, { x: "step", y: "wall_ns", r: 4.5, fill: "var(--wait)" }),
      ...["start", "end"].map((side) =>
        Plot.text(
          chart.outliers.filter(({ step }) => (side === "end") === step > 0.6 * last),
          { ...LABELS, x: "step", y: "wall_ns", text: ofOutlier, textAnchor: side, dy: -10 },
        ),
      ),
      Plot.tip(points, Plot.pointerX({ x: "step", y: "middle", title: (one) => ofStep(one, chart.ranks) })),
    ],
  );
}

const ofOutlier = (one) => `step ${one.step}, rank ${one.rank}: ${duration(one.wall_ns)}`;

function ofStep(one, ranks) {
  if (ranks === 1) return `step ${one.step}\n${duration(one.middle)}`;
  return `step ${one.step}\nslowest rank ${duration(one.high)}\nmedian rank ${duration(one.middle)}\nfastest rank ${duration(one.low)}`;
}

/** Returns whole numbers for the ticks of an axis of steps. */
function stepTicks(numbers, width) {
  const [first, last] = [numbers[0], numbers.at(-1)];
  const rough = Math.max(1, (last - first) / Math.max(2, width / 90));
  const power = 10 ** Math.floor(Math.log10(rough));
  const apart = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const ticks = [];
  for (let tick = Math.ceil(first / apart) * apart; tick <= last; tick += apart) ticks.push(tick);
  return ticks;
}

/** The time of each phase: a bar up to the median rank, a line from the fastest to the slowest, and who stands out. */
export function phases(chart, width) {
  const step = chart.phases.reduce((total, phase) => total + phase.median_ns, 0);
  const rows = chart.phases.map((phase, place) => ({ ...phase, place, far: outlier(phase, LIKE * step) }));
  const most = Math.max(1, ...rows.map(({ high_ns: high }) => high));
  const labels = rowLabels(rows, width);
  const said = (row) => [duration(row.median_ns), ...(row.far ? [`rank ${row.far.rank}: ${duration(row.far.value)}`] : [])].join(" · ");
  const space = labels.wide ? Math.min(MOST_SHARE * width, 16 + 7 * Math.max(...rows.map((row) => said(row).length))) : 74;
  return styled(
    {
      title: chart.title,
      note: chart.note,
      width,
      ...labels.frame(46),
      marginRight: space,
      x: { domain: [0, most], axis: null },
    },
    [
      axisOf("x", durationTickValues(0, most, labels.ticks(space)), durationTicks(most)),
      Plot.rect(rows, {
        x1: 0,
        x2: "median_ns",
        ...labels.band,
        fill: "var(--series-1)",
        title: ofPhase,
        tip: true,
      }),
      Plot.link(
        rows.filter((row) => row.high_ns > row.low_ns),
        { x1: "low_ns", x2: "high_ns", y1: labels.middle, y2: labels.middle, stroke: "currentColor", strokeWidth: 1.5 },
      ),
      Plot.dot(
        rows.filter(({ far }) => far),
        { x: (row) => row.far.value, y: labels.middle, r: 4.5, fill: "var(--wait)", stroke: "var(--background)" },
      ),
      Plot.text(rows, {
        x: (row) => Math.max(row.high_ns, row.median_ns),
        y: labels.middle,
        text: (row) => (labels.wide ? said(row) : duration(row.median_ns)),
        textAnchor: "start",
        dx: 8,
        fill: "currentColor",
      }),
      ...labels.marks,
    ],
  );
}

function ofPhase(phase) {
  const ranks = phase.points.slice(0, MOST_SAID).map(([rank, value, p95]) => `rank ${rank}: median ${duration(value)}, p95 ${duration(p95)}`);
  return [phase.label, ...ranks, ...(phase.points.length > MOST_SAID ? ["…"] : [])].join("\n");
}

/**
 * Returns the rank that is furthest from the median; of two that are as far, as those of two ranks are, the one with
 * more. Ranks that differ by less than `alike` are none.
 */
function outlier({ points, median_ns: median }, alike) {
  const away = points.map(([rank, value]) => ({ rank, value, more: value - median }));
  const [least, most] = [Math.min, Math.max].map((end) => away.find(({ more }) => more === end(...away.map((one) => one.more))));
  const far = most && most.more >= -0.99 * least.more ? most : least;
  return far && Math.abs(far.more) > alike ? far : null;
}

/** The modes of a benchmark and the bound that none of them beats. */
export function modes(chart, width) {
  const rows = chart.modes.map((label, place) => ({
    label,
    place,
    p50: chart.p50_ns[place],
    p95: chart.p95_ns[place],
    share: chart.bound_ns ? ` · ${((100 * chart.bound_ns) / chart.p50_ns[place]).toFixed(1)} % of the bound` : "",
  }));
  const most = Math.max(chart.bound_ns ?? 0, ...chart.p95_ns);
  const labels = rowLabels(rows, width);
  const space = labels.wide ? 190 : 70;
  const bound = chart.bound_ns
    ? [
        Plot.ruleX([chart.bound_ns], { stroke: "var(--wait)", strokeWidth: 2, strokeDasharray: "4,3" }),
        Plot.text([chart.bound_ns], { ...LABELS, x: (ns) => ns, text: () => "bound", frameAnchor: "top", dy: -14 }),
      ]
    : [];
  return styled(
    {
      title: chart.title,
      note: chart.note,
      width,
      ...labels.frame(64),
      marginTop: 26,
      marginRight: space,
      x: { domain: [0, most], axis: null },
    },
    [
      axisOf("x", durationTickValues(0, most, labels.ticks(space)), durationTicks(most)),
      Plot.rect(rows, { x1: 0, x2: "p50", ...labels.band, fill: "var(--series-1)" }),
      Plot.link(rows, { x1: "p50", x2: "p95", y1: labels.middle, y2: labels.middle, stroke: "currentColor" }),
      ...bound,
      Plot.text(rows, {
        x: "p95",
        y: labels.middle,
        text: (row) => `${duration(row.p50)}${labels.wide ? row.share : ""}`,
        textAnchor: "start",
        dx: 6,
        fill: "currentColor",
      }),
      ...labels.marks,
    ],
  );
}

/** Sizes over time, stacked: each lasts until the next moment. */
export function areas(chart, width) {
  const colours = new Map(chart.parts.map(([name, , number]) => [name, COLOURS[name] ?? seriesColour(number)]));
  const totals = chart.time_ns.map(() => 0);
  const layers = chart.parts.map(([name, sizes]) =>
    sizes.map((size, place) => {
      const low = totals[place];
      totals[place] += size;
      return { name, size, time: chart.time_ns[place], low, high: totals[place] };
    }),
  );
  const [first, last] = [chart.time_ns[0], Math.max(chart.time_ns[0] + 1, chart.time_ns.at(-1))];
  const most = Math.max(1, ...totals);
  const whole = chart.time_ns.map((time, place) => ({ time, total: totals[place], place }));
  const said = ({ time, total, place }) =>
    [`${duration(time)}: ${bytes(total)}`, ...chart.parts.map(([name, sizes]) => `${name} ${bytes(sizes[place])}`)].join("\n");
  const drawing = styled(
    {
      title: chart.title,
      note: chart.note,
      width,
      height: 300,
      marginLeft: 70,
      marginTop: 18,
      marginBottom: 40,
      x: { domain: [first, last], axis: null },
      y: { domain: [0, 1.05 * most], axis: null },
    },
    [
      axisOf("y", undefined, bytesTicks(most)),
      axisOf("x", durationTickValues(first, last, Math.max(2, width / 110)), durationTicks(last), "time"),
      ...layers.map((layer) =>
        Plot.areaY(layer, { x: "time", y1: "low", y2: "high", curve: "step-after", fill: colours.get(layer[0].name), fillOpacity: 0.85 }),
      ),
      Plot.ruleX([chart.peak_ns], { stroke: "currentColor", strokeDasharray: "4,3" }),
      Plot.text([chart.peak_ns], { ...LABELS, x: (ns) => ns, text: () => "peak", frameAnchor: "top", dy: -10 }),
      Plot.tip(whole, Plot.pointerX({ x: "time", y: "total", title: said })),
    ],
  );
  return [legend([...colours.keys()], (name) => colours.get(name)), drawing];
}
