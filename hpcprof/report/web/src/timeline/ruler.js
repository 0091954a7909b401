// The ticks of a timeline's ruler.
import { durationTicks, durationTickValues } from "../units.js";

// Ticks that are closer together than this share of their time would need too many digits.
const FEWEST_DIGITS = 1e-4;

/**
 * Returns ticks at round times between two times. Where they would need many digits, only the first one has a time,
 * and the others say how much later they are.
 * @returns {{time: number, label: string}[]}
 */
export function ruler(start, end, most) {
  const values = durationTickValues(0, end - start, most);
  const step = values.length > 1 ? values[1] - values[0] : end - start;
  const first = Math.ceil(start / step) * step;
  const largest = Math.max(Math.abs(start), Math.abs(end));
  const times = values.map((value) => first + value).filter((time) => time <= end);
  if (step >= FEWEST_DIGITS * largest) {
    const written = durationTicks(largest);
    return times.map((time) => ({ time, label: written(time) }));
  }
  const later = durationTicks(end - start);
  return times.map((time, place) => ({ time, label: place ? `+${later(time - first)}` : exact(first) }));
}

/** Returns a time with all its nanoseconds, in milliseconds. */
export const exact = (ns) => `${(ns / 1e6).toLocaleString("en", { minimumFractionDigits: 6, maximumFractionDigits: 6 })} ms`;
