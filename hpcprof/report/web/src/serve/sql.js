// The page that asks SQL. The query is part of the address, so that it can be sent to others.
import { make, row } from "./live.js";

const MOST_SHOWN = 1000;

/** Lets a form ask. */
export function askSql(form) {
  const { sql, runs } = form.elements;
  for (const button of document.querySelectorAll("[data-example]")) {
    button.addEventListener("click", () => {
      sql.value = button.dataset.example;
      runs.value = button.dataset.runs;
      ask(form);
    });
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(form);
  });
  document.querySelector("[data-csv]").addEventListener("click", () => save(form));
  if (sql.value.trim()) ask(form);
}

function query(form) {
  const { sql, runs } = form.elements;
  return { sql: sql.value, runs: runs.value.split("\n").map((run) => run.trim()).filter(Boolean) };
}

async function send(form, format = "") {
  const answer = await fetch(`/api/sql${format}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(query(form)),
  });
  if (answer.ok) return answer;
  const said = await answer.text();
  let why = said;
  try {
    why = JSON.parse(said).error;
  } catch {
    // A sentence of its own.
  }
  throw new Error(why);
}

async function ask(form) {
  const { sql, runs } = query(form);
  const named = new URLSearchParams([["sql", sql], ...runs.map((run) => ["runs", run])]);
  history.replaceState(null, "", `?${named}`);
  const note = document.querySelector("[data-sql-note]");
  note.textContent = "Running …";
  await guarded(async () => {
    const { columns, rows, truncated, notes } = await (await send(form)).json();
    const place = document.querySelector("[data-sql-table]");
    const table = place.querySelector("table");
    place.hidden = false;
    table.tHead.replaceChildren(row(columns, "th"));
    table.tBodies[0].replaceChildren(...rows.slice(0, MOST_SHOWN).map((values) => row(values)));
    const more = rows.length > MOST_SHOWN ? `; the first ${MOST_SHOWN} are shown, the CSV has them all` : "";
    const cut = truncated ? " (the limit: there are more)" : "";
    note.textContent = [`${rows.length} ${rows.length === 1 ? "row" : "rows"}${cut}${more}.`, ...notes].join(" ");
  });
}

async function save(form) {
  await guarded(async () => {
    const link = make("a", "");
    link.href = URL.createObjectURL(await (await send(form, "?format=csv")).blob());
    link.download = "query.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

async function guarded(work) {
  const problem = document.querySelector("[data-sql-error]");
  problem.hidden = true;
  try {
    await work();
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
    document.querySelector("[data-sql-note]").textContent = "";
  }
}
