// The address of a page names what its timeline shows, as `#rank=3&step=7` or `#finding=2&rank=3&step=7`, so that a
// copied address opens exactly that.

const PAUSE_MS = 300;
/** The most lengths of the named step that a view shows; a wider one shows no step, only its rank. */
const WIDEST = 3;

/** Keeps the address of the page that of a timeline. */
export class Address {
  constructor(timeline) {
    this.timeline = timeline;
    this.named = null;
    this.timer = null;
  }

  /** Names a rank, a step (null: none), and the finding that led there, if one did. */
  name(rank, step, finding = null) {
    const { named } = this;
    // What was selected in the step of a finding is still that finding.
    const kept = named?.rank === rank && named.step === step ? named.finding : null;
    this.named = { finding: finding ?? kept, rank, step };
    const words = Object.entries(this.named).filter(([, value]) => value !== null);
    const fragment = words.map(([name, value]) => `${name}=${value}`).join("&");
    try {
      history.replaceState(null, "", `#${fragment}`);
    } catch {
      // A page inside another one, as in a notebook, has no address of its own.
    }
  }

  /** Names what is in sight once the view has not moved for a while; what is named already stays if it is. */
  follow() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#look(), PAUSE_MS);
  }

  #look() {
    const { timeline, named } = this;
    if (named === null) return; // nobody has looked for anything yet
    const { start, end, span } = timeline.view;
    const of = timeline.rank(named.rank);
    const there = of.steps.find((one) => one.start <= (start + end) / 2 && (start + end) / 2 < one.end);
    const step = there && span <= WIDEST * (there.end - there.start) ? there.step : null;
    if (step !== named.step) this.name(named.rank, step);
  }
}
