// The page of a running job: asks for its state every two seconds while the page is in sight.
import { duration } from "../units.js";

const PAUSE = 2000;
const MOST_ROWS = 20;
const ENDED = ["completed", "failed", "cancelled", "timeout", "ended"];

/** Follows a run. */
export function followLive(element) {
  const live = new Live(element);
  live.update();
}

class Live {
  constructor(element) {
    this.element = element;
    const rank = element.dataset.rank;
    this.address = element.dataset.live + (rank ? `?rank=${encodeURIComponent(rank)}` : "");
    this.history = new Map();
  }

  async update() {
    let ended = false;
    if (!document.hidden) {
      try {
        const answer = await fetch(this.address);
        const state = await answer.json();
        if (!answer.ok) throw new Error(state.error);
        this.#show(state);
        ended = state.state === null || ENDED.includes(state.state);
      } catch (error) {
        this.#say(`Not up to date: ${error.message}`);
      }
    }
    if (!ended) setTimeout(() => this.update(), PAUSE);
  }

  #part(name) {
    return this.element.querySelector(`[data-live-${name}]`);
  }

  #say(text) {
    const said = this.#part("state");
    if (said.textContent !== text) said.textContent = text;
  }

  #show({ state, reason, steps, progress, warnings, logs }) {
    this.#say([state, reason].filter((text) => text).join(": "));
    this.#part("warnings").replaceChildren(...warnings.map((text) => make("p", text, "warning")));
    this.#showSteps(steps, progress);
    const shown = this.#part("logs");
    logs = logs.filter(({ text }) => text);
    const open = new Map([...shown.querySelectorAll("pre")].map((pre) => [pre.dataset.name, atEnd(pre)]));
    const before = [...shown.querySelectorAll("pre")].map((pre) => pre.textContent).join("\n");
    if (shown.childElementCount && logs.length && before === logs.map(({ text }) => text).join("\n")) return;
    shown.replaceChildren(...(logs.length ? logs.map(log) : [make("p", "No output.", "note")]));
    for (const pre of shown.querySelectorAll("pre")) if (open.get(pre.dataset.name) ?? true) pre.scrollTop = pre.scrollHeight;
  }

  #showSteps(steps, progress) {
    const ranks = Object.entries(steps).map(([rank, lines]) => ({ rank: Number(rank), lines, last: lines.at(-1) }));
    const section = this.#part("steps");
    section.hidden = ranks.length === 0;
    if (section.hidden) return;
    for (const { lines } of ranks) {
      for (const line of lines) {
        const second = Math.floor(line.time);
        if (!this.history.has(second)) this.history.set(second, []);
        this.history.get(second).push(line.wall_ns);
      }
    }
    section.querySelector("p").textContent = `${progress}.`;
    this.#draw(section.querySelector("svg"));
    this.history.clear();
    const worst = ranks.sort((a, b) => a.last.time - b.last.time || b.last.max_ns - a.last.max_ns).slice(0, MOST_ROWS);
    const newest = Math.max(...ranks.map(({ last }) => last.time));
    section.querySelector("tbody").replaceChildren(
      ...worst.map(({ rank, last }) =>
        row([rank, last.step, `${(newest - last.time).toFixed(0)} s before the newest`, duration(last.wall_ns), duration(last.max_ns)]),
      ),
    );
  }

  /** Draws the median step time of each second. */
  #draw(svg) {
    const points = [...this.history].sort(([a], [b]) => a - b).map(([second, walls]) => [second, middle(walls)]);
    const [first, last] = [points[0][0], points.at(-1)[0]];
    const most = Math.max(...points.map(([, wall]) => wall));
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    const at = ([second, wall]) => `${(1000 * (second - first)) / Math.max(last - first, 1)},${118 - (112 * wall) / most}`;
    line.setAttribute("points", points.map(at).join(" "));
    const said = `Median step time of each second, for ${last - first} s; the axis reaches from 0 to ${duration(most)}`;
    svg.setAttribute("aria-label", said);
    this.#part("chart").textContent = said;
    svg.replaceChildren(line);
  }
}

function log({ name, text, cut }) {
  const part = document.createElement("section");
  const pre = make("pre", text, "log");
  pre.dataset.name = name;
  pre.tabIndex = 0;
  part.append(make("h2", cut ? `${name} (its end)` : name), pre);
  return part;
}

const atEnd = (pre) => pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;

/** Returns an element with a text, which is never taken for markup. */
export function make(tag, text, className = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

/** Returns a row of a table. */
export function row(values, tag = "td") {
  const element = document.createElement("tr");
  element.append(...values.map((value) => make(tag, value ?? "–", typeof value === "string" ? "text" : "")));
  return element;
}

function middle(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor((sorted.length - 1) / 2)];
}
