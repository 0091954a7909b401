// The slices of a track, ready to be drawn and searched: a list for each level, and coarser lists of it in which
// slices that are too short to see are one.

const FINEST = 64;
const COARSER = 4;
const FEWEST = 256;

/** Returns the first place of a sorted column whose value is greater than a value. */
export function after(column, value, low = 0, high = column.length) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (column[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The slices of one level in their order: columns, with the row in the track, how many there are, and their time. */
class Level {
  constructor(count) {
    this.start = new Float64Array(count);
    this.end = new Float64Array(count);
    this.busy = new Float64Array(count);
    this.row = new Int32Array(count);
    this.count = new Int32Array(count);
    this.length = count;
  }

  /** Returns the places of the first slice that ends after `start` and of the first that starts at `end` or later. */
  between(start, end) {
    return [after(this.end, start), after(this.start, end)];
  }
}

/** A level and its coarser versions. */
class Lane {
  constructor(slices, rows) {
    const finest = new Level(rows.length);
    rows.forEach((row, place) => {
      finest.start[place] = slices.start[row];
      finest.end[place] = slices.end[row];
      finest.busy[place] = slices.end[row] - slices.start[row];
      finest.row[place] = row;
      finest.count[place] = 1;
    });
    this.levels = [{ width: 0, level: finest }];
    this.whole = rows.length ? finest.end[rows.length - 1] - finest.start[0] : 0;
  }

  get finest() {
    return this.levels[0].level;
  }

  /** Returns the finest version whose merged slices are at least `width` long. */
  atWidth(width) {
    let last = this.levels.at(-1);
    while (last.width < width && last.level.length > FEWEST && last.width < this.whole) {
      const next = last.width === 0 ? FINEST : last.width * COARSER;
      this.levels.push({ width: next, level: coarser(last.level, next) });
      last = this.levels.at(-1);
    }
    return (this.levels.find((one) => one.width >= width) ?? last).level;
  }
}

/** Joins neighbours that together are no longer than a width; the longest of them gives the row. */
function coarser(level, width) {
  const result = new Level(level.length);
  let at = -1;
  let longest = 0;
  for (let place = 0; place < level.length; place += 1) {
    const length = level.busy[place];
    if (at >= 0 && level.end[place] - result.start[at] <= width) {
      result.end[at] = level.end[place];
      result.busy[at] += length;
      result.count[at] += level.count[place];
      if (length > longest) {
        longest = length;
        result.row[at] = level.row[place];
      }
    } else {
      at += 1;
      longest = length;
      result.start[at] = level.start[place];
      result.end[at] = level.end[place];
      result.busy[at] = length;
      result.row[at] = level.row[place];
      result.count[at] = level.count[place];
    }
  }
  for (const name of ["start", "end", "busy", "row", "count"]) result[name] = result[name].slice(0, at + 1);
  result.length = at + 1;
  return result;
}

/** The slices of a track. */
export class TrackModel {
  /** @param {import("./source.js").TrackSlices} slices */
  constructor(slices) {
    this.slices = slices;
    const rows = [];
    slices.depth.forEach((depth, row) => (rows[depth] ??= []).push(row));
    this.lanes = Array.from(rows, (own) => new Lane(slices, own ?? []));
    this.matches = null;
  }

  /** Returns the whole name of a slice. */
  name(row) {
    const number = this.slices.name[row];
    return number < 0 ? "(no name)" : this.slices.strings[number];
  }

  /** Returns the name of a slice for small places. */
  shortName(row) {
    return this.slices.short[this.slices.name[row]] ?? this.name(row);
  }

  /** Returns the row of the slice of a depth at a time, or the nearest one up to `near` away; -1 if there is none. */
  at(depth, time, near) {
    const lane = this.lanes[depth]?.finest;
    if (!lane) return -1;
    const next = after(lane.start, time);
    let best = -1;
    let nearest = near;
    for (const place of [next - 1, next]) {
      if (place < 0 || place >= lane.length) continue;
      const away = Math.max(lane.start[place] - time, time - lane.end[place], 0);
      if (away < nearest || (away === 0 && best < 0)) [best, nearest] = [lane.row[place], away];
    }
    return best;
  }

  /** Keeps which slices have one of some names, the numbers of strings; null for no search. */
  search(wanted) {
    if (wanted === null) {
      this.matches = null;
      return;
    }
    this.matches = this.lanes.map(({ finest }) => {
      const places = [];
      for (let place = 0; place < finest.length; place += 1) {
        if (wanted.has(this.slices.name[finest.row[place]])) places.push(place);
      }
      return Int32Array.from(places);
    });
  }

  /** Returns all rows whose value in a column is `value`. */
  rowsWith(column, value) {
    const rows = [];
    const values = this.slices[column];
    for (let row = values.indexOf(value); row >= 0; row = values.indexOf(value, row + 1)) rows.push(row);
    return rows;
  }

  /**
   * Sums up the time of slices inside an extent.
   * @returns {{time: number, count: number, names: Map<number, {time: number, count: number, kind: number}>}} of which
   *   `time` and `count` are of the top level for nested slices, and of all levels for work of the GPU
   */
  sum(start, end, nested) {
    const { slices } = this;
    const found = { time: 0, count: 0, names: new Map() };
    this.lanes.forEach(({ finest }, depth) => {
      const [first, last] = finest.between(start, end);
      for (let place = first; place < last; place += 1) {
        const row = finest.row[place];
        const time = Math.min(finest.end[place], end) - Math.max(finest.start[place], start);
        if (depth === 0 || !nested) {
          found.time += time;
          found.count += 1;
        }
        const number = slices.name[row];
        const of = found.names.get(number);
        if (of) {
          of.time += time;
          of.count += 1;
        } else found.names.set(number, { time, count: 1, kind: slices.kind[row] });
      }
    });
    return found;
  }
}
