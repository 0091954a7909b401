// The colours of a timeline, taken from page.css: three shades of each kind and family, so that neighbours can be told apart.
import { FAMILIES, KINDS, look } from "./source.js";

const SHADES = [0, 0.14, 0.28];
const PALE = 0.68;

/** The colours of a theme. */
export class Colours {
  constructor(element) {
    const style = getComputedStyle(element);
    const value = (name) => style.getPropertyValue(name).trim();
    for (const name of ["background", "panel", "text", "soft", "line", "accent", "focus"]) this[name] = value(`--${name}`);
    const background = channels(this.background);
    this.fills = new Map();
    for (const { colour } of [...KINDS, ...Object.values(FAMILIES)]) {
      const base = channels(value(colour));
      const shades = SHADES.map((share) => mixed(base, background, share));
      this.fills.set(colour, { shades: shades.map(css), pale: css(mixed(base, background, PALE)), ink: shades.map(ink) });
    }
    this.communication = value("--exposed-comm");
  }

  /** Returns the fills of a slice of a track. */
  of(slices, row) {
    return this.fills.get(look(slices, row).colour);
  }

  /** Returns the shade of a name: always the same one. */
  static shade(number) {
    return (Math.imul(number + 1, 0x9e3779b1) >>> 16) % SHADES.length;
  }
}

const css = (rgb) => `rgb(${rgb.map(Math.round).join(" ")})`;
const mixed = (a, b, share) => a.map((channel, i) => channel + share * (b[i] - channel));

/** Returns black or white, whichever is easier to read on a colour (relative luminance of WCAG 2). */
function ink(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

/** Returns red, green and blue of a colour of the style sheet. */
function channels(colour) {
  const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}
