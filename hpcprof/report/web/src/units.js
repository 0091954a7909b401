// Numbers with units as people write them: 5 ms and not 5k µs. Times are nanoseconds, as everywhere in hpcprof.

const TIMES = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const SIZES = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

/** Returns the unit of values up to `largest`: its size and its name. */
const unitOf = (units, largest) => units.find(([size]) => Math.abs(largest) >= size) ?? units.at(-1);

/** Returns four significant digits, with separators between thousands and without an exponent. */
function digits(value) {
  const whole = String(Math.trunc(Math.abs(value))).length;
  const places = Math.abs(value) >= 1 ? Math.max(0, 4 - whole) : 3;
  const figures = Math.abs(value) >= 1 ? { minimumFractionDigits: places, maximumFractionDigits: places } : { maximumSignificantDigits: 3 };
  return value.toLocaleString("en", figures);
}

function scaled(value, units) {
  const [size, name] = unitOf(units, value);
  return size === 1 ? `${Math.round(value).toLocaleString("en")} ${name}` : `${digits(value / size)} ${name}`;
}

/** Returns a time in nanoseconds with its unit: `"3.649 ms"`. */
export const duration = (ns) => (ns === 0 ? "0" : scaled(ns, TIMES));

/** Returns a size with its unit: `"134.2 MB"`. */
export const bytes = (size) => scaled(size, SIZES);

/** Returns a share of 1 in percent: `"12.3 %"` of 0.123. */
export const percent = (share) => `${(100 * share).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} %`;

/** Returns a whole number with separators between thousands. */
export const count = (number) => number.toLocaleString("en");

/**
 * Returns a formatter of the ticks of an axis of times up to `largest` nanoseconds, all in one unit: `"5 ms"`.
 * @param {number} largest
 * @returns {(ns: number) => string}
 */
export function durationTicks(largest) {
  const [size, name] = unitOf(TIMES, largest);
  return (ns) => (ns === 0 ? "0" : `${plain(ns / size)} ${name}`);
}

/** Returns a formatter of the ticks of an axis of sizes up to `largest` bytes, all in one unit. */
export function bytesTicks(largest) {
  const [size, name] = unitOf(SIZES, largest);
  return (value) => (value === 0 ? "0" : `${plain(value / size)} ${name}`);
}

/**
 * Returns round values for the ticks of an axis of times from `low` to `high`: 1, 2 or 5 of a unit apart.
 * @returns {number[]} nanoseconds
 */
export function durationTickValues(low, high, most = 6) {
  const [size] = unitOf(TIMES, Math.max(Math.abs(low), Math.abs(high)));
  const rough = (high - low) / size / most;
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough * 0.999) * size;
  const values = [];
  for (let tick = Math.ceil(low / step); tick * step <= high * (1 + 1e-12); tick += 1) values.push(tick * step);
  return values;
}

const plain = (value) => value.toLocaleString("en", { maximumSignificantDigits: 6 });
