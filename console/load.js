// Draws the server's load from its metrics.

import { readMetrics } from "./api.js";
import { element } from "./elements.js";

const INTERVAL_MS = 2000;
const NUM_POINTS = 90;  // three minutes
const SVG = "http://www.w3.org/2000/svg";

// What is drawn: a title, and the value in metrics `m`, or its increase per second.
const CHARTS = [
  { title: "Calls/s", value: callsOfModels, isRate: true },
  { title: "Tokens in/s", value: (m) => m.sum("triune_tokens_total", 'direction="in"'), isRate: true },
  { title: "Tokens out/s", value: (m) => m.sum("triune_tokens_total", 'direction="out"'), isRate: true },
  { title: "Running", value: (m) => m.sum("triune_sequences_running") },
  { title: "Waiting", value: (m) => m.sum("triune_sequences_waiting") },
  { title: "Memory, MB", value: (m) => m.sum("triune_process_resident_bytes") / 1e6 },
];

/** The calls that named a model: those of this page for metrics and the list of models do not. */
function callsOfModels(m) {
  const name = "triune_requests_total";
  return m.sum(name) - m.sum(name, 'model="unknown"');
}

/** Metrics in Prometheus's text format. `sum`: over all series that have the labels. */
export function parseMetrics(text) {
  const series = text.split("\n").filter((line) => line && !line.startsWith("#"));
  return {
    sum(name, labels = "") {
      let total = 0;
      for (const line of series) {
        const isNamed = line.startsWith(`${name}{`) || line.startsWith(`${name} `);
        if (isNamed && line.includes(labels)) total += Number(line.slice(line.lastIndexOf(" ")));
      }
      return total;
    },
  };
}

/** The increase per second, 0 if the counter began anew. */
export function rate(before, now, seconds) {
  return seconds > 0 ? Math.max(now - before, 0) / seconds : 0;
}

function makeChart({ title }) {
  const line = document.createElementNS(SVG, "polyline");
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${NUM_POINTS - 1} 1`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.append(line);
  const number = element("b");
  const points = [];
  return {
    node: element("div", { className: "chart" }, number, title, svg),
    add(value) {
      points.push(value);
      if (points.length > NUM_POINTS) points.shift();
      const highest = Math.max(...points, 1e-9);
      const first = NUM_POINTS - points.length;
      line.setAttribute("points",
        points.map((point, i) => `${first + i},${(1 - point / highest).toFixed(3)}`).join(" "));
      number.textContent = value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
    },
  };
}

/** Draws the load in `place` from now on. */
export function watchLoad(place) {
  const charts = CHARTS.map((chart) => ({ ...chart, ...makeChart(chart), before: null }));
  place.replaceChildren(element("h2", {}, "Load"), ...charts.map(({ node }) => node));
  let at = null;

  async function update() {
    if (document.hidden) return;
    let metrics;
    try {
      metrics = parseMetrics(await readMetrics());
    } catch {
      return;  // the page says that the server does not answer
    }
    const now = performance.now();
    for (const chart of charts) {
      const value = chart.value(metrics);
      if (!chart.isRate) chart.add(value);
      else if (chart.before !== null) chart.add(rate(chart.before, value, (now - at) / 1000));
      chart.before = value;
    }
    at = now;
  }

  update();
  setInterval(update, INTERVAL_MS);
}
