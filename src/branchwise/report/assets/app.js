"use strict";
// The page: runs, headline numbers, findings, curves, evaluations.
const hidden = new Set();
let focus = 0;
const color = (r) => PALETTE[r % PALETTE.length];
const shown = () => DATA.runs.map((run, r) => [run, r]).filter(([, r]) => !hidden.has(r));

const CURVES = [
  ["Reward", ["reward"]], ["Held-out reward", "held_out"],
  ["Uniform pools, by question", ["uniform/question"]], ["Uniform pools, by phrasing", ["uniform/phrasing"]],
  ["Uniform at a common size", ["uniform_common/question", "uniform_common/phrasing"]],
  ["Rescued by pooling", ["rescued/phrasing"]],
  ["Gradient norm", ["grad_norm"]], ["Gradient spike score", ["gss"]],
  ["Variance of rewards", ["variance/within", "variance/between"]], ["Entropy, nats a token", ["entropy_estimate"]],
  ["KL to the reference", ["kl"]], ["Clipped tokens", ["clip_high/thought", "clip_low/thought"]],
  ["Tokens of a thought", ["thought_tokens"]], ["Tokens by outcome", ["response_tokens/right", "response_tokens/wrong"]],
  ["Unclosed thoughts", ["unclosed"]], ["Sampler and policy, mean |Δ log p|", ["mismatch"]],
  ["Shift of context, phrasing 1", ["context_shift/1"]], ["Tokens a second", ["tokens_per_second"]],
  ["Seconds by stage", ["seconds/sampling", "seconds/update", "seconds/rewards"]], ["Memory, MB", ["memory/peak_mb"]],
];
const DASHES = [undefined, [6, 4], [2, 3]];

function linesOf(keys) {
  return shown().flatMap(([run, r]) => keys.filter((key) => run.series[key]).map((key, i) => ({
    label: [DATA.runs.length > 1 ? run.name : null, keys.length > 1 ? key.split("/").at(-1) : null].filter(Boolean).join(" ") || key,
    color: keys.length > 1 && DATA.runs.length === 1 ? color(i) : color(r), dash: DATA.runs.length > 1 ? DASHES[i] : undefined,
    x: run.steps, y: run.series[key], smooth: true,
  })));
}

function heldOutLines() {
  return shown().filter(([run]) => run.held_out.length).map(([run, r]) => ({
    label: run.name, color: color(r), x: run.held_out.map((h) => h[0]), y: run.held_out.map((h) => h[1]), low: run.held_out.map((h) => h[2]), high: run.held_out.map((h) => h[3]),
  }));
}

function showCurves() {
  const host = document.getElementById("charts");
  forget(host);
  for (const [title, keys] of CURVES) {
    const lines = keys === "held_out" ? heldOutLines() : linesOf(keys);
    if (lines.length) chart(host, title, lines, { sync: "steps" });
  }
  showOther();
}

function showOther() {
  const host = document.getElementById("other"), select = document.getElementById("metric");
  forget(host);
  if (document.getElementById("more").open && select.value) chart(host, select.value, linesOf([select.value]), { sync: "steps" });
}

function showEvals() {
  const host = document.getElementById("evals");
  forget(host);
  const suites = [...new Set(DATA.runs.flatMap((run) => run.evals.map((e) => e.suite)))];
  for (const suite of suites) {
    let i = 0;
    const lines = shown().flatMap(([run]) => run.evals.filter((e) => e.suite === suite && e.passes.length).map((e) => ({
      label: DATA.runs.length > 1 ? `${run.name} ${e.model}` : e.model, color: color(i++),
      x: e.passes.map((p) => p[0]), y: e.passes.map((p) => p[1]), low: e.passes.map((p) => p[2]), high: e.passes.map((p) => p[3]),
    })));
    if (lines.length) chart(host, `pass@k, ${suite}`, lines, { x: "k", scaleX: { distr: 3, log: 2 }, height: 260, axisX: { values: (u, ticks) => ticks.map((v) => (Number.isInteger(v) ? v : "")) } });
    const stepped = shown().flatMap(([run, r]) => {
      const evals = run.evals.filter((e) => e.suite === suite && e.step !== null);
      return ["uniform", "answers_disagree", "diversity"].filter((key) => evals.some((e) => key in e.shares)).map((key, j) => ({
        label: (DATA.runs.length > 1 ? `${run.name} ` : "") + key.replace("_", " "),
        color: color(DATA.runs.length > 1 ? r : j), dash: DATA.runs.length > 1 ? DASHES[j] : undefined, x: evals.map((e) => e.step), y: evals.map((e) => e.shares[key] ?? null),
      }));
    });
    if (stepped.length) chart(host, `Fixed questions by checkpoint, ${suite}`, stepped, { height: 260 });
  }
  if (!suites.length) host.append(node("p", { class: "muted" }, "No evaluation yet: branchwise eval RUN writes pass@k curves to the run, and they show here."));
  const below = document.getElementById("distributions");
  forget(below);
  for (const [key, title] of [["reward", "Rewards of leaves"], ["advantage", "Advantages of nodes"]]) {
    histogramChart(below, title, shown().map(([run, r]) => ({ label: run.name, color: color(r), data: run.distributions[key] })));
  }
}

const last = (run, key, count = 10) => {
  const values = (run.series[key] || []).filter((v) => v !== null).slice(-count);
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
};

function tiles(run) {
  const held = run.held_out, level = run.config.algorithm.pool;
  const percent = (x) => (x === null ? null : `${(100 * x).toFixed(0)} %`);
  const list = [
    held.length ? ["Held-out reward", number(held.at(-1)[1]), held.length > 1 ? `from ${number(held[0][1])}, 95% ${number(held.at(-1)[2])} to ${number(held.at(-1)[3])}` : `95% ${number(held.at(-1)[2])} to ${number(held.at(-1)[3])}`] : null,
    ["Training reward", number(last(run, "reward")), "mean of the last 10 steps"],
    ["Uniform pools", percent(last(run, `uniform/${level}`)) ?? "–", `by ${level}; they teach nothing`],
    last(run, "rescued/phrasing") !== null ? ["Rescued pools", percent(last(run, "rescued/phrasing", 1e9)), "uniform alone, not with their question"] : null,
    last(run, "unclosed") !== null ? ["Unclosed thoughts", percent(last(run, "unclosed")), "mean of the last 10 steps"] : null,
    last(run, "gss_at_10", 1) !== null ? ["GSS@10", percent(last(run, "gss_at_10", 1)), "updates with spiking gradients"] : null,
    ["Speed", number(last(run, "tokens_per_second", 1e9), 0), "sampled tokens a second"],
  ];
  return list.filter(Boolean).map(([name, value, note]) => node("div", { class: "tile" }, node("div", { class: "label" }, name), node("div", { class: "value" }, value), node("div", { class: "muted" }, note)));
}

function showOverview() {
  const run = DATA.runs[focus], c = run.config;
  document.getElementById("title").textContent = run.name;
  const shape = `${c.tree.rephrasings ? `${c.tree.rephrasings + 1} phrasings × ` : ""}${c.tree.thoughts} thoughts × ${c.tree.answers} answers`;
  const state = run.summary ? `${run.steps.length} steps` : `step ${run.steps.at(-1) || 0} of ${c.train.steps}`;
  document.getElementById("subtitle").textContent = `${c.preset || "custom"} · ${c.model.path} · ${shape} · pool by ${c.algorithm.pool} · ${state}`;
  document.getElementById("tiles").replaceChildren(...tiles(run));
  document.getElementById("findings").replaceChildren(...run.findings.map((f) => node("div", { class: `finding ${f.level}` },
    node("strong", {}, f.what), node("div", {}, f.evidence), f.remedy ? node("div", { class: "remedy" }, `Change: ${f.remedy}`) : null)));
}

function showRuns() {
  const host = document.getElementById("runs");
  host.hidden = DATA.runs.length < 2;
  host.replaceChildren(...DATA.runs.map((run, r) => node("span", { class: `run ${r === focus ? "focus" : ""}` },
    node("button", { class: "swatch", title: hidden.has(r) ? "show in charts" : "hide in charts", "aria-pressed": String(!hidden.has(r)), "aria-label": `${run.name} in charts`, style: { background: hidden.has(r) ? "transparent" : color(r), borderColor: color(r) },
      onclick: () => { hidden.has(r) ? hidden.delete(r) : hidden.add(r); showRuns(); showCurves(); showEvals(); } }),
    node("button", { class: "name", onclick: () => { focus = r; showRuns(); showOverview(); openRun(r); } }, run.name))));
}

function showAll() { showRuns(); showOverview(); showCurves(); showEvals(); }

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  showCurves(); showEvals();
}

document.getElementById("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
document.getElementById("smoothing").addEventListener("input", (e) => {
  smoothing = Number(e.target.value);
  document.getElementById("smoothing-value").value = smoothing.toFixed(2);
  showCurves();
});
const metrics = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.series)))].sort();
document.getElementById("metric").append(...metrics.map((m) => node("option", {}, m)));
document.getElementById("metric").addEventListener("change", showOther);
document.getElementById("more").addEventListener("toggle", showOther);

document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
showAll();
openRun(0).then(() => { document.body.dataset.ready = "yes"; });

// A run that goes on: its numbers anew every few seconds; the tree that is open stays.
if (DATA.live) setInterval(async () => {
  const fresh = await (await fetch("data.json")).json();
  if (JSON.stringify(fresh.runs.map((r) => r.steps.length)) === JSON.stringify(DATA.runs.map((r) => r.steps.length))) return;
  DATA.runs = fresh.runs;
  pieces.delete(`index-${explorer.run}`);
  showAll();
  explorer.index = await piece(`index-${explorer.run}`);
  showFilters();
  const chosen = explorer.step, files = [...new Set(explorer.index.map((row) => row[0]))];
  document.getElementById("step").replaceChildren(node("option", { value: "" }, "all"), ...files.map((f) => node("option", { value: f }, stepName(f))));
  document.getElementById("step").value = chosen;
  search();
}, 4000);
