"use strict";
// Charts, drawn by uPlot: runs overlaid, smoothed, with bands where there are intervals.
const charts = [];
let smoothing = 0.6;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const faint = (color) => color + "38";

// Exponential moving average without the bias of its beginning; gaps stay gaps.
function smooth(values) {
  let mean = 0, weight = 0;
  return values.map((v) => {
    if (v === null || v === undefined) return null;
    mean = smoothing * mean + (1 - smoothing) * v;
    weight = smoothing * weight + (1 - smoothing);
    return mean / weight;
  });
}

function axis(extra = {}) {
  return {
    stroke: css("--muted"), font: "11px system-ui, sans-serif", size: 44,
    grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, ...extra,
  };
}


// All-equal values stand in the middle, and not on a scale to 100.
function padded(u, low, high) {
  if (low === null) return [0, 1];
  return high - low < 1e-12 ? [low - 0.5 * (Math.abs(low) || 1), high + 0.5 * (Math.abs(high) || 1)] : uPlot.rangeNum(low, high, 0.1, true);
}

// lines: [{label, color, x, y, low, high, raw}]; all of one chart are joined on their x.
function chart(host, title, lines, options = {}) {
  const box = node("figure", { class: "chart" }, node("figcaption", {}, title));
  host.append(box);
  if (!lines.some((l) => l.y.some((v) => v !== null && v !== undefined))) {
    box.append(node("p", { class: "muted" }, "nothing was logged"));
    return box;
  }
  const series = [{ label: options.x || "step" }], bands = [], tables = [];
  const push = (x, y, spec) => { tables.push([x, y]); series.push(spec); return series.length - 1; };
  const show = (u, v) => number(v);
  for (const l of lines) {
    if (l.low) {
      const high = push(l.x, l.high, { label: `${l.label} high`, stroke: "transparent", class: "aid", points: { show: false }, value: show });
      const low = push(l.x, l.low, { label: `${l.label} low`, stroke: "transparent", class: "aid", points: { show: false }, value: show });
      bands.push({ series: [high, low], fill: faint(l.color) });
    }
    const smoothed = l.smooth && smoothing > 0;
    if (smoothed) push(l.x, l.y, { label: `${l.label} raw`, class: "aid", stroke: l.color + "55", width: 1, points: { show: false }, value: show });
    push(l.x, smoothed ? smooth(l.y) : l.y, {
      label: l.label, stroke: l.color, width: 2, dash: l.dash, value: show, spanGaps: true,
      points: { show: l.x.length < 2 || !l.smooth, size: 6 },
    });
  }
  const draw = () => new uPlot({
    width: Math.max(220, box.clientWidth), height: options.height || 190,
    cursor: { sync: options.sync ? { key: options.sync } : undefined, points: { size: 7 }, y: false },
    legend: { live: true }, series, bands,
    scales: { x: { time: false, ...(options.scaleX || {}) }, y: { range: padded } },
    axes: [axis({ size: 30, ...(options.axisX || {}) }), axis({ values: (u, ticks) => ticks.map((v) => number(v)) })],
  }, uPlot.join(tables), box);
  charts.push({ box, plot: draw(), draw });
  return box;
}

function histogramChart(host, title, histograms) {
  const box = node("figure", { class: "chart" }, node("figcaption", {}, title));
  host.append(box);
  const known = histograms.filter((h) => h.data);
  if (!known.length) { box.append(node("p", { class: "muted" }, "nothing was logged")); return; }
  const tables = [], series = [{ label: "from" }];
  for (const h of known) {
    const total = h.data.counts.reduce((a, b) => a + b, 0);
    tables.push([h.data.edges.slice(0, -1), h.data.counts.map((c) => c / total)]);
    series.push({
      label: h.label, stroke: h.color, fill: h.color + "55", width: 1, points: { show: false },
      paths: uPlot.paths.bars({ align: 1, size: [1, Infinity] }), value: (u, v) => (v === null ? "–" : (100 * v).toFixed(1) + " %"),
    });
  }
  const from = Math.min(...known.map((h) => h.data.edges[0])), to = Math.max(...known.map((h) => h.data.edges.at(-1)));
  const draw = () => new uPlot({
    width: Math.max(220, box.clientWidth), height: 190, cursor: { y: false, points: { show: false } }, series,
    scales: { x: { time: false, range: () => [from, to] }, y: { range: (u, low, high) => [0, high * 1.05] } },
    axes: [axis({ size: 30 }), axis({ values: (u, ticks) => ticks.map((v) => (100 * v).toFixed(0) + " %") })],
  }, uPlot.join(tables), box);
  charts.push({ box, plot: draw(), draw });
}

// Charts of this part of the page are gone.
function forget(host) {
  for (let i = charts.length - 1; i >= 0; i--) {
    if (host.contains(charts[i].box)) { charts[i].plot.destroy(); charts.splice(i, 1); }
  }
  host.replaceChildren();
}

let resizing;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    for (const c of charts) c.plot.setSize({ width: Math.max(220, c.box.clientWidth), height: c.plot.height });
  }, 120);
});
