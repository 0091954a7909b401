// The list of runs: the bar says which runs are to be compared. While a run in it has not ended, its rows are asked for again.
const PAUSE = 15_000;

/** Renews the rows of the list while the page is in sight and no run is ticked. */
export function renewRuns(table) {
  setTimeout(async () => {
    let changing = true;
    if (!document.hidden && !table.querySelector(":checked")) {
      try {
        const answer = await fetch(location.href);
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = page.querySelector("table.runs");
        if (answer.ok && fresh && !table.querySelector(":checked")) {
          for (const body of [...table.tBodies]) body.remove();
          table.append(...[...fresh.tBodies].map((body) => document.importNode(body, true)));
          changing = "changing" in fresh.dataset;
        }
      } catch {
        // The server is away; the rows stay as they are.
      }
    }
    if (changing) renewRuns(table);
  }, PAUSE);
}

/** Says in the bar below the list which runs are ticked. */
export function nameCompared(form) {
  const said = form.querySelector("[data-chosen]");
  const advice = said.textContent;
  form.addEventListener("change", () => {
    const ticked = ["baseline", "candidate"].map((name) => [...form.querySelectorAll(`[name=${name}]:checked`)].map(({ value }) => value));
    const [a, b] = ticked.map((ids) => (ids.length ? ids.join(", ") : "none yet"));
    said.textContent = ticked.flat().length ? `A: ${a}; B: ${b}` : advice;
  });
}
