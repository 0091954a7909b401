// A timeline of ranks: what each of them did, when, on one clock. What it needs to know comes from a source
// (source.js). It shows ranks and steps that others name by the event `hpcprof:show`, with a detail of
// {rank, step}, where `slice` may name one by {name, offset from the start of the step, duration} and `finding` is
// the number of the finding that it is about, or of {rank, start_ns, end_ns}.
import { isPrinting, widthIn } from "../theme.js";
import { count, duration } from "../units.js";
import { Address } from "./address.js";
import { Controls } from "./controls.js";
import { make } from "./dom.js";
import { Gutter } from "./gutter.js";
import { Layout } from "./layout.js";
import { Painter } from "./painter.js";
import { Panel } from "./panel.js";
import { light, linksOf, lit, sums } from "./queries.js";
import { TrackModel } from "./slices.js";
import { look } from "./source.js";
import { legend, Toolbar } from "./toolbar.js";
import { View } from "./view.js";

const OPEN_RANKS = 4;
const NEAR_PIXELS = 4;
const AHEAD = 1;
const FINER = 4;
const AROUND = 20;
const SAME_SHARE = 0.05;
const SAME_NS = 20_000;
const MOST_ON_PAPER = 8000;

/** Returns how high a timeline may be on the screen. */
const mostHeight = () => Math.max(240, Math.round(0.75 * window.innerHeight));

/** A timeline in an element. */
export class Timeline {
  /**
   * @param {Element} element
   * @param {import("./source.js").Source} source
   * @param {object} [options]
   * @param {import("./view.js").LinkedViews} [options.linked] timelines that move together
   * @param {number} [options.anchor] the moment that lies below those of the linked ones; by default the first place
   * @param {string} [options.title]
   * @param {number} [options.open] how many ranks are unfolded at first
   * @param {boolean} [options.shows] whether it follows `hpcprof:show`; by default it does
   */
  constructor(element, source, options = {}) {
    this.element = element;
    this.source = source;
    this.options = { title: "Timeline", shows: true, ...options };
    this.models = new Map();
    this.selected = null;
    this.area = null;
    this.links = [];
    this.found = null;
    this.wanted = null;
    this.asked = null;
    /** Of two timelines that move together, none is that of the page. */
    this.address = this.options.shows && !options.linked ? new Address(this) : null;
    element.timeline = this;
    /** Resolves when the first slices are drawn. */
    this.ready = this.#start();
  }

  async #start() {
    this.overview = await this.source.overview();
    const { ranks, start, end, places } = this.overview;
    this.ranks = new Map(ranks.map((rank) => [rank.rank, rank]));
    this.view = new View(start, end);
    this.layout = new Layout(ranks, this.options.open ?? (ranks.length <= OPEN_RANKS ? ranks.length : 1));
    this.layout.fit(mostHeight());
    this.#build();
    if (places.length) this.view.frame(places[0].start, places[0].end);
    this.options.linked?.join(this.view, this.options.anchor ?? places[0]?.start ?? start);
    this.view.listeners.push(() => {
      this.tip.hidden = true;
      this.invalidate();
      this.address?.follow();
    });
    await this.#ask();
    this.#resize();
    this.draw();
  }

  #build() {
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.tip = make("div", { className: "timeline-tip", hidden: true });
    this.gutter = new Gutter(this);
    this.scroller = make(
      "div",
      { className: "timeline-scroller", tabIndex: 0, role: "application", "aria-label": this.#summary() },
      this.canvas,
      make("div", { className: "timeline-corner", textContent: "Clock" }),
      this.gutter.element,
    );
    this.toolbar = new Toolbar(this);
    this.panel = new Panel(this);
    this.legend = make("div");
    const notes = this.overview.notes.map((text) => make("p", { className: "note", textContent: text }));
    this.element.classList.add("timeline");
    this.element.append(
      make("h2", { textContent: this.options.title }),
      ...notes,
      this.toolbar.element,
      make(
        "div",
        { className: "timeline-docked" },
        make("div", {}, make("div", { className: "timeline-frame" }, this.scroller, this.tip), this.legend),
        this.panel.element,
      ),
    );
    this.painter = new Painter(this.canvas);
    this.controls = new Controls(this);
    this.scroller.addEventListener("scroll", () => this.invalidate());
    new ResizeObserver(() => this.#resize()).observe(this.scroller);
    document.addEventListener("hpcprof:theme", () => {
      this.painter.newTheme();
      this.#resize();
      this.draw();
    });
    if (this.options.shows) document.addEventListener("hpcprof:show", ({ detail }) => this.show(detail));
    this.gutter.place();
  }

  #summary() {
    const { ranks, start, end } = this.overview;
    const steps = new Set(ranks.flatMap((of) => of.steps.map(({ step }) => step)));
    const what = `${count(ranks.length)} ${ranks.length === 1 ? "rank" : "ranks"}, ${count(steps.size)} ${steps.size === 1 ? "step" : "steps"}`;
    return `Timeline of ${what} over ${duration(end - start)}. Press w, a, s and d to move and the question mark for all keys.`;
  }

  get scrolled() {
    return this.scroller.scrollTop;
  }

  /** Returns the slices of a track; undefined if the source has not sent any. */
  model(rank, track) {
    return this.models.get(`${rank}/${track}`);
  }

  rank(rank) {
    return this.ranks.get(rank);
  }

  /** Returns the step of a rank at a time; null between steps. */
  stepAt(rank, time) {
    return this.rank(rank).steps.find(({ start, end }) => time >= start && time < end)?.step ?? null;
  }

  #resize() {
    const { layout, scroller } = this;
    const most = isPrinting() ? MOST_ON_PAPER : mostHeight();
    scroller.style.height = `${Math.min(layout.height + 4, most)}px`;
    const width = widthIn(scroller) - this.gutter.element.offsetWidth;
    if (width <= 0) return;
    this.painter.resize(width, scroller.clientHeight);
    this.canvas.style.marginBottom = `-${scroller.clientHeight}px`;
    this.invalidate();
  }

  /** Lets the next frame draw the timeline. */
  invalidate() {
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  /** Draws a frame now. */
  draw() {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = null;
    if (!(this.painter.width > 0)) return;
    this.painter.draw(this);
    if (!this.#answered()) this.#ask();
  }

  /** Whether what was asked for is enough for the view: as wide, as fine, and all ranks in sight. */
  #answered() {
    const { asked, view } = this;
    if (this.overview.complete) return true;
    return (
      asked !== null &&
      asked.start <= Math.max(view.start, this.overview.start) &&
      asked.end >= Math.min(view.end, this.overview.end) &&
      (asked.end - asked.start) / asked.pixels <= (FINER * view.span) / this.painter.width &&
      this.#inSight().every((rank) => asked.ranks.includes(rank))
    );
  }

  #inSight() {
    const rows = this.layout.between(this.scrolled, this.scrolled + (this.painter.height || window.innerHeight));
    return [...new Set(rows.map(({ of }) => of.rank))];
  }

  /** Asks the source for what is in sight and around it; an answer that comes after a newer question is dropped. */
  async #ask() {
    const { view } = this;
    const room = AHEAD * view.span;
    const width = this.painter.width || 1000;
    const asked = { ranks: this.#inSight(), start: view.start - room, end: view.end + room, pixels: width * (1 + 2 * AHEAD) };
    this.asked = asked;
    let answer;
    try {
      answer = await this.source.slices(asked);
    } catch (error) {
      this.panel.say(`The slices cannot be loaded: ${error.message}`);
      return;
    }
    if (this.asked === asked) this.#take(answer);
  }

  #take(answer) {
    const before = this.selected && this.model(this.selected.rank, this.selected.track).slices;
    for (const slices of answer) {
      const key = `${slices.rank}/${slices.track}`;
      if (this.models.get(key)?.slices !== slices) this.models.set(key, new TrackModel(slices));
    }
    if (this.selected) this.#findAgain(before);
    const looks = new Set();
    for (const { slices } of this.models.values()) slices.kind.forEach((_, row) => looks.add(look(slices, row)));
    this.legend.replaceChildren(legend(looks));
    if (this.found) this.search(this.found.text);
    if (this.wanted) this.#selectWanted();
    this.invalidate();
  }

  /** Selects the slice that `show` was asked for as soon as the source has sent it; else the time that it takes. */
  #selectWanted() {
    const { rank, name, start, end } = this.wanted;
    const apart = ({ slices }, row) => Math.max(Math.abs(slices.start[row] - start), Math.abs(slices.end[row] - end));
    let nearest = null;
    for (const model of this.models.values()) {
      if (model.slices.rank !== rank) continue;
      const number = model.slices.strings.indexOf(name);
      model.slices.name.forEach((one, row) => {
        if (one === number && (!nearest || apart(model, row) < apart(nearest.model, nearest.row))) nearest = { model, row };
      });
    }
    // Clocks are aligned piece by piece, so that a distance from the start of the step changes a little.
    if (nearest && apart(nearest.model, nearest.row) <= Math.max(SAME_NS, SAME_SHARE * (end - start))) {
      this.wanted = null;
      this.select({ rank, track: nearest.model.slices.track, row: nearest.row }, true);
    } else this.selectArea(start, end);
  }

  /** Finds the selected slice among new ones; coarser ones may lack it. */
  #findAgain(before) {
    const { rank, track, row } = this.selected;
    const model = this.model(rank, track);
    const [start, end] = [before.start[row], before.end[row]];
    const found = model.slices === before ? row : model.at(before.depth[row], start, 1);
    const same = found >= 0 && model.slices.start[found] === start && model.slices.end[found] === end;
    this.selected = same ? { rank, track, row: found } : null;
    this.links = same ? linksOf(this, this.selected) : [];
  }

  /** Folds or unfolds a rank, or one of its tracks. */
  fold(rank, track = null) {
    this.layout.toggle(rank, track);
    this.#arranged();
  }

  /** Folds or unfolds all ranks. */
  foldAll(folded) {
    this.layout.foldAll(folded);
    this.#arranged();
  }

  #arranged() {
    this.gutter.place();
    this.#resize();
  }

  /** Returns the slice at a place of the canvas; null if there is none. */
  hit(x, y) {
    const { view } = this;
    const row = this.layout.at(y + this.scrolled);
    if (!row?.track) return null;
    const model = this.model(row.of.rank, row.track.id);
    const depth = row.folded ? 0 : Math.floor((y + this.scrolled - row.top) / row.lane);
    const perPixel = view.span / this.painter.width;
    const found = model ? model.at(depth, view.start + x * perPixel, NEAR_PIXELS * perPixel) : -1;
    return found < 0 ? null : { rank: row.of.rank, track: row.track.id, row: found };
  }

  /** Shows the full name, what it is, the duration, the details (bytes, shapes) and the rank of the slice below the pointer. */
  hover(event) {
    const found = event && this.hit(event.offsetX, event.offsetY);
    this.tip.hidden = !found;
    if (!found) return;
    const model = this.model(found.rank, found.track);
    const { slices } = model;
    const details = slices.info[found.row] < 0 ? [] : [slices.strings[slices.info[found.row]]];
    const took = duration(slices.end[found.row] - slices.start[found.row]);
    const facts = [look(slices, found.row).word, took, ...details, `rank ${found.rank}`].join(", ");
    this.tip.replaceChildren(make("b", { textContent: model.name(found.row) }), make("span", { textContent: facts }));
    const left = event.offsetX + this.gutter.element.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(left + 12, this.scroller.clientWidth - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${event.offsetY + 18}px`;
  }

  /** Selects a slice, and moves there if `moves`; null selects nothing. */
  select(slice, moves = false) {
    if (slice === null) {
      this.selectNothing();
      return;
    }
    this.selected = slice;
    this.area = null;
    this.links = linksOf(this, slice);
    this.panel.slice(slice, this.links);
    const { slices } = this.model(slice.rank, slice.track);
    this.address?.name(slice.rank, this.stepAt(slice.rank, slices.start[slice.row]));
    if (moves) this.#reveal(slice);
    this.invalidate();
  }

  selectNothing() {
    this.selected = this.area = null;
    this.links = [];
    this.panel.clear();
    this.invalidate();
  }

  /** Moves so far that a slice is in sight. */
  #reveal({ rank, track, row }) {
    const { slices } = this.model(rank, track);
    const [start, end] = [slices.start[row], slices.end[row]];
    const { view, layout, scroller } = this;
    if (layout.foldedRanks.has(rank)) this.fold(rank);
    if (layout.foldedTracks.has(`${rank}/${track}`)) this.fold(rank, track);
    if (start < view.start || end > view.end) {
      const span = Math.max(view.span, 1.2 * (end - start));
      view.show((start + end - span) / 2, (start + end + span) / 2);
    }
    const { top, height } = layout.place(rank, track, slices.depth[row]);
    const room = this.painter.height;
    if (top < scroller.scrollTop + 2 * height || top + height > scroller.scrollTop + room) scroller.scrollTop = top - room / 2;
  }

  /** Zooms to a slice, or to the selected extent. */
  zoomTo(slice) {
    if (slice) {
      const { slices } = this.model(slice.rank, slice.track);
      this.view.frame(slices.start[slice.row], slices.end[slice.row]);
    } else if (this.area) this.view.frame(this.area.start, this.area.end);
  }

  /** Selects the next (1) or previous (-1) slice of the level, or the first one in sight. */
  neighbour(way) {
    const { view, selected } = this;
    if (!selected) {
      const rows = this.layout.rows.filter(({ track, of }) => track && this.model(of.rank, track.id)?.lanes.length);
      for (const { of, track } of rows) {
        const { finest } = this.model(of.rank, track.id).lanes[0];
        const [first, last] = finest.between(view.start, view.end);
        if (first < last) return this.select({ rank: of.rank, track: track.id, row: finest.row[first] }, true);
      }
      return undefined;
    }
    const model = this.model(selected.rank, selected.track);
    const { finest } = model.lanes[model.slices.depth[selected.row]];
    const place = finest.row.indexOf(selected.row) + way;
    if (place >= 0 && place < finest.length) this.select({ ...selected, row: finest.row[place] }, true);
    return undefined;
  }

  /** Follows an arrow of the selected slice: the first one that leads from it (1) or to it (-1). */
  follow(way) {
    const { selected, links } = this;
    const same = (one) => one.rank === selected.rank && one.track === selected.track && one.row === selected.row;
    const link = links.find(({ from, to }) => same(way > 0 ? from : to));
    if (link) this.select(way > 0 ? link.to : link.from, true);
  }

  areaOfSelected() {
    if (!this.selected) return;
    const { slices } = this.model(this.selected.rank, this.selected.track);
    this.selectArea(slices.start[this.selected.row], slices.end[this.selected.row]);
  }

  /** Selects an extent of time and, unless it still changes, sums up the slices in it. */
  selectArea(start, end, final = true) {
    this.area = { start, end };
    this.selected = null;
    this.links = [];
    if (final) this.panel.area(this.area, ...sums(this, start, end));
    this.invalidate();
  }

  /**
   * Lights the slices whose name contains a text, in any case.
   * @returns {{total: number, at: number} | null} how many there are and which is selected; null without a text
   */
  search(text) {
    const total = light([...this.models.values()], text.trim().toLowerCase());
    this.found = text.trim() ? { text, total, at: -1 } : null;
    this.invalidate();
    return this.found;
  }

  /** Selects the next (1) or the previous (-1) slice that a search has found, by time. */
  nextMatch(way) {
    if (!this.found?.total) return this.found;
    const all = lit(this.models.values());
    const at = this.found.at < 0 && way > 0 ? Math.max(all.findIndex(({ time }) => time >= this.view.start), 0) : this.found.at + way;
    this.found.at = (at + all.length) % all.length;
    const { rank, track, row } = all[this.found.at];
    this.select({ rank, track, row }, true);
    return this.found;
  }

  /** Shows a rank and step, or an extent of time, and scrolls there. */
  show({ rank = null, step = null, slice = null, finding = null, start_ns: start = null, end_ns: end = null }) {
    this.wanted = null;
    const of = rank === null ? this.overview.ranks[0] : this.rank(rank);
    this.element.scrollIntoView({ block: "start" });
    if (!of) {
      this.panel.say(`Rank ${rank} is not in this page. hpcprof serve shows all ranks.`);
      return;
    }
    if (this.layout.foldedRanks.has(of.rank)) this.fold(of.rank);
    this.scroller.scrollTop = this.layout.place(of.rank, null, 0).top - 2 * this.layout.rows[0].height;
    const own = of.steps.find((one) => one.step === step);
    this.address?.name(of.rank, own ? step : null, finding);
    if (start !== null && end !== null) {
      this.view.frame(start, end);
      this.selectArea(start, end);
    } else if (own && slice) {
      const begin = own.start + slice.offset;
      this.wanted = { rank: of.rank, name: slice.name, start: begin, end: begin + slice.duration };
      const room = Math.min(AROUND * slice.duration, Math.max(own.end - own.start - slice.duration, 0)) / 2;
      this.view.frame(begin - room, begin + slice.duration + room);
      this.#selectWanted();
    } else if (own) this.view.frame(own.start, own.end);
    else if (step !== null) this.panel.say(`Step ${step} is not in this page. hpcprof serve shows all steps.`);
    this.invalidate();
  }
}
