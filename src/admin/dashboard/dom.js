// Elements and texts. Data enters the page as text nodes and attributes only, never as markup.

const $ = (id) => document.getElementById(id);

/** An element with attributes and children; `onclick` is a function. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
}

const badge = (text, kind = "plain") => el("span", { class: `badge ${kind}` }, text);
const empty = (text) => el("p", { class: "empty" }, text);
const keyText = (key) => el("span", { class: "key" }, key);

/** A list of names and values. */
function facts(entries) {
  const pairs = entries.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  return el("dl", { class: "facts" }, ...pairs);
}

/** A bar that shows a share from 0 to 1; the number stands beside it. */
function meter(share) {
  const bar = el("i");
  bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("div", { class: share >= 1 ? "meter full" : "meter", "aria-hidden": "true" }, bar);
}

/** Replaces what a node shows; a button that is there again, by its `data-focus`, keeps the focus, or else `other` gets it. */
function keepFocus(node, children, other) {
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  node.replaceChildren(...children);
  if (focused === undefined) return;
  const again = [...node.querySelectorAll("[data-focus]")].find((button) => button.dataset.focus === focused);
  (again ?? other)?.focus({ preventScroll: true });
}

/** Shows what became of an action; screen readers announce it. */
function say(node, text, bad = false) {
  node.textContent = text;
  node.classList.toggle("bad", bad);
}

/** Sets a text unless it is there already. */
function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

const count = (n) => (Math.abs(n) < 1e6 ? whole.format(n) : compact.format(n));
const rate = (n) => (n < 10 ? tenths.format(n) : count(Math.round(n)));
const percent = (part, of) => (of > 0 ? `${tenths.format((100 * part) / of)} %` : "0 %");

/** A time span: `420 ms`, `3.4 s`, `2 min 5 s`, `3 h 12 min`, `5 d 2 h`. */
function span(ms) {
  if (ms < 1000) return `${Math.ceil(ms)} ms`;
  if (ms < 60_000) return `${tenths.format(ms / 1000)} s`;
  const units = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];
  let seconds = Math.round(ms / 1000);
  const parts = [];
  for (const [name, size] of units) {
    const n = Math.floor(seconds / size);
    if (n > 0) parts.push(`${n} ${name}`);
    else if (parts.length > 0) break;
    seconds -= n * size;
  }
  return parts.slice(0, 2).join(" ");
}

/** The wait for an admission: `null` if there is none. */
const wait = (ms) => (ms === null ? "never" : ms > 0 ? `in ${span(ms)}` : "now");

/** Microseconds: `412 µs`, `1.83 ms`. */
function latency(us) {
  if (us < 1000) return [whole.format(us), "µs"];
  if (us < 1e6) return [new Intl.NumberFormat("en", { maximumSignificantDigits: 3 }).format(us / 1000), "ms"];
  return [tenths.format(us / 1e6), "s"];
}

const clockTime = (date) => date.toLocaleTimeString([], { hour12: false });

/** A point in time as the viewer's clock shows it, with the date unless it is today. */
function moment(text) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return String(text);
  const today = date.toDateString() === new Date().toDateString();
  return today ? clockTime(date) : `${date.toLocaleDateString()} ${clockTime(date)}`;
}
