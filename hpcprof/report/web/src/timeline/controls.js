// Mouse, touch and keys of a timeline. Vertical scrolling is the browser's own; Tab leaves the timeline.
import { RULER } from "./layout.js";

const CLICK = 4;
const KEY_ZOOM = 1.25;
const KEY_PAN = 0.1;
const WHEEL_ZOOM = 0.0025;
const LINE = 30;

/** Lets a reader move in a timeline and select. */
export class Controls {
  constructor(timeline) {
    this.timeline = timeline;
    this.pointers = new Map();
    this.pointerTime = null;
    const { canvas, scroller } = timeline;
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.#up(event));
    canvas.addEventListener("pointerleave", () => {
      this.pointerTime = null;
      timeline.hover(null);
    });
    canvas.addEventListener("dblclick", (event) => timeline.zoomTo(timeline.hit(event.offsetX, event.offsetY)));
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    scroller.addEventListener("keydown", (event) => this.#key(event));
  }

  #time(x) {
    const { view, canvas } = this.timeline;
    return view.start + (x / canvas.clientWidth) * view.span;
  }

  #down(event) {
    if (event.button !== 0) return;
    this.timeline.canvas.setPointerCapture(event.pointerId);
    const point = { x: event.offsetX, y: event.offsetY };
    this.pointers.set(event.pointerId, point);
    const selects = event.shiftKey || event.offsetY < RULER;
    if (this.pointers.size === 1) this.drag = { ...point, moved: false, from: selects ? this.#time(event.offsetX) : null };
    else this.drag = null;
    this.timeline.scroller.focus({ preventScroll: true });
  }

  #move(event) {
    this.pointerTime = this.#time(event.offsetX);
    const last = this.pointers.get(event.pointerId);
    if (!last) {
      this.timeline.hover(event);
      return;
    }
    const point = { x: event.offsetX, y: event.offsetY };
    if (this.pointers.size === 2) this.#pinch(event.pointerId, point);
    else if (this.drag) this.#drag(last, point);
    this.pointers.set(event.pointerId, point);
  }

  #drag(last, point) {
    const { drag, timeline } = this;
    drag.moved ||= Math.abs(point.x - drag.x) > CLICK || Math.abs(point.y - drag.y) > CLICK;
    if (!drag.moved) return;
    timeline.hover(null);
    if (drag.from !== null) {
      const to = this.#time(point.x);
      timeline.selectArea(Math.min(drag.from, to), Math.max(drag.from, to), false);
    } else {
      timeline.view.pan(this.#time(last.x) - this.#time(point.x));
      timeline.scroller.scrollTop += last.y - point.y;
    }
  }

  /** Two fingers keep the times below them. */
  #pinch(moved, point) {
    const [other] = [...this.pointers].filter(([id]) => id !== moved).map(([, where]) => where);
    const before = Math.max(Math.abs(this.pointers.get(moved).x - other.x), 8);
    const now = Math.max(Math.abs(point.x - other.x), 8);
    this.timeline.view.zoom(before / now, this.#time((point.x + other.x) / 2));
    const middle = (point.x - this.pointers.get(moved).x) / 2;
    this.timeline.view.pan(this.#time(0) - this.#time(middle));
  }

  #up(event) {
    const { drag, timeline } = this;
    if (!this.pointers.delete(event.pointerId) || !drag || event.type === "pointercancel") return;
    this.drag = null;
    if (drag.moved && drag.from !== null) timeline.selectArea(timeline.area.start, timeline.area.end);
    else if (!drag.moved) timeline.select(timeline.hit(event.offsetX, event.offsetY));
  }

  #wheel(event) {
    const { view } = this.timeline;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey || event.metaKey) view.zoom(Math.exp(event.deltaY * WHEEL_ZOOM), this.#time(event.offsetX));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.pan(this.#time(sideways) - this.#time(0));
    else return;
    event.preventDefault();
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input")) return;
    const action = this.#actions()[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  #actions() {
    const { timeline } = this;
    const { view, scroller } = timeline;
    const at = this.pointerTime ?? (view.start + view.end) / 2;
    const earlier = () => view.pan(-KEY_PAN * view.span);
    const later = () => view.pan(KEY_PAN * view.span);
    return {
      w: () => view.zoom(1 / KEY_ZOOM, at),
      s: () => view.zoom(KEY_ZOOM, at),
      a: earlier,
      d: later,
      ArrowLeft: earlier,
      ArrowRight: later,
      ArrowUp: () => (scroller.scrollTop -= LINE),
      ArrowDown: () => (scroller.scrollTop += LINE),
      Home: () => view.show(...view.limits),
      f: () => timeline.zoomTo(timeline.selected),
      m: () => timeline.areaOfSelected(),
      ".": () => timeline.neighbour(1),
      ",": () => timeline.neighbour(-1),
      "]": () => timeline.follow(1),
      "[": () => timeline.follow(-1),
      "/": () => timeline.toolbar.search.focus(),
      "?": () => timeline.toolbar.toggleHelp(),
      Escape: () => timeline.selectNothing(),
    };
  }
}
