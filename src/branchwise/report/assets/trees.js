"use strict";
// One tree: its map, and its phrasings, thoughts and answers as cards.
const view = { math: true, shade: false, prompts: false };

function childrenOf(tree) {
  const below = tree.nodes.map(() => []);
  tree.nodes.forEach((n, i) => { if (n.parent >= 0) below[n.parent].push(i); });
  return below;
}

function tint(advantage, scale) {
  if (advantage === undefined || advantage === null || Math.abs(advantage) < 1e-9) return "var(--zero)";
  const share = Math.round(25 + 75 * Math.min(1, Math.abs(advantage) / scale));
  return `color-mix(in oklab, var(${advantage > 0 ? "--up" : "--down"}) ${share}%, var(--zero))`;
}

function scaleOf(tree) {
  return Math.max(1e-6, ...tree.nodes.map((n) => Math.abs(n.advantage || 0)));
}

function valueOf(tree, below, i) {
  const n = tree.nodes[i];
  if (!below[i].length) return n.reward;
  const values = below[i].map((c) => valueOf(tree, below, c)).filter((v) => v !== null && v !== undefined);
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

const isUnclosed = (n) => n.kind === "thought" && (n.finish === "stop" || n.finish === "length");

// The whole tree at a glance: a leaf a line, a dot a node.
function mapOf(tree, below, scale) {
  const X = { phrasing: 70, thought: 170, response: 170, answer: 270 }, STEP = 13;
  const y = [], place = new Map();
  let line = 0;
  const settle = (i) => {
    if (!below[i].length) { y[i] = 12 + STEP * line++; } else {
      below[i].forEach(settle);
      y[i] = below[i].reduce((sum, c) => sum + y[c], 0) / below[i].length;
    }
    place.set(i, [X[tree.nodes[i].kind], y[i]]);
  };
  const roots = tree.nodes.map((n, i) => i).filter((i) => tree.nodes[i].parent < 0 && below[i].length);
  roots.forEach(settle);
  const middle = roots.reduce((sum, r) => sum + y[r], 0) / Math.max(1, roots.length);
  const SVG = "http://www.w3.org/2000/svg";
  const make = (tag, attributes) => {
    const e = document.createElementNS(SVG, tag);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    return e;
  };
  const svg = make("svg", { viewBox: `0 0 300 ${24 + STEP * Math.max(1, line)}`, class: "map", role: "img", "aria-label": "Map of the tree" });
  const link = (x0, y0, x1, y1) => svg.append(make("path", { d: `M${x0} ${y0}C${(x0 + x1) / 2} ${y0} ${(x0 + x1) / 2} ${y1} ${x1} ${y1}`, class: "link" }));
  for (const [i, [x1, y1]] of place) {
    const [x0, y0] = tree.nodes[i].parent < 0 ? [12, middle] : place.get(tree.nodes[i].parent);
    link(x0, y0, x1, y1);
  }
  svg.append(make("circle", { cx: 12, cy: middle, r: 6, class: "question" }));
  for (const [i, [cx, cy]] of place) {
    const n = tree.nodes[i];
    const dot = make("circle", { cx, cy, r: n.kind === "answer" ? 4.5 : 5.5, class: isUnclosed(n) ? "dot unclosed" : "dot" });
    dot.style.fill = n.kind === "phrasing" ? "var(--muted)" : tint(n.advantage, scale);
    const title = make("title", {});
    title.textContent = `${n.kind} ${n.index} · mean reward ${number(valueOf(tree, below, i))}` + (n.advantage === undefined ? "" : ` · advantage ${number(n.advantage)}`);
    dot.append(title);
    dot.addEventListener("click", () => {
      const card = document.getElementById(`node-${i}`);
      if (!card) return;
      card.scrollIntoView({ behavior: "smooth", block: "center" });
      card.classList.add("flash");
      setTimeout(() => card.classList.remove("flash"), 1200);
    });
    svg.append(dot);
  }
  return svg;
}

function badges(n, value) {
  const row = node("div", { class: "badges" });
  const add = (text, kind = "", title = "") => row.append(node("span", { class: `badge ${kind}`, title }, text));
  if (value !== null && value !== undefined) add(`${n.reward === undefined ? "V" : "R"} ${number(value)}`, "strong", n.reward === undefined ? "mean reward of what is below" : "reward");
  if (n.advantage !== undefined) add(`A ${n.advantage > 0 ? "+" : ""}${number(n.advantage, 2)}`, n.advantage > 1e-9 ? "up" : n.advantage < -1e-9 ? "down" : "", "advantage");
  if (n.parts && Object.keys(n.parts).length > 1) for (const [name, part] of Object.entries(n.parts)) add(`${name} ${part === null ? "n/a" : number(part)}`);
  add(`${n.tokens} tokens`);
  if (isUnclosed(n)) add("unclosed", "warn", n.finish === "length" ? "met its limit" : "ended before the marker");
  else if (n.finish === "length") add("truncated", "warn");
  if (n.reason) add(n.reason, "warn", "why the reward is missing");
  for (const [name, value] of Object.entries(n.extra || {})) add(`${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`, "", "written by a reward function");
  return row;
}

function card(tree, below, i, scale, query) {
  const n = tree.nodes[i];
  const shadeable = view.shade && n.spans && n.logprobs;
  const text = node("div", { class: "text" }, shadeable ? shaded(n) : rendered(n.text, query, view.math));
  const element = node("div", { class: `card ${n.kind}`, id: `node-${i}`, style: { borderLeftColor: tint(n.advantage, scale) } },
    node("div", { class: "name" }, `${n.kind} ${n.index}`), badges(n, valueOf(tree, below, i)), text);
  return element;
}

function treeView(tree, query) {
  const below = childrenOf(tree), scale = scaleOf(tree);
  const body = node("div", { class: "tree" });
  for (const [i, n] of tree.nodes.entries()) {
    if (n.parent >= 0 || !below[i].length) continue;
    const words = n.wording || n.text;
    const head = node("div", { class: "phrasing", id: `node-${i}` },
      node("div", { class: "name" }, n.index === 0 ? "original question" : `rephrasing ${n.index}`,
        node("span", { class: "badge strong" }, `mean reward ${number(valueOf(tree, below, i))}`)),
      node("div", { class: "text" }, rendered(view.prompts ? n.text : words, query, view.math)));
    const branches = node("div", { class: "branches" });
    for (const thought of below[i]) {
      const answers = node("div", { class: "answers" }, ...below[thought].map((a) => card(tree, below, a, scale, query)));
      branches.append(node("div", { class: "branch" }, card(tree, below, thought, scale, query), below[thought].length ? answers : null));
    }
    body.append(node("section", { class: "limb" }, head, branches));
  }
  return node("div", {}, node("div", { class: "mapbox" }, mapOf(tree, below, scale), legend(scale)), body);
}

function legend(scale) {
  return node("div", { class: "legend" },
    node("span", {}, `−${number(scale, 2)}`), node("span", { class: "ramp" }), node("span", {}, `+${number(scale, 2)}`),
    node("span", { class: "muted" }, "advantage; a ring is an unclosed thought"));
}
