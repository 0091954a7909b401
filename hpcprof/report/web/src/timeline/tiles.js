// The source of a timeline whose slices come from hpcprof serve, in tiles: the one tile of level 0 is the whole run, and
// each level below has twice as many tiles of half the time.
import { embeddedSource } from "./embedded.js";
import { extent } from "./source.js";
import { Timeline } from "./timeline.js";

const TILE_PIXELS = 1024;
const MOST_TILES = 3000;
const RANKS_A_REQUEST = 8;

/** Draws the timeline of a run whose tiles are at an address of the API. */
export function drawTiles(element, { address }) {
  const problem = document.createElement("p");
  problem.className = "warning";
  problem.setAttribute("role", "status");
  problem.hidden = true;
  element.append(problem);
  const say = (text) => {
    problem.textContent = text;
    problem.hidden = text === "";
  };
  return new Timeline(element, tilesSource(address, say)).ready;
}

/**
 * Returns the source of a run.
 * @param {string} address of the timeline of the run in the API
 * @param {(problem: string) => void} say tells the reader that tiles cannot be had, or by "" that they can again
 * @returns {import("./source.js").Source}
 */
export function tilesSource(address, say = () => {}) {
  const tiles = new Tiles(address, say);
  return { overview: () => tiles.overview(), slices: (request) => tiles.slices(request) };
}

class Tiles {
  constructor(address, say) {
    this.address = address;
    this.say = say;
    this.asked = 0;
    this.kept = new Map();
    this.answers = new Map();
  }

  async overview() {
    const found = await fetched(this.address);
    this.span = found.span;
    this.levels = found.levels;
    const ranks = found.ranks.map(({ rank, uncertainty_ns, steps, tracks }) => ({
      rank,
      uncertainty: uncertainty_ns,
      steps: steps.map(([step, start, end]) => ({ step, start, end })),
      tracks: (tracks ?? found.tracks).map(({ kind, label, levels }, id) => ({ id, kind, label, levels })),
    }));
    this.slots = new Map(ranks.map(({ rank, tracks }) => [rank, new Slots(tracks)]));
    const names = new Map([[found.median, "Median step"], [found.worst, "Worst step"]]);
    if (found.median === found.worst) names.set(found.median, "Step");
    const places = [...names].filter(([step]) => step >= 0).map(([step, name]) => ({ label: `${name} ${step}`, ...extent(ranks, step) }));
    places.push({ label: "All steps", start: found.start, end: found.end });
    const { start, end, notes } = found;
    return { start, end, ranks, covered: [[start, end]], places, notes, complete: false };
  }

  /** Returns the slices of some ranks in an extent, at the level whose tiles are as wide as some pixels. */
  async slices({ ranks, start, end, pixels }) {
    this.asked += 1;
    const { asked } = this;
    const wanted = ((end - start) * TILE_PIXELS) / pixels;
    const level = Math.min(Math.max(Math.ceil(Math.log2(this.span / wanted)), 0), this.levels - 1);
    const width = this.span / 2 ** level;
    const first = Math.max(Math.floor(start / width), 0);
    const last = Math.min(Math.floor(end / width), 2 ** level - 1);
    const requests = [];
    for (let index = first; index <= last; index += 1) {
      const lacking = ranks.filter((rank) => !this.kept.has(`${rank}/${level}/${index}`));
      for (let at = 0; at < lacking.length; at += RANKS_A_REQUEST) {
        requests.push(this.#load(lacking.slice(at, at + RANKS_A_REQUEST), level, index));
      }
    }
    try {
      await Promise.all(requests);
      this.say("");
    } catch (error) {
      this.say(`Some of the timeline is missing: ${error.message}`);
    }
    // A later question is about what is in sight by now.
    if (asked !== this.asked) return [];
    return ranks.flatMap((rank) => this.#joined(rank, level, first, last));
  }

  async #load(ranks, level, index) {
    const { tiles } = await fetched(`${this.address}/${level}/${index}?ranks=${ranks.join(",")}`);
    for (const tile of tiles) {
      const slots = this.slots.get(tile.rank);
      for (const [kind, label] of tile.labels) slots.add(kind, label);
      const key = `${tile.rank}/${level}/${index}`;
      this.kept.set(key, await unpacked(tile, slots));
    }
    while (this.kept.size > MOST_TILES) this.kept.delete(this.kept.keys().next().value);
  }

  /** Returns the tracks of a rank over neighbouring tiles. The same tiles give the same objects. */
  #joined(rank, level, first, last) {
    const key = `${level}/${first}/${last}`;
    const before = this.answers.get(rank);
    if (before?.key === key) return before.tracks;
    const parts = new Map();
    for (let index = first; index <= last; index += 1) {
      for (const slices of this.kept.get(`${rank}/${level}/${index}`) ?? []) {
        if (!parts.has(slices.track)) parts.set(slices.track, []);
        parts.get(slices.track).push(slices);
      }
    }
    const all = [...this.slots.get(rank).ids()];
    const tracks = all.map((track) => joined(rank, track, parts.get(track) ?? []));
    this.answers.set(rank, { key, tracks });
    return tracks;
  }
}

/** Which track of the overview each track of the tiles is: that of its label, or else the next one of its kind. */
class Slots {
  constructor(tracks) {
    this.tracks = tracks;
    this.known = new Map();
    this.taken = new Set();
  }

  add(kind, label) {
    const name = `${kind}/${label}`;
    if (this.known.has(name)) return;
    const own = this.tracks.filter((track) => track.kind === kind);
    const slot = own.find((track) => track.label === label) ?? own.find(({ id }) => !this.taken.has(id)) ?? own.at(-1);
    if (!slot) return;
    this.taken.add(slot.id);
    this.known.set(name, slot);
  }

  of(kind, label) {
    return this.known.get(`${kind}/${label}`);
  }

  ids() {
    return this.tracks.map(({ id }) => id);
  }
}

/** Returns the slices of a tile by track; what is deeper than the track has levels is drawn on its last one. */
async function unpacked(tile, slots) {
  const found = await embeddedSource({ ...tile, ranks: [tile] }).slices();
  return found.flatMap((slices, place) => {
    const slot = slots.of(tile.tracks[place].kind, tile.tracks[place].label);
    if (!slot) return [];
    return [{ ...slices, track: slot.id, depth: slices.depth.map((depth) => Math.min(depth, slot.levels - 1)) }];
  });
}

/** Returns the slices of neighbouring tiles as those of one track; one that crosses a border is in both tiles. */
function joined(rank, track, parts) {
  const strings = [];
  const number = new Map();
  const short = {};
  const family = {};
  const rows = [];
  const seen = new Set();
  for (const part of parts) {
    const own = part.strings.map((text, at) => {
      if (!number.has(text)) number.set(text, strings.push(text) - 1);
      if (part.short[at] !== undefined) short[number.get(text)] = part.short[at];
      if (part.family[at] !== undefined) family[number.get(text)] = part.family[at];
      return number.get(text);
    });
    for (let row = 0; row < part.start.length; row += 1) {
      const key = `${part.start[row]}/${part.end[row]}/${part.depth[row]}`;
      if (parts.length > 1 && seen.has(key)) continue;
      seen.add(key);
      rows.push([part, row, own]);
    }
  }
  const messages = { row: [], number: [] };
  rows.sort(([a, i], [b, j]) => a.start[i] - b.start[j] || b.end[j] - a.end[i]);
  const places = new Map(parts.map((part) => [part, new Map()]));
  rows.forEach(([part, row], place) => places.get(part).set(row, place));
  for (const part of parts) {
    part.messages.row.forEach((row, at) => {
      const place = places.get(part).get(row);
      if (place === undefined) return;
      messages.row.push(place);
      messages.number.push(part.messages.number[at]);
    });
  }
  const column = (Kind, value) => Kind.from(rows, value);
  const text = (name) => column(Int32Array, ([part, row, own]) => (part[name][row] < 0 ? -1 : own[part[name][row]]));
  const plain = (Kind, name) => column(Kind, ([part, row]) => part[name][row]);
  return {
    rank,
    track,
    strings,
    short,
    family,
    start: plain(Float64Array, "start"),
    end: plain(Float64Array, "end"),
    depth: plain(Uint8Array, "depth"),
    kind: plain(Uint8Array, "kind"),
    name: text("name"),
    info: text("info"),
    launch: plain(Int32Array, "launch"),
    collective: plain(Float64Array, "collective"),
    messages,
  };
}

async function fetched(address) {
  const answer = await fetch(address);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}
