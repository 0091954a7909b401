// The first screen is text of the page; here its buttons begin to work.

/** Lets the buttons with `data-action="show"` show their rank, step and slice in the timeline, if the page has one. */
export function showFromFindings() {
  if (document.querySelector('[data-part="timeline"]')?.hidden ?? true) return;
  for (const button of document.querySelectorAll('[data-action="show"]')) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const { rank, step, name, offset, duration } = button.dataset;
      const slice = name === undefined ? null : { name, offset: Number(offset), duration: Number(duration) };
      const detail = { rank: Number(rank), step: Number(step), slice };
      document.dispatchEvent(new CustomEvent("hpcprof:show", { detail }));
    });
  }
}
