// Tables that sort, filter, fold long names, show many rows in pages, and export CSV.
// A table is drawn when its section is opened for the first time.
import { count } from "./units.js";

const PAGE = 100;
const MISSING = "–";
/** The longest text, in characters, that is never broken over lines on a screen: a time, a short name. */
const ON_ONE_LINE = 26;

/**
 * Prepares the tables of a page.
 * @param {HTMLElement} element the part of the page, with a `details` of id `table-<name>` for each table
 * @param {{name: string, columns: object[]}[]} tables what `table_data` in Python returned
 */
export function drawTables(element, tables) {
  for (const data of tables) {
    const section = document.getElementById(`table-${data.name}`);
    const draw = once(() => section.append(tableElement(data, section)));
    if (section.open) draw();
    section.addEventListener("toggle", () => section.open && draw());
  }
  openNamed();
  window.addEventListener("hashchange", openNamed);
  openForPaper(element);
}

/** Opens the table that the address names, to which the findings link. */
function openNamed() {
  const named = location.hash.startsWith("#table-") && document.getElementById(location.hash.slice(1));
  if (!named) return;
  named.open = true;
  named.scrollIntoView();
}

/** Opens every table while the page is printed. */
function openForPaper(element) {
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...element.querySelectorAll("details:not([open])")];
    for (const details of closed) {
      details.open = true;
      details.dispatchEvent(new Event("toggle"));
    }
  });
  window.addEventListener("afterprint", () => {
    for (const details of closed) details.open = false;
  });
}

function tableElement(data, section) {
  const title = section.querySelector("summary").firstChild.textContent.trim();
  const state = { order: rowNumbers(data), page: 0, sorted: null, descending: false, filter: "" };
  const body = make("tbody");
  const said = make("output", { className: "note" });
  const pages = make("span", { className: "pages no-print" });
  const heads = data.columns.map((column) => headOf(column, () => sort(column)));

  function show() {
    const from = state.page * PAGE;
    const rows = state.order.slice(from, from + PAGE);
    body.replaceChildren(...rows.map((row) => rowElement(data, row)));
    said.textContent = rowsSaid(from, rows.length, state.order.length, rowCount(data));
    pages.replaceChildren(...(state.order.length > PAGE ? pageButtons(state, show) : []));
  }
  function choose() {
    state.order = sortedRows(data, matching(data, state.filter), state);
    state.page = 0;
    show();
  }
  function sort(column) {
    // Large figures first, names from a to z.
    state.descending = state.sorted === column ? !state.descending : Boolean(column.texts);
    state.sorted = column;
    heads.forEach((head, place) => {
      const own = data.columns[place] === column;
      head.ariaSort = own ? (state.descending ? "descending" : "ascending") : null;
    });
    choose();
  }

  const filter = make("input", { type: "search", placeholder: "Filter", ariaLabel: `Filter ${title}` });
  filter.addEventListener("input", () => {
    state.filter = filter.value.trim().toLowerCase();
    choose();
  });
  const save = button("Save as CSV", () => download(`${data.name}.csv`, csv(data)));
  save.ariaLabel = `Save ${title} as CSV`;
  const tools = make("div", { className: "tools" }, ...(rowCount(data) > 1 ? [filter] : []), save, said, pages);
  const caption = make("caption", { className: "hidden-text", textContent: title });
  const head = make("thead", {}, make("tr", {}, ...heads));
  const scroll = make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: title });
  scroll.append(make("table", {}, caption, head, body));
  show();
  return make("div", {}, tools, scroll);
}

function headOf(column, sort) {
  const head = make("th", { scope: "col", className: column.texts ? "" : "text" });
  head.dataset.title = column.header;
  head.append(button(column.header, sort));
  return head;
}

function rowElement(data, row) {
  return make("tr", {}, ...data.columns.map((column) => {
    if (column.texts) return make("td", { textContent: column.texts[row] });
    const text = column.values[row] ?? MISSING;
    const cell = make("td", { className: text.length > ON_ONE_LINE ? "text" : "text short" });
    if (column.links) {
      cell.append(make("a", { href: column.links[row], textContent: text }));
      return cell;
    }
    cell.append(column.short[text] ? foldedName(text, column.short[text]) : text);
    return cell;
  }));
}

/** Returns a long name in short, which a click unfolds. */
function foldedName(whole, short) {
  const name = make("span", { className: "name", textContent: short, title: whole });
  const copy = button("Copy", () => copyText(whole, name));
  copy.hidden = true;
  const fold = button("…", () => {
    const opened = fold.ariaExpanded === "true";
    fold.ariaExpanded = String(!opened);
    name.textContent = opened ? short : whole;
    copy.hidden = opened;
  });
  fold.ariaExpanded = "false";
  fold.ariaLabel = "Whole name";
  fold.className = "fold";
  return make("span", {}, name, " ", fold, copy);
}

function copyText(text, element) {
  if (navigator.clipboard) navigator.clipboard.writeText(text).catch(() => select(element));
  else select(element);
}

const select = (element) => getSelection().selectAllChildren(element);

function pageButtons(state, show) {
  const last = Math.ceil(state.order.length / PAGE) - 1;
  const turn = (name, by) => {
    const made = button(name, () => {
      state.page = Math.min(last, Math.max(0, state.page + by));
      show();
    });
    made.disabled = state.page + by < 0 || state.page + by > last;
    return made;
  };
  return [turn("Previous", -1), ` page ${state.page + 1} of ${count(last + 1)} `, turn("Next", 1)];
}

/** Returns which rows are shown; nothing if that is all of them. */
function rowsSaid(from, shown, found, all) {
  const of = found === all ? count(all) : `${count(found)} found among ${count(all)}`;
  if (shown < found) return `rows ${count(from + 1)} to ${count(from + shown)} of ${of}`;
  return found === all ? "" : of;
}

const rowCount = (data) => data.columns[0].values.length;
const rowNumbers = (data) => Array.from({ length: rowCount(data) }, (_, row) => row);

/** Returns the rows in which some cell contains the text, as it is shown or whole. */
function matching(data, text) {
  const rows = rowNumbers(data);
  if (!text) return rows;
  const shown = (column, row) => String(column.texts?.[row] ?? column.values[row] ?? MISSING).toLowerCase();
  return rows.filter((row) => data.columns.some((column) => shown(column, row).includes(text)));
}

function sortedRows(data, rows, { sorted, descending }) {
  if (!sorted) return rows;
  const sign = descending ? -1 : 1;
  const { values } = sorted;
  // Missing values come last in either direction.
  return rows.sort((a, b) => {
    const [one, other] = [values[a], values[b]];
    if (one === null || other === null) return (one === null) - (other === null);
    return sign * (one < other ? -1 : one > other ? 1 : 0);
  });
}

/** Returns all rows of a table as CSV: names of columns and values as they are stored, times in nanoseconds. */
export function csv(data) {
  const quoted = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const line = (values) => values.map((value) => quoted(String(value ?? ""))).join(",");
  const rows = rowNumbers(data).map((row) => line(data.columns.map((column) => column.values[row])));
  return `${[line(data.columns.map((column) => column.name)), ...rows].join("\r\n")}\r\n`;
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function once(act) {
  let done = false;
  return () => {
    if (!done) act();
    done = true;
  };
}

function button(text, act) {
  const made = make("button", { type: "button", textContent: text });
  made.addEventListener("click", act);
  return made;
}

/** Returns a new element; texts among the children stay texts. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
