// The row above a timeline: places to go to, zoom, search, and the list of keys.
import { count } from "../units.js";
import { FAMILIES, KINDS, extent } from "./source.js";
import { button, make } from "./dom.js";

const KEYS = [
  ["w, s", "zoom in and out"],
  ["a, d, ←, →", "move to earlier and later"],
  ["↑, ↓", "scroll"],
  ["Home", "show everything"],
  [". and ,", "select the next and the previous slice"],
  ["[ and ]", "follow the arrows of the selected slice"],
  ["f", "zoom to what is selected"],
  ["m", "select the time of the selected slice"],
  ["/", "search; Enter and Shift+Enter go on and back"],
  ["Esc", "select nothing"],
  ["?", "show these keys"],
];
const MOUSE = [
  ["drag", "move"],
  ["Ctrl + wheel, pinch", "zoom"],
  ["Shift + wheel", "move"],
  ["Shift + drag, or drag on the ruler", "select a time"],
  ["click, double click", "select a slice, zoom to it"],
];

/** The buttons and the search of a timeline. */
export class Toolbar {
  constructor(timeline) {
    this.timeline = timeline;
    const { view } = timeline;
    const places = timeline.overview.places.map(({ label, start, end }) => button(label, () => view.frame(start, end)));
    const zoom = (factor) => () => view.zoom(factor, (view.start + view.end) / 2);
    this.found = make("span", { className: "timeline-found", role: "status" });
    this.search = make("input", { type: "search", placeholder: "Search names", "aria-label": "Search the timeline" });
    this.search.addEventListener("input", () => this.say(timeline.search(this.search.value)));
    this.search.addEventListener("keydown", (event) => this.#searchKey(event));
    this.help = make("div", { className: "timeline-help", hidden: true }, list(KEYS), list(MOUSE));
    this.helpButton = button("Keys", () => this.toggleHelp(), { "aria-expanded": "false" });
    this.element = make(
      "div",
      { className: "timeline-tools no-print" },
      make(
        "div",
        { className: "timeline-bar" },
        ...places,
        ...stepChoice(timeline),
        button("Everything", () => view.show(...view.limits)),
        button("−", zoom(2), { "aria-label": "Zoom out" }),
        button("+", zoom(0.5), { "aria-label": "Zoom in" }),
        button("Fold all", () => timeline.foldAll(true)),
        button("Unfold all", () => timeline.foldAll(false)),
        this.helpButton,
      ),
      make(
        "div",
        { className: "timeline-bar" },
        this.search,
        button("Previous", () => this.say(timeline.nextMatch(-1))),
        button("Next", () => this.say(timeline.nextMatch(1))),
        this.found,
      ),
      this.help,
    );
  }

  /** Says how many slices a search has found, and which of them is selected. */
  say(found) {
    if (found === null) this.found.textContent = "";
    else if (!found.total) this.found.textContent = "nothing found";
    else this.found.textContent = found.at < 0 ? `${count(found.total)} found` : `${count(found.at + 1)} of ${count(found.total)}`;
  }

  toggleHelp() {
    this.help.hidden = !this.help.hidden;
    this.helpButton.setAttribute("aria-expanded", String(!this.help.hidden));
  }

  #searchKey(event) {
    if (event.key === "Enter") {
      event.preventDefault();
      this.say(this.timeline.nextMatch(event.shiftKey ? -1 : 1));
    } else if (event.key === "Escape") {
      this.search.value = "";
      this.say(this.timeline.search(""));
      this.timeline.scroller.focus();
    }
  }
}

/** Returns a list of all steps that leads to each of them, unless the places are all there is. */
function stepChoice({ overview, view }) {
  const steps = [...new Set(overview.ranks.flatMap((of) => of.steps.map(({ step }) => step)))].sort((a, b) => a - b);
  if (steps.length <= overview.places.length) return [];
  const options = ["Step …", ...steps].map((text) => make("option", { textContent: text, value: text }));
  const choice = make("select", { "aria-label": "Go to a step" }, ...options);
  choice.addEventListener("change", () => {
    const { start, end } = extent(overview.ranks, Number(choice.value));
    view.frame(start, end);
    choice.selectedIndex = 0;
  });
  return [choice];
}

/** Returns the colours that a timeline has, by their words. */
export function legend(looks) {
  const colours = new Map([...Object.values(FAMILIES), ...KINDS].filter((one) => looks.has(one)).map(({ word, colour }) => [word, colour]));
  const parts = [...colours].map(([word, name]) => {
    const colour = make("i", { className: "timeline-colour" });
    colour.style.background = `var(${name})`;
    return make("span", {}, colour, word);
  });
  return make("p", { className: "timeline-legend" }, ...parts);
}

function list(pairs) {
  return make("dl", {}, ...pairs.flatMap(([key, text]) => [make("dt", { textContent: key }), make("dd", { textContent: text })]));
}
