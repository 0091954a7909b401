// The source of a timeline whose slices are inside the page, as report/page/timeline_data.py writes them.
import { extent } from "./source.js";
import { Timeline } from "./timeline.js";

/** Draws the timeline of a page; without slices it says why there are none. */
export function drawTimeline(element, data, options = {}) {
  if (data.ranks.length) return new Timeline(element, embeddedSource(data), options).ready;
  const title = document.createElement("h2");
  title.textContent = options.title ?? "Timeline";
  element.append(title, ...data.notes.map(note));
  return Promise.resolve();
}

function note(text) {
  const said = document.createElement("p");
  said.className = "note";
  said.textContent = text;
  return said;
}

/**
 * Returns the source of a block.
 * @returns {import("./source.js").Source}
 */
export function embeddedSource(data) {
  const slices = data.ranks.flatMap((of) => of.tracks.map((track, id) => unpacked(of.rank, id, track, data)));
  return { overview: async () => overview(data, slices), slices: async () => slices };
}

function overview(data, slices) {
  const levels = new Map(slices.map((one) => [`${one.rank}/${one.track}`, 1 + one.depth.reduce((a, b) => Math.max(a, b), 0)]));
  const ranks = data.ranks.map(({ rank, uncertainty_ns, steps, tracks }) => ({
    rank,
    uncertainty: uncertainty_ns,
    steps: steps.map(([step, start, end]) => ({ step, start, end })),
    tracks: tracks.map(({ kind, label }, id) => ({ id, kind, label, levels: levels.get(`${rank}/${id}`) })),
  }));
  const names = new Map([[data.median, "Median step"], [data.worst, "Worst step"]]);
  if (data.median === data.worst) names.set(data.median, "Step");
  const places = [...names].map(([step, name]) => ({ label: `${name} ${step}`, ...extent(ranks, step) }));
  const covered = joined(ranks.flatMap(({ steps }) => steps.map(({ start, end }) => [start, end])));
  const [start, end] = [covered[0][0], covered.at(-1)[1]];
  return { start, end, ranks, covered, places, notes: data.notes, complete: true };
}

function joined(extents) {
  const found = [];
  for (const [start, end] of extents.sort((a, b) => a[0] - b[0])) {
    if (found.length && start <= found.at(-1)[1]) found.at(-1)[1] = Math.max(found.at(-1)[1], end);
    else found.push([start, end]);
  }
  return found;
}

function unpacked(rank, id, track, data) {
  const { count } = track;
  const start = summed(Float64Array, track.start, count);
  const lengths = filled(Float64Array, track.duration, count);
  return {
    rank,
    track: id,
    strings: data.strings,
    short: data.short,
    family: data.family,
    start,
    end: lengths.map((length, row) => start[row] + length),
    depth: filled(Uint8Array, track.depth, count),
    kind: filled(Uint8Array, track.slice_kind, count),
    name: filled(Int32Array, track.name, count),
    info: filled(Int32Array, track.info, count),
    height: track.height === undefined ? undefined : filled(Uint8Array, track.height, count),
    launch: summed(Int32Array, track.launch, count),
    collective: summed(Float64Array, track.collective, count),
    messages: { row: Int32Array.from(track.messages.row), number: Float64Array.from(track.messages.number) },
  };
}

/** A column of one value is written as that value. */
function filled(Kind, column, count) {
  return typeof column === "number" ? new Kind(count).fill(column) : Kind.from(column);
}

/** Returns a column that is written as the differences between its values. */
function summed(Kind, column, count) {
  const values = filled(Kind, column, count);
  if (typeof column !== "number") for (let row = 1; row < count; row += 1) values[row] += values[row - 1];
  return values;
}
