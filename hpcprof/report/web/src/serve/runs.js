// The list of runs: while a run in it has not ended, its rows are asked for again.
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
          table.tBodies[0].replaceWith(document.importNode(fresh.tBodies[0], true));
          changing = "changing" in fresh.dataset;
        }
      } catch {
        // The server is away; the rows stay as they are.
      }
    }
    if (changing) renewRuns(table);
  }, PAUSE);
}
