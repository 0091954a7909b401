// The first screen is text of the page; here its buttons begin to work.

/** Lets the buttons with `data-action="show"` show their rank, step and slice in the timeline, if the page has one. */
export function showFromFindings() {
  if (document.querySelector('[data-part="timeline"]')?.hidden ?? true) return;
  for (const button of document.querySelectorAll('[data-action="show"]')) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const { rank, step, name, offset, duration } = button.dataset;
      const slice = name === undefined ? null : { name, offset: Number(offset), duration: Number(duration) };
      const finding = Number(button.closest(".finding")?.id.replace("finding-", "")) || null;
      const detail = { rank: Number(rank), step: Number(step), slice, finding };
      document.dispatchEvent(new CustomEvent("hpcprof:show", { detail }));
    });
  }
}

/** Shows a finding in the timeline if it is that of a rank and step, and returns whether it is. */
export function showFinding(finding, rank, step) {
  const button = document.querySelector(`#finding-${finding} [data-action="show"]:not([hidden])`);
  if (Number(button?.dataset.rank) !== rank || Number(button.dataset.step) !== step) return false;
  button.click();
  return true;
}
