"use strict";
// Texts of nodes: marked search hits, mathematics, and tokens shaded by their log-probs.
const MATH = /\$\$([^$]+)\$\$|\\\[([\s\S]+?)\\\]|\$([^$\n]+)\$|\\\(([\s\S]+?)\\\)|(\\boxed\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})/g;

function marked(text, query) {
  const span = node("span");
  if (!query) { span.textContent = text; return span; }
  const low = text.toLowerCase(), wanted = query.toLowerCase();
  let at = 0;
  for (let hit = low.indexOf(wanted); hit >= 0; hit = low.indexOf(wanted, at)) {
    span.append(text.slice(at, hit), node("mark", {}, text.slice(hit, hit + wanted.length)));
    at = hit + wanted.length;
  }
  span.append(text.slice(at));
  return span;
}

function formula(source, display) {
  const holder = node("span", { class: "math", title: source });
  try {
    temml.render(source, holder, { displayMode: display, throwOnError: true, strict: false, trust: false, maxExpand: 200 });
  } catch (error) {
    holder.textContent = source; // not LaTeX after all
  }
  return holder;
}

function rendered(text, query, math) {
  if (!math) return marked(text, query);
  const span = node("span");
  let at = 0;
  for (const match of text.matchAll(MATH)) {
    span.append(marked(text.slice(at, match.index), query));
    const [whole, display, bracket, dollar, paren, boxed] = match;
    span.append(formula(display || bracket || dollar || paren || boxed, Boolean(display || bracket)));
    at = match.index + whole.length;
  }
  span.append(marked(text.slice(at), query));
  return span;
}

// Tokens, the less likely the darker; a title gives each one's probability.
function shaded(entry) {
  const span = node("span", { class: "tokens" });
  const letters = Array.from(entry.text); // spans count code points
  let at = 0;
  entry.spans.forEach((length, i) => {
    const logprob = entry.logprobs[i];
    const strength = Math.min(1, -logprob / 4);
    const piece = letters.slice(at, at + length).join("");
    at += length;
    if (!piece) return;
    span.append(node("span", {
      class: "token", title: `p = ${Math.exp(logprob).toFixed(3)} · log p = ${logprob}`,
      style: { backgroundColor: `rgb(var(--shade) / ${(0.85 * strength).toFixed(2)})` },
    }, piece));
  });
  return span;
}
