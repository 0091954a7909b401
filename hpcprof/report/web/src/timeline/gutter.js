// The names of the rows beside a timeline: buttons that fold ranks and tracks.
import { duration } from "../units.js";
import { button, make } from "./dom.js";

/** The column of names, which scrolls with the rows. */
export class Gutter {
  constructor(timeline) {
    this.timeline = timeline;
    this.element = make("div", { className: "timeline-gutter" });
    this.buttons = new Map();
    for (const of of timeline.layout.ranks) {
      this.#add(`${of.rank}`, `Rank ${of.rank}`, clock(of), () => timeline.fold(of.rank));
      for (const { id, label } of of.tracks) {
        // In a narrow column the number of a stream or a thread stays readable.
        const [what, where = ""] = label.split(/(?<=,) /);
        this.#add(`${of.rank}/${id}`, what, where, () => timeline.fold(of.rank, id), "timeline-track");
      }
    }
  }

  /** Puts each name beside its row. */
  place() {
    const { rows, foldedRanks } = this.timeline.layout;
    this.element.style.height = `${this.timeline.layout.height}px`;
    for (const { of, track } of allTracks(this.timeline.layout.ranks)) {
      this.buttons.get(`${of.rank}/${track.id}`).hidden = foldedRanks.has(of.rank);
    }
    for (const { of, track, top, height, folded } of rows) {
      const own = this.buttons.get(track ? `${of.rank}/${track.id}` : `${of.rank}`);
      own.style.top = `${top}px`;
      own.style.height = `${height}px`;
      own.setAttribute("aria-expanded", String(!folded));
    }
  }

  #add(key, label, more, fold, className = "timeline-rank") {
    const named = make("span", { textContent: label });
    const whole = className === "timeline-track" ? `${label} ${more}`.trim() : `${label}${more ? `, clock ${more}` : ""}`;
    const own = button("", fold, { className, title: whole });
    own.append(named, make("small", { textContent: more }));
    this.buttons.set(key, own);
    this.element.append(own);
  }
}

/** Returns how far off the clock of a rank may be. */
function clock({ uncertainty }) {
  if (uncertainty === null) return "± ?";
  // A third digit would say more than is known.
  return uncertainty > 0 ? `± ${duration(Number(uncertainty.toPrecision(2)))}`.replace(/\.?0+ /, " ") : "";
}

const allTracks = (ranks) => ranks.flatMap((of) => of.tracks.map((track) => ({ of, track })));
