// What a timeline finds out about its slices: arrows, sums and searches.

/**
 * Returns the arrows of a slice: between a call and the work that it launched, from a part of a collective to those
 * of the other ranks, and from the send of a message to its receive.
 * @returns {{kind: "launch" | "collective" | "message", from: object, to: object}[]}
 */
export function linksOf(timeline, { rank, track, row }) {
  const { slices } = timeline.model(rank, track);
  const here = { rank, track, row };
  const isCall = kindOf(timeline, rank, track) === "calls";
  const launched = others(timeline, "launch", slices.launch[row], (of, kind) => of === rank && (kind === "calls") !== isCall);
  const parts = others(timeline, "collective", slices.collective[row], (of) => of !== rank);
  return [
    ...launched.map((other) => ({ kind: "launch", from: isCall ? here : other, to: isCall ? other : here })),
    ...parts.map((other) => ({ kind: "collective", from: here, to: other })),
    ...messagesOf(timeline, here),
  ];
}

function messagesOf(timeline, here) {
  const { row, number } = timeline.model(here.rank, here.track).slices.messages;
  return [...row].flatMap((own, place) => {
    if (own !== here.row) return [];
    const ends = [...timeline.models.values()].flatMap((model) => otherEnds(model.slices, -number[place]));
    return ends.map((other) => ({ kind: "message", ...(number[place] > 0 ? { from: here, to: other } : { from: other, to: here }) }));
  });
}

function otherEnds({ rank, track, messages }, number) {
  const place = messages.number.indexOf(number);
  return place < 0 ? [] : [{ rank, track, row: messages.row[place] }];
}

/** Returns the slices whose value in a column is `value`, of the ranks and kinds of tracks that are wanted. */
function others(timeline, column, value, wanted) {
  if (value < 0) return [];
  const found = [];
  for (const model of timeline.models.values()) {
    const { rank, track } = model.slices;
    if (!wanted(rank, kindOf(timeline, rank, track))) continue;
    for (const row of model.rowsWith(column, value)) found.push({ rank, track, row });
  }
  return found.sort((a, b) => a.rank - b.rank);
}

const kindOf = (timeline, rank, track) => timeline.rank(rank).tracks.find(({ id }) => id === track).kind;

/** Returns the time by track and by name inside an extent, of the ranks that are unfolded or else of all. */
export function sums({ overview, layout, models }, start, end) {
  const unfolded = overview.ranks.filter(({ rank }) => !layout.foldedRanks.has(rank));
  const tracks = [];
  const names = new Map();
  for (const { rank, tracks: own } of unfolded.length ? unfolded : overview.ranks) {
    for (const { id, label, kind } of own) {
      const model = models.get(`${rank}/${id}`);
      if (!model || kind === "node") continue;
      const sum = model.sum(start, end, kind === "ranges" || kind === "calls");
      if (sum.count) tracks.push({ rank, label, time: sum.time, count: sum.count });
      for (const [number, of] of sum.names) {
        const name = number < 0 ? "(no name)" : model.slices.strings[number];
        const all = names.get(name) ?? { name, kind: of.kind, time: 0, count: 0 };
        names.set(name, { ...all, time: all.time + of.time, count: all.count + of.count });
      }
    }
  }
  return [tracks, [...names.values()].sort((a, b) => b.time - a.time)];
}

/** Lights the slices whose name contains a text in lower case, none without a text; returns how many there are. */
export function light(models, text) {
  const numbers = new Map();
  let total = 0;
  for (const model of models) {
    const { strings } = model.slices;
    if (text && !numbers.has(strings)) numbers.set(strings, containing(strings, text));
    model.search(text ? numbers.get(strings) : null);
    for (const places of model.matches ?? []) total += places.length;
  }
  return total;
}

/** Returns the slices that are lit, by time. */
export function lit(models) {
  const all = [];
  for (const model of models) {
    const { rank, track } = model.slices;
    model.matches?.forEach((places, depth) => {
      const { finest } = model.lanes[depth];
      for (const place of places) all.push({ time: finest.start[place], rank, track, row: finest.row[place] });
    });
  }
  return all.sort((a, b) => a.time - b.time || a.rank - b.rank || a.track - b.track);
}

/** Returns the numbers of the strings that contain a text in lower case. */
function containing(strings, text) {
  const numbers = new Set();
  strings.forEach((one, number) => {
    if (one.toLowerCase().includes(text)) numbers.add(number);
  });
  return numbers;
}
