// What is selected in a timeline, as text: one slice, or the sums of an extent of time.
import { count, duration, percent } from "../units.js";
import { button, make } from "./dom.js";
import { exact } from "./ruler.js";
import { KINDS, MERGED, look } from "./source.js";

const MOST_NAMES = 50;

/** The place below a timeline that tells what is selected. */
export class Panel {
  constructor(timeline) {
    this.timeline = timeline;
    this.element = make("div", { className: "timeline-panel", role: "region", "aria-label": `${timeline.options.title}: what is selected` });
    this.clear();
  }

  clear() {
    const hint = "Click a slice for its details. Drag on the ruler to sum up the time of all slices in an extent.";
    this.element.replaceChildren(make("p", { className: "note no-print", textContent: hint }));
  }

  /** Says a sentence. */
  say(text) {
    this.element.replaceChildren(make("p", { className: "note", textContent: text }));
  }

  /** Shows a slice with all that is known of it. */
  slice(selected, links) {
    const { rank, track, row } = selected;
    const model = this.timeline.model(rank, track);
    const { slices } = model;
    const { label } = this.timeline.rank(rank).tracks.find(({ id }) => id === track);
    const step = this.timeline.stepAt(rank, slices.start[row]);
    const facts = [
      ["Name", model.name(row)],
      ["Kind", `${look(slices, row).word}${slices.kind[row] >= MERGED ? SEVERAL : ""}`],
      ["Start", exact(slices.start[row])],
      ["Duration", `${duration(slices.end[row] - slices.start[row])} (${count(slices.end[row] - slices.start[row])} ns)`],
      ["Rank", `${rank}`],
      ["Track", label],
      ...(step === null ? [] : [["Step", `${step}`]]),
      ...(slices.info[row] < 0 ? [] : [["Details", slices.strings[slices.info[row]]]]),
    ];
    const text = facts.map((fact) => fact.join(": ")).join("\n");
    const copy = button("Copy", () => copied(text, copy), { className: "no-print" });
    this.element.replaceChildren(
      make("dl", {}, ...facts.flatMap(([key, value]) => [make("dt", { textContent: key }), make("dd", { textContent: value })])),
      make("p", { className: "timeline-bar" }, copy, ...links.map((link) => this.#link(link, selected))),
    );
  }

  /** A button that selects the other end of an arrow. */
  #link({ from, to, kind }, { rank, track, row }) {
    const forward = from.rank === rank && from.track === track && from.row === row;
    const other = forward ? to : from;
    const model = this.timeline.model(other.rank, other.track);
    const apart = model.slices.start[other.row] - this.timeline.model(rank, track).slices.start[row];
    const what = {
      launch: forward ? "launches" : "launched by",
      collective: `on rank ${other.rank}:`,
      message: `${forward ? "sends to" : "receives from"} rank ${other.rank}:`,
    }[kind];
    const when = `${duration(Math.abs(apart))} ${apart < 0 ? "earlier" : "later"}`;
    return button(`${what} ${folded(model.shortName(other.row))}, ${when}`, () => this.timeline.select(other, true));
  }

  /** Shows the sums of an extent of time. */
  area({ start, end }, tracks, names) {
    const span = end - start;
    const shown = names.slice(0, MOST_NAMES);
    const more = names.length - shown.length;
    const hidden = `${count(more)} more ${more === 1 ? "name" : "names"} with less time`;
    this.element.replaceChildren(
      make("p", { textContent: `${duration(span)} selected, from ${exact(start)} to ${exact(end)}.` }),
      table("Time by track", ["Rank", "Track", "Slices", "Time", "Of the selection"], tracks.map((of) => [
        ...[`${of.rank}`, of.label, count(of.count), duration(of.time), percent(of.time / span)],
      ])),
      table("Time by name", ["Name", "Kind", "Slices", "Time", "Mean"], shown.map((of) => [
        ...[of.name, worded(of.kind), count(of.count), duration(of.time), duration(of.time / of.count)],
      ])),
      more > 0 ? make("p", { className: "note", textContent: hidden }) : "",
    );
  }
}

const TEXTS = new Set(["Track", "Name", "Kind"]);

function table(title, headers, rows) {
  const cell = (tag, text, header) => make(tag, { textContent: text, className: TEXTS.has(header) ? "text" : "" });
  const line = (tag, texts) => make("tr", {}, ...texts.map((text, i) => cell(tag, text, headers[i])));
  const head = line("th", headers);
  for (const header of head.children) header.scope = "col";
  const body = rows.map((texts) => line("td", texts));
  const caption = make("caption", { textContent: title });
  return make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": title }, make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...body)));
}

const SEVERAL = ", several short ones";
const worded = (kind) => `${KINDS[kind % MERGED].word}${kind >= MERGED ? SEVERAL : ""}`;
const folded = (name) => (name.length > 48 ? `${name.slice(0, 47)}…` : name);

/** Copies a text; where a page may not, it is selected, so that the reader can. */
async function copied(text, by) {
  try {
    await navigator.clipboard.writeText(text);
    by.textContent = "Copied";
  } catch {
    const selection = window.getSelection();
    selection.selectAllChildren(by.closest(".timeline-panel").querySelector("dl"));
    by.textContent = "Selected: press Ctrl+C";
  }
}
