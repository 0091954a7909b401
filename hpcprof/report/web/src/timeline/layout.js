// Where the rows of a timeline are: a header for each rank, and below it its tracks, unless they are folded.

export const RULER = 30;
const HEADER = 22;
const LANE = 17;
const FOLDED = 9;
const GAP = 3;
/** The label of the track of ranges where their work is on the GPU. */
const ON_GPU = "Ranges on the GPU";

/**
 * @typedef {object} Row
 * @property {"rank" | "track"} type
 * @property {import("./source.js").Rank} of
 * @property {import("./source.js").Track} [track]
 * @property {number} top from the top of all rows
 * @property {number} height
 * @property {number} lane the height of a level
 * @property {boolean} folded
 */

/** Which rows there are, and which of them are folded. */
export class Layout {
  /** @param {import("./source.js").Rank[]} ranks */
  constructor(ranks, open) {
    this.ranks = ranks;
    this.foldedRanks = new Set(ranks.slice(open).map(({ rank }) => rank));
    this.foldedTracks = new Set();
    this.arrange();
  }

  /** Folds or unfolds a rank or one of its tracks. */
  toggle(rank, track = null) {
    const [set, key] = track === null ? [this.foldedRanks, rank] : [this.foldedTracks, `${rank}/${track}`];
    if (!set.delete(key)) set.add(key);
    this.arrange();
  }

  /** Folds or unfolds all ranks and tracks. */
  foldAll(folded) {
    this.foldedRanks = new Set(folded ? this.ranks.map(({ rank }) => rank) : []);
    if (!folded) this.foldedTracks.clear();
    this.arrange();
  }

  /**
   * Folds until all rows fit into a height: calls, then the ranges of threads, those with the most levels first, then
   * ranges on the GPU, and last all ranks but one.
   */
  fit(height) {
    const open = this.ranks.filter(({ rank }) => !this.foldedRanks.has(rank));
    const onHost = ({ kind, label }) => kind === "ranges" && label !== ON_GPU;
    const levels = open.flatMap(({ tracks }) => tracks.filter(onHost).map((track) => track.levels));
    const depths = [...new Set(levels)].sort((a, b) => b - a);
    const stages = [
      ({ kind }) => kind === "calls",
      ...depths.map((depth) => (track) => onHost(track) && track.levels >= depth),
      ({ kind }) => kind === "ranges",
    ];
    for (const folds of stages) {
      if (this.height <= height) return;
      for (const { rank, tracks } of open) {
        for (const { id } of tracks.filter(folds)) this.foldedTracks.add(`${rank}/${id}`);
      }
      this.arrange();
    }
    if (this.height <= height || open.length < 2) return;
    this.foldedTracks.clear();
    this.foldedRanks = new Set(this.ranks.slice(1).map(({ rank }) => rank));
    this.arrange();
  }

  arrange() {
    /** @type {Row[]} */
    this.rows = [];
    let top = RULER;
    const add = (row) => {
      this.rows.push({ ...row, top });
      top += row.height;
    };
    for (const of of this.ranks) {
      const folded = this.foldedRanks.has(of.rank);
      add({ type: "rank", of, height: HEADER, lane: HEADER, folded });
      for (const track of folded ? [] : of.tracks) {
        const small = this.foldedTracks.has(`${of.rank}/${track.id}`);
        const lane = small ? FOLDED : LANE;
        add({ type: "track", of, track, height: (small ? 1 : track.levels) * lane + GAP, lane, folded: small });
      }
    }
    this.height = top;
  }

  /** Returns the row at a distance from the top of all rows; undefined below them. */
  at(y) {
    return this.rows.find((row) => y >= row.top && y < row.top + row.height);
  }

  /** Returns the rows that are at least partly between two distances from the top. */
  between(low, high) {
    return this.rows.filter((row) => row.top < high && row.top + row.height > low);
  }

  /** Returns where a slice of a track is: the top and the height of its level, or of the rank if it is folded. */
  place(rank, track, depth) {
    const own = this.rows.filter((row) => row.of.rank === rank);
    const row = own.find((one) => one.track?.id === track) ?? own[0];
    const level = row.type === "rank" || row.folded ? 0 : depth;
    return { top: row.top + level * row.lane, height: row.lane };
  }
}
