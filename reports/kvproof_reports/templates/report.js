"use strict";
// What the page can do beyond being read: choose, sort, filter, save as CSV, draw. Without it all text and tables stand.
const able = typeof DecompressionStream !== "undefined"; // browsers since 2023; an older one is served as if it had no scripts
if (able) document.documentElement.classList.add("js");

const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const make = (tag, fields = {}) => Object.assign(document.createElement(tag), fields);

// What was recorded stands behind what is shown: rows of figures hold it as an array, the others in their cells.
const raw = (row, index) => String(row.figures ? (row.figures[index] ?? "") : (row.cells[index].dataset.raw ?? row.cells[index].textContent.trim()));

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// ---- Selectors: a section's selects hide the rows and traces of other choices.

const chosen = (section) => all(".facets select", section).map((select) => [select.name, select.value]);
const matches = (values, choices) =>
  choices.every(([name, value]) => value === "" || values[name] === undefined || String(values[name]).split(" ").includes(value));

// What was not timed can't be chosen: each select offers what the choices before it leave, and moves on from what they don't.
function offer(section) {
  const before = [];
  for (const select of all(".facets select", section)) {
    const left = (plots[section.id]?.traces ?? []).filter((trace) => trace.facets[select.name] !== undefined && matches(trace.facets, before));
    if (left.length) {
      for (const option of select.options) option.disabled = option.value !== "" && !left.some((trace) => trace.facets[select.name] === Number(option.value));
      if (select.selectedOptions[0].disabled) select.value = [...select.options].find((option) => !option.disabled && option.value !== "").value;
    }
    before.push([select.name, select.value]);
  }
}

function refresh(section) {
  offer(section);
  const choices = chosen(section);
  for (const table of all("table.data", section)) {
    const word = (table.search?.value ?? "").toLowerCase();
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) row.hidden = !matches(row.dataset, choices) || !visibleText(row).includes(word);
    if (table.count) {
      const shown = rows.filter((row) => !row.hidden).length;
      table.count.textContent = shown === rows.length ? `${rows.length} rows` : `${shown} of ${rows.length} rows`;
    }
  }
  draw(section, choices);
}

// A law's row is searched by its law, not by what its closed panels hold.
const visibleText = (row) => [...row.cells].map((cell) => cell.dataset.raw ?? cell.textContent).join(" ").toLowerCase();

// ---- Tables

function sortBy(table, index) {
  const heads = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies[0].rows];
  const values = new Map(rows.map((row) => [row, raw(row, index)]));
  const numbers = rows.every((row) => values.get(row) === "" || !Number.isNaN(Number(values.get(row))));
  // Numbers begin with the largest, text with A.
  const before = heads[index].ariaSort;
  const upwards = before ? before === "descending" : !numbers;
  rows.sort((a, b) => {
    const [x, y] = [values.get(a), values.get(b)];
    if (x === "" || y === "") return (x === "") - (y === ""); // what is missing stays last
    const order = numbers ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true });
    return upwards ? order : -order;
  });
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[index].setAttribute("aria-sort", upwards ? "ascending" : "descending");
  table.tBodies[0].append(...rows);
}

// A spreadsheet runs a text that begins like a formula; an apostrophe keeps it a text.
const guarded = (value) => (/^[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : value);
const quoted = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);

function csv(table) {
  const heads = [...table.tHead.rows[0].cells].map((head) => head.dataset.name ?? head.textContent);
  const rows = table.figures ?? [...table.tBodies[0].rows].map((row) => [...row.cells].map((_, index) => raw(row, index)));
  return [heads, ...rows].map((row) => row.map((value) => quoted(guarded(String(value ?? "")))).join(",")).join("\r\n") + "\r\n";
}

function save(table) {
  const address = URL.createObjectURL(new Blob([csv(table)], { type: "text/csv" }));
  make("a", { href: address, download: `kvproof-${table.dataset.name}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const FEW = 6; // rows that nobody needs to search

function equip(table) {
  const section = table.closest("section");
  const tools = make("div", { className: "tools" });
  if (table.tBodies[0].rows.length > FEW) {
    table.search = make("input", { type: "search", placeholder: "filter rows", ariaLabel: `filter ${table.dataset.name}` });
    table.search.addEventListener("input", () => refresh(section));
    table.count = make("span", { className: "hint" });
    tools.append(table.search, table.count);
  }
  const button = make("button", { type: "button", textContent: "CSV", title: "All rows, with six digits" });
  button.addEventListener("click", () => save(table));
  tools.append(button);
  table.closest(".scroll").before(tools);
  [...table.tHead.rows[0].cells].forEach((head, index) => {
    const sorter = make("button", { type: "button", className: "sort" });
    sorter.append(...head.childNodes);
    sorter.addEventListener("click", () => sortBy(table, index));
    head.append(sorter);
  });
}

// ---- Plots

let Plot = null;
const plots = {}; // by the section that they stand in

// These buttons and no others: one of the rest sends the data to a web site.
const CONFIG = { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };

const LEGEND_BELOW = 72; // pixels, of which the axis takes its share

function layoutOf(given) {
  const height = (given.height ?? 420) - 60;
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 12, t: 12, b: 48 },
    font: { family: "system-ui, sans-serif", size: 13 },
    legend: { orientation: "h", y: -LEGEND_BELOW / height, yanchor: "top" },
    hovermode: "closest",
    hoverlabel: { namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: "rgba(128,128,128,0.6)" },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    showlegend: true,
    ...axesOf(given),
  };
}

const axesOf = (given) =>
  Object.fromEntries(
    Object.entries(structuredClone(given)).map(([name, axis]) =>
      axis?.title ? [name, { ...axis, title: { ...axis.title, font: { size: 13 }, standoff: 8 } }] : [name, axis],
    ),
  );

function draw(section, choices) {
  if (!Plot) return;
  for (const element of all(".plot", section)) {
    const { traces: known, layout } = plots[section.id];
    const traces = known.filter((trace) => matches(trace.facets, choices));
    const drawn = traces.map(({ facets, ...trace }) => structuredClone(trace));
    const nothing = { annotations: [{ text: "nothing was timed so", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }] };
    Plot.react(element, drawn, { ...layoutOf(layout), ...(drawn.length ? {} : nothing) }, CONFIG);
  }
}

// Paper is narrower than most screens, and a drawing does not reflow by itself.
const PAPER_WIDTH = 680;
const resize = (change) => Plot && all(".plot").forEach((element) => Plot.relayout(element, change));
addEventListener("beforeprint", () => resize({ autosize: false, width: PAPER_WIDTH }));
addEventListener("afterprint", () => resize({ autosize: true, width: null }));

// ---- Panels of the matrix close by Escape, and by a click elsewhere.

const closePanels = (kept) => all(".cell details[open]").forEach((panel) => panel !== kept && (panel.open = false));
addEventListener("keydown", (event) => event.key === "Escape" && closePanels());
addEventListener("click", (event) => closePanels(event.target.closest(".cell details")));

// ---- Begin

const sections = all("section");

async function begin() {
  const data = JSON.parse(await unpacked("data"));
  Object.assign(plots, data.plots);
  for (const table of all("table.data")) {
    table.figures = data.tables[table.dataset.name];
    [...table.tBodies[0].rows].forEach((row, index) => (row.figures = table.figures?.[index]));
    equip(table);
  }
  for (const section of sections) {
    for (const select of all(".facets select", section)) select.addEventListener("change", () => refresh(section));
    refresh(section);
  }
  if (!document.getElementById("plotly")) return;
  document.head.append(make("script", { textContent: await unpacked("plotly") }));
  Plot = window.Plotly;
  sections.forEach((section) => draw(section, chosen(section)));
}

if (able) window.ready = begin();
