"use strict";
// What the page starts from, and pieces that are unpacked when they are looked at.
const DATA = JSON.parse(document.getElementById("data").textContent);
const PALETTE = ["#0f8b8d", "#d1495b", "#6c63c7", "#c98a00", "#3a7d44", "#8d5a97"];
const FLAGS = [
  [1, "uniform", "Uniform", "all rewards equal: no gradient"],
  [2, "unclosed", "Unclosed", "a thought that never completes the marker"],
  [4, "phrasings", "Phrasings disagree", "mean rewards of wordings differ by more than 0.25"],
  [8, "split", "Answers split", "answers to one thought are paid differently"],
  [16, "failed", "Failed", "a reward is missing"],
  [32, "truncated", "Truncated", "an answer met its limit"],
];
const pieces = new Map();

async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// A piece by its id: from this file, or from the server of a run that goes on.
function piece(id) {
  if (!pieces.has(id)) {
    const element = document.getElementById(id);
    const text = element ? Promise.resolve(element.textContent) : fetch(`piece/${id}`).then((r) => r.text());
    pieces.set(id, text.then(unpack));
    if (pieces.size > 60) pieces.delete(pieces.keys().next().value);
  }
  return pieces.get(id);
}

function node(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(element.style, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined));
  return element;
}

function number(x, digits = 3) {
  if (x === null || x === undefined || !isFinite(x)) return "–";
  const size = Math.abs(x);
  if (size >= 10000) return Math.round(x).toLocaleString("en");
  if (size >= 100) return x.toFixed(0);
  if (size !== 0 && size < 0.001) return x.toExponential(1);
  return String(+x.toFixed(digits));
}
