// Dark and light: the page follows the system until its reader chooses. Paper is always light.
// Drawings that do not take their colours from CSS listen to `hpcprof:theme` and draw again; it is also sent before
// and after printing, since paper has another width.

const KEY = "hpcprof-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
/** The width in pixels of a sheet of A4 between margins of 15 mm. */
const PAPER = 680;
let chosen = remembered();
let printing = false;

/** Sets the theme, and lets the button with `data-action="theme"` change it. */
export function followTheme() {
  apply();
  system.addEventListener("change", apply);
  for (const [event, now] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(event, () => {
      printing = now;
      apply();
      announce();
    });
  }
  document.querySelector('[data-action="theme"]')?.addEventListener("click", () => {
    chosen = isDark() ? "light" : "dark";
    remember(chosen);
    apply();
  });
}

/** Whether the page is being printed. */
export const isPrinting = () => printing;

/** Returns how wide a drawing may be that fills an element, on the screen or on paper. */
export const widthIn = (element) => (printing ? Math.min(PAPER, element.clientWidth) : element.clientWidth);

/** Whether the page is shown dark. */
export const isDark = () => document.documentElement.dataset.theme === "dark";

/** Returns the value of a colour of page.css, such as `--compute`, for drawings on a canvas. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function apply() {
  const theme = printing ? "light" : (chosen ?? (system.matches ? "dark" : "light"));
  if (document.documentElement.dataset.theme === theme) return;
  document.documentElement.dataset.theme = theme;
  announce();
}

function announce() {
  document.dispatchEvent(new CustomEvent("hpcprof:theme"));
}

// A page in a frame without an origin has no storage.
function remembered() {
  try {
    const theme = localStorage.getItem(KEY);
    return theme === "dark" || theme === "light" ? theme : null;
  } catch {
    return null;
  }
}

function remember(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // It is chosen again next time.
  }
}
