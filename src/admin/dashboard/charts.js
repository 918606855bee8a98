// Charts of admitted and rejected requests per second, stacked, as inline SVG.

/** How far back the charts reach. */
const WINDOW_MS = 120_000;

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** The smallest of 1, 2, 5 times a power of ten that is at least `n`. */
function roundStep(n) {
  const power = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= n);
}

/** Paths through points of (time, lower, upper): the area between them, and the upper line. */
function area(points, x, y) {
  const at = (t, value) => `${x(t).toFixed(1)} ${y(value).toFixed(1)}`;
  const upper = points.map(([t, , top]) => at(t, top));
  const lower = points.map(([t, bottom]) => at(t, bottom)).reverse();
  return { fill: `M${upper.concat(lower).join("L")}Z`, line: `M${upper.join("L")}` };
}

function layers(points, x, y) {
  const admitted = area(points.map((p) => [p.t, 0, p.admitted]), x, y);
  const rejected = area(points.map((p) => [p.t, p.admitted, p.admitted + p.rejected]), x, y);
  return [
    svg("path", { d: admitted.fill, class: "admitted" }),
    svg("path", { d: rejected.fill, class: "rejected" }),
    svg("path", { d: admitted.line, class: "line admitted" }),
    svg("path", { d: rejected.line, class: "line rejected" }),
  ];
}

/** The points in the window that ends at `now`, and their highest sum. */
function recent(points, now) {
  const shown = points.filter((point) => point.t >= now - WINDOW_MS);
  return [shown, Math.max(0, ...shown.map((point) => point.admitted + point.rejected))];
}

/** The chart of all requests, with axes. */
function drawChart(node, points, now) {
  const [width, height] = [node.clientWidth || 600, node.clientHeight || 200];
  const [left, right, top, bottom] = [44, 4, 12, 20];
  const [shown, highest] = recent(points, now);
  const step = roundStep(Math.max(highest, 2) / 4);
  const limit = Math.max(step, Math.ceil(highest / step) * step);
  const x = (t) => left + ((t - now + WINDOW_MS) / WINDOW_MS) * (width - left - right);
  const y = (value) => height - bottom - (value / limit) * (height - top - bottom);
  const marks = [];
  for (let value = 0; value <= limit; value += step) {
    marks.push(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    marks.push(svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, rate(value)));
  }
  for (const [seconds, label, anchor] of [[120, "2 min ago", "start"], [60, "1 min ago", "middle"], [0, "now", "end"]]) {
    marks.push(svg("text", { x: x(now - seconds * 1000), y: height - 4, "text-anchor": anchor }, label));
  }
  const stripe = svg("path", { d: "M-1 1L1 -1M0 6L6 0M5 7L7 5", class: "stripes" });
  const ground = svg("rect", { width: 6, height: 6 });
  const pattern = svg("pattern", { id: "stripes", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, stripe, ground);
  node.replaceChildren(svg("defs", {}, pattern), ...marks, ...(shown.length > 1 ? layers(shown, x, y) : []));
  node.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const last = shown.at(-1);
  const text = last ? `now ${rate(last.admitted)} admitted and ${rate(last.rejected)} rejected` : "no data yet";
  node.setAttribute("aria-label", `Requests per second, last 2 minutes: ${text}; at most ${rate(highest)} together`);
}

/** A small chart without axes, for a row of a table. */
function drawSpark(node, points, now) {
  const [width, height] = [150, 30];
  const [shown, highest] = recent(points, now);
  const x = (t) => ((t - now + WINDOW_MS) / WINDOW_MS) * width;
  const y = (value) => height - 1 - (value / Math.max(highest, 1)) * (height - 3);
  const base = svg("line", { class: "grid", x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 });
  node.replaceChildren(base, ...(shown.length > 1 ? layers(shown, x, y) : []));
}
