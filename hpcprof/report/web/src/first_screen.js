// The first screen is text of the page; here its buttons begin to work.

/** Lets the buttons with `data-action="show"` show their rank and step in the timeline, if the page has one. */
export function showFromFindings() {
  if (document.querySelector('[data-part="timeline"]')?.hidden ?? true) return;
  for (const button of document.querySelectorAll('[data-action="show"]')) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const detail = { rank: Number(button.dataset.rank), step: Number(button.dataset.step) };
      document.dispatchEvent(new CustomEvent("hpcprof:show", { detail }));
    });
  }
}
