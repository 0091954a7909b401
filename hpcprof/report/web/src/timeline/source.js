// What a timeline shows comes from a source: the block inside a page (embedded.js) or a server (tiles.js). The
// timeline knows only this interface. Times are nanoseconds since any moment that all ranks share, as numbers.

/**
 * @typedef {object} Source
 * @property {() => Promise<Overview>} overview asked once
 * @property {(request: Request) => Promise<TrackSlices[]>} slices asked again whenever the view leaves what was
 *   answered, or shows it finer than it was asked for; tracks that are not in the answer stay as they are
 *
 * @typedef {object} Overview
 * @property {number} start @property {number} end the extent of all there is to see
 * @property {Rank[]} ranks from top to bottom
 * @property {[number, number][]} covered the extents that the source has slices for; the rest is drawn hatched
 * @property {{label: string, start: number, end: number}[]} places extents worth a button; the first is shown first
 * @property {string[]} notes sentences for the reader
 * @property {boolean} complete whether one answer of `slices` for all ranks and times is all there is
 *
 * @typedef {object} Rank
 * @property {number} rank
 * @property {number | null} uncertainty how far off its clock may be; null if unknown
 * @property {{step: number, start: number, end: number}[]} steps by start
 * @property {Track[]} tracks from top to bottom
 *
 * @typedef {object} Track
 * @property {number} id unique in the rank
 * @property {"ranges" | "communication" | "stream" | "calls" | "node"} kind
 * @property {string} label
 * @property {number} levels how many levels its slices have, at least 1
 *
 * @typedef {object} Request
 * @property {number[]} ranks those that are in sight
 * @property {number} start @property {number} end
 * @property {number} pixels the width of that extent on the screen
 *
 * The slices of a track as columns, by start; of those that start together the longer one first. Slices of one
 * depth do not overlap. `name` and `info` are numbers of `strings`, -1 for none, `short` has the short names of some,
 * and `family` the families of kernels. A call and the work that it launched share `launch`, which is unique in the rank, and the parts of a
 * collective on its ranks share `collective`; -1 stands for none. `messages` are sends and receives by the rows that
 * carry them out, which may be several for a row: both ends have the same number, which is below 0 for a receive.
 * @typedef {object} TrackSlices
 * @property {number} rank
 * @property {number} track the id of the track
 * @property {string[]} strings
 * @property {Record<number, string>} short @property {Record<number, string>} family
 * @property {Float64Array} start @property {Float64Array} end
 * @property {Uint8Array} depth
 * @property {Uint8Array} kind an index of `KINDS`, and `MERGED`
 * @property {Int32Array} name @property {Int32Array} info
 * @property {Uint8Array} [height] of samples of a node, in percent of the highest one
 * @property {Int32Array} launch @property {Float64Array} collective
 * @property {{row: Int32Array, number: Float64Array}} messages
 */

/** Up to how many lengths of a step its ranks may take together. */
const MOST_STEPS_WIDE = 10;

/** What a slice is: its word, and the variable of page.css that is its colour. */
export const KINDS = [
  { word: "Compute", colour: "--compute" },
  { word: "Communication", colour: "--exposed-comm" },
  { word: "Copies", colour: "--copy" },
  { word: "Ranges", colour: "--overlap" },
  { word: "API calls", colour: "--idle" },
  { word: "Waiting for the GPU", colour: "--wait" },
  { word: "MPI calls", colour: "--mpi" },
  { word: "MPI requests", colour: "--mpi-request" },
  { word: "Samples of the node", colour: "--sample" },
];

/** The families of compute kernels: their words in the legend, and the variables of page.css that are their colours. */
export const FAMILIES = {
  "matrix product": { word: "Matrix products", colour: "--matrix" },
  convolution: { word: "Convolutions", colour: "--convolution" },
  attention: { word: "Attention", colour: "--attention" },
  normalization: { word: "Normalizations, softmax, reductions", colour: "--reduction" },
  softmax: { word: "Normalizations, softmax, reductions", colour: "--reduction" },
  reduction: { word: "Normalizations, softmax, reductions", colour: "--reduction" },
  elementwise: { word: "Elementwise kernels", colour: "--elementwise" },
};

/** Returns the word and the colour of a slice of a track. */
export function look(slices, row) {
  const kind = slices.kind[row] % MERGED;
  return (kind === 0 && FAMILIES[slices.family[slices.name[row]]]) || KINDS[kind];
}

/** The kind of merged slices is this and the kind that takes most of their time. */
export const MERGED = 16;

/**
 * Returns the extent of a step over its ranks; where their clocks are too far apart for that to show anything, that of
 * the first rank which has it.
 */
export function extent(ranks, step) {
  const own = ranks.flatMap(({ steps }) => steps.filter((one) => one.step === step));
  const [start, end] = [Math.min(...own.map((one) => one.start)), Math.max(...own.map((one) => one.end))];
  const longest = Math.max(...own.map((one) => one.end - one.start));
  return end - start > MOST_STEPS_WIDE * longest ? { start: own[0].start, end: own[0].end } : { start, end };
}
