// The extent of time that a timeline shows, and timelines that show the same extent of their own time.

const SHORTEST = 20;
const MARGIN = 0.02;

/** The extent of time in sight. */
export class View {
  constructor(start, end) {
    const margin = MARGIN * (end - start);
    this.limits = [start - margin, end + margin];
    [this.start, this.end] = this.limits;
    this.listeners = [];
  }

  get span() {
    return this.end - this.start;
  }

  /** Shows an extent, as far as it lies inside the limits. */
  show(start, end) {
    const [low, high] = this.limits;
    const span = Math.min(Math.max(end - start, SHORTEST), high - low);
    const from = Math.min(Math.max((start + end - span) / 2, low), high - span);
    if (from === this.start && from + span === this.end) return;
    [this.start, this.end] = [from, from + span];
    for (const listener of this.listeners) listener();
  }

  /** Shows an extent with some room at both sides. */
  frame(start, end) {
    const room = Math.max(0.05 * (end - start), SHORTEST);
    this.show(start - room, end + room);
  }

  /** Changes the length of the extent by a factor, around a time that stays in its place. */
  zoom(factor, at) {
    const [low, high] = this.limits;
    const span = Math.min(Math.max(this.span * factor, SHORTEST), high - low);
    const start = at - ((at - this.start) / this.span) * span;
    this.show(start, start + span);
  }

  pan(time) {
    this.show(this.start + time, this.end + time);
  }
}

/** Timelines that move together: each shows the same extent counted from its own anchor. */
export class LinkedViews {
  #members = [];
  #moving = false;

  /** Lets a view move with the others; `anchor` is the moment that lies below those of the others. */
  join(view, anchor) {
    const member = { view, anchor };
    view.listeners.push(() => this.#follow(member));
    this.#members.push(member);
    this.#widen();
  }

  /** Gives all views the longest extent of any, and room for it, so that the same length is the same time in all. */
  #widen() {
    const most = (of) => [
      Math.min(...this.#members.map(({ view, anchor }) => of(view)[0] - anchor)),
      Math.max(...this.#members.map(({ view, anchor }) => of(view)[1] - anchor)),
    ];
    const limits = most((view) => view.limits);
    const [start, end] = most((view) => [view.start, view.end]);
    this.#moving = true;
    for (const { view, anchor } of this.#members) {
      view.limits = limits.map((time) => anchor + time);
      view.show(anchor + start, anchor + end);
    }
    this.#moving = false;
  }

  #follow({ view, anchor }) {
    if (this.#moving) return;
    this.#moving = true;
    for (const other of this.#members) {
      const shift = other.anchor - anchor;
      if (other.view !== view) other.view.show(view.start + shift, view.end + shift);
    }
    this.#moving = false;
  }
}
