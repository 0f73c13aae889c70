"use strict";
// Choosing a tree: step, filters, search over questions at once and over responses piece by piece.
const explorer = { run: 0, index: [], filters: 0, step: "", query: "", hits: null, open: null, searching: 0 };
const PAGE = 120;

async function openRun(run) {
  explorer.run = run;
  explorer.index = await piece(`index-${run}`);
  const files = [...new Set(explorer.index.map((row) => row[0]))];
  const select = document.getElementById("step");
  select.replaceChildren(node("option", { value: "" }, "all"), ...files.map((f) => node("option", { value: f }, stepName(f))));
  const { shown, all } = DATA.runs[run].tree_files;
  document.getElementById("tree-count").textContent =
    `${explorer.index.length.toLocaleString("en")} trees of ${DATA.runs[run].name}` + (shown < all ? `, from ${shown} of ${all} files, evenly spaced` : "");
  explorer.step = files.filter((f) => /^\d+$/.test(f)).at(-1) || files[0] || "";
  select.value = explorer.step;
  showFilters();
  await search();
  if (explorer.matches.length) openTree(explorer.matches[0]);
  else document.getElementById("tree").replaceChildren(node("p", { class: "muted" }, "No trees here."));
}

function stepName(file) {
  const [, held, step, kind] = /^(held-out-)?(\d+)(-replaced)?$/.exec(file) || [null, "", file, ""];
  const count = String(Number(step));
  return held ? `held-out, step ${count}` : kind ? `step ${count}, replaced` : `step ${count}`;
}

function showFilters() {
  const counts = FLAGS.map(([bit]) => explorer.index.filter((row) => row[4] & bit).length);
  document.getElementById("filters").replaceChildren(...FLAGS.map(([bit, id, label, title], i) => node("button", {
    id: `filter-${id}`, class: "chip", title, "aria-pressed": String(Boolean(explorer.filters & bit)), disabled: !counts[i],
    onclick: () => { explorer.filters ^= bit; showFilters(); search(); },
  }, `${label} `, node("span", { class: "muted" }, String(counts[i])))));
}

// Rows that fit step, filters and words; words are looked up in wordings first, then in every response.
async function search() {
  const ticket = ++explorer.searching;
  const query = explorer.query.toLowerCase();
  const rows = explorer.index.filter((row) => (!explorer.step || row[0] === explorer.step) && (row[4] & explorer.filters) === explorer.filters);
  explorer.matches = query ? rows.filter((row) => `${row[3]} ${row[7]}`.toLowerCase().includes(query)) : rows;
  showList(query ? "searching…" : "");
  if (!query) return;
  const found = new Set(explorer.matches);
  const files = [...new Set(rows.map((row) => row[0]))];
  for (const [i, file] of files.entries()) {
    const trees = await piece(`trees-${explorer.run}-${file}`);
    if (ticket !== explorer.searching) return; // another search began
    for (const row of rows) {
      if (row[0] === file && !found.has(row) && trees[row[1]].nodes.some((n) => (n.wording || n.parent >= 0) && (n.wording || n.text).toLowerCase().includes(query))) found.add(row);
    }
    if (i % 20 === 19) showList(`searched ${i + 1} of ${files.length} files`);
  }
  explorer.matches = rows.filter((row) => found.has(row));
  showList("");
}

function showList(note) {
  const list = document.getElementById("list");
  const rows = explorer.matches.slice(0, PAGE);
  list.replaceChildren(...rows.map((row) => {
    const [file, line, , id, flags, mean, count, words] = row;
    const reward = node("span", { class: "meter", title: `mean reward ${number(mean)}` }, node("span", { style: { width: `${100 * Math.max(0, Math.min(1, mean || 0))}%` } }));
    const marks = FLAGS.filter(([bit]) => flags & bit).map(([, , label]) => node("span", { class: "mark" }, label));
    return node("li", {}, node("button", {
      class: "row", "aria-current": String(explorer.open === row), onclick: () => openTree(row, true),
    }, node("span", { class: "where" }, `${stepName(file)} · ${id} · ${count} leaves`), node("span", { class: "words" }, words), node("span", { class: "line" }, reward, ...marks)));
  }));
  const more = explorer.matches.length - rows.length;
  if (note || more > 0 || !rows.length) list.append(node("li", { class: "muted note" }, note || (rows.length ? `and ${more} more: narrow it down` : "no tree fits")));
}

async function openTree(row, jump = false) {
  explorer.open = row;
  const [file, line] = row;
  const trees = await piece(`trees-${explorer.run}-${file}`);
  if (explorer.open !== row) return;
  showTree(trees[line], file);
  for (const button of document.querySelectorAll("#list .row")) button.setAttribute("aria-current", "false");
  const place = explorer.matches.indexOf(row);
  document.querySelectorAll("#list .row")[place]?.setAttribute("aria-current", "true");
  if (jump && matchMedia("(max-width: 800px)").matches) document.getElementById("tree").scrollIntoView({ behavior: "smooth" });
}

function showTree(tree, file) {
  const toggle = (key, label, title) => node("label", { class: "toggle", title }, node("input", {
    type: "checkbox", id: `toggle-${key}`, checked: view[key], onchange: (e) => { view[key] = e.target.checked; showTree(tree, file); },
  }), label);
  const shadeable = tree.nodes.some((n) => n.spans);
  document.getElementById("tree").replaceChildren(
    node("div", { class: "treehead" },
      node("div", {}, node("strong", {}, `Question ${tree.question.id}`), node("span", { class: "muted" }, ` ${stepName(file)}`)),
      node("div", {}, "reference ", node("code", {}, String(tree.question.answer ?? "none").slice(0, 300)))),
    node("div", { class: "toggles" }, toggle("math", "mathematics"), shadeable ? toggle("shade", "log-probs", "the darker, the less likely") : null, toggle("prompts", "whole prompts")),
    treeView(tree, explorer.query));
}

document.getElementById("step").addEventListener("change", (e) => { explorer.step = e.target.value; search(); });
let typing;
document.getElementById("search").addEventListener("input", (e) => {
  clearTimeout(typing);
  typing = setTimeout(() => { explorer.query = e.target.value.trim(); search(); }, 180);
});
