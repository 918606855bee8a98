// What this process reports each second: traffic, the rates of its policies, its store.

/** The counters before, and rates since, of all requests (under "") and of each policy. */
const live = { before: null, history: new Map(), policies: [], health: null, activity: null };

const milliseconds = (time) => (typeof time === "number" ? time : Date.parse(time));

/** Total and policies' counters as `name -> {admitted, near, rejected}`. */
function counters(activity) {
  const { admitted = 0, rejected = 0 } = activity.outcomes;
  const all = new Map([["", { admitted, near: 0, rejected }]]);
  for (const { policy, within, near, over, shadow_over } of activity.policies) {
    all.set(policy, { admitted: within + near, near, rejected: over + (shadow_over ?? 0) });
  }
  return all;
}

/** Adds the rates since the event before, unless another process or a new start reports. */
function record(activity) {
  const t = milliseconds(activity.at);
  const start = `${activity.process.host} ${activity.process.pid} ${activity.process.started_at}`;
  const now = { t, start, counters: counters(activity) };
  const before = live.before;
  live.before = now;
  if (before?.start !== start) live.history.clear();
  if (before?.start !== start || t <= before.t) return;
  const seconds = (t - before.t) / 1000;
  for (const [name, counts] of now.counters) {
    const old = before.counters.get(name) ?? { admitted: 0, near: 0, rejected: 0 };
    const per = (field) => Math.max(0, counts[field] - old[field]) / seconds;
    const points = live.history.get(name) ?? [];
    points.push({ t, admitted: per("admitted"), near: per("near"), rejected: per("rejected") });
    live.history.set(name, points.filter((point) => point.t > t - WINDOW_MS - 5_000));
  }
}

function showActivity(activity) {
  record(activity);
  live.activity = activity;
  const { host, pid, started_at } = activity.process;
  const up = span(Math.max(0, milliseconds(activity.at) - milliseconds(started_at)));
  put($("process"), `${host} · process ${pid} · up ${up}`);
  const points = live.history.get("") ?? [];
  const last = points.at(-1);
  const { admitted = 0, rejected = 0 } = activity.outcomes;
  put($("tile-admitted"), last ? rate(last.admitted) : "–");
  put($("tile-rejected"), last ? rate(last.rejected) : "–");
  put($("note-admitted"), `${count(admitted)} since the start`);
  put($("note-rejected"), `${count(rejected)}, ${percent(rejected, admitted + rejected)} of both`);
  showLatency(activity.latency?.store);
  drawChart($("chart"), points, milliseconds(activity.at));
  showPolicies(activity);
  showStore();
}

function showLatency(store) {
  const measured = store?.p99_us != null;
  const [value, unit] = measured ? latency(store.p99_us) : ["–", ""];
  put($("tile-latency"), value);
  put($("unit-latency"), unit);
  put($("note-latency"), measured ? `median ${latency(store.p50_us).join(" ")}, ${count(store.calls)} calls` : "no calls yet");
}

/** One row for each policy, made anew when the policies have changed. */
function layPolicies(policies) {
  live.policies = policies;
  $("policy-rows").replaceChildren(...policies.map((policy) => {
    const spark = svg("svg", { class: "spark", viewBox: "0 0 150 30", preserveAspectRatio: "none", "aria-hidden": "true" });
    const cell = (field, label) => el("td", { class: "number", "data-field": field, "data-label": label }, "–");
    const over = policy.role === "shadow" ? "Would reject" : "Rejected";
    const name = el("div", { class: "name" }, policy.name, policy.role === "live" ? null : badge(policy.role));
    const row = el("tr", {},
      el("td", { class: "wide" }, name, el("small", {}, countedBy(policy))),
      el("td", { class: "wide" }, policy.quota ?? "none", el("small", {}, policy.quota ? policy.strategy : "blocks by hand")),
      el("td", { class: "wide" }, spark),
      cell("admitted", "Admitted /s"), cell("near", "Near the limit /s"), cell("rejected", `${over} /s`), cell("total", `${over}, total`));
    row.dataset.policy = policy.name;
    return row;
  }));
}

const countedBy = ({ key }) => (key === "by_hand" ? "keys that the application names" : `by ${key}`);

function showPolicies(activity) {
  const totals = live.before.counters;
  for (const row of $("policy-rows").children) {
    const points = live.history.get(row.dataset.policy) ?? [];
    const values = { ...points.at(-1), total: totals.get(row.dataset.policy)?.rejected };
    // Of a ban, only what it rejects is counted.
    if (policyNamed(row.dataset.policy)?.role === "ban") Object.assign(values, { admitted: undefined, near: undefined });
    for (const cell of row.querySelectorAll("[data-field]")) {
      const value = values[cell.dataset.field];
      put(cell, value === undefined ? "–" : cell.dataset.field === "total" ? count(value) : rate(value));
    }
    drawSpark(row.querySelector("svg"), points, milliseconds(activity.at));
  }
}

/** A service without a document has no configuration to show. */
async function refreshConfig() {
  const { document, watch } = await call("config");
  const isKnown = document !== undefined || watch !== undefined;
  $("config").hidden = !isKnown;
  $("to-config").hidden = !isKnown;
  if (isKnown) showConfig(document ?? "", watch);
}

function showConfig(document, watch) {
  const { path, hash, loaded_at, last_attempt_at, last_failure, loads, failures } = watch ?? {};
  $("config-details").replaceChildren(
    facts([
      watch ? ["File", path] : null,
      hash ? ["Version (BLAKE3)", el("span", { title: hash }, hash.slice(0, 12))] : null,
      watch ? ["Loaded", loaded_at ? moment(loaded_at) : "not since the start"] : null,
      watch && last_attempt_at ? ["File read", moment(last_attempt_at)] : null,
      watch ? ["Loads", count(loads)] : null,
      watch ? ["Failed loads", count(failures)] : null,
      ["Policies replaced", times(session.generation)],
    ]),
    watch ? "" : el("p", { class: "note" }, "No configuration file is watched."),
    last_failure ? el("p", { class: "message bad" }, `The file can't be loaded, and the document before it is still in force: ${last_failure}`) : "",
  );
  put($("config-document"), document);
}

const times = (n) => (n === 1 ? "once" : `${count(n ?? 0)} times`);

const BREAKER = { closed: ["closed", "good"], half_open: ["half-open", "warn"], open: ["open", "bad"] };

/** Health, circuit breakers, and what else the process counts. */
function showStore() {
  const { health, activity } = live;
  if (health) {
    put($("tile-store"), health.healthy ? "✓ Healthy" : "✗ Unhealthy");
    $("tile-store").className = health.healthy ? "good" : "bad";
  }
  const breakers = activity?.store?.breaker ?? [];
  const closed = breakers.filter(({ state }) => state === "closed").length;
  put($("note-store"), breakers.length === 0 ? "no circuit breaker" : `circuit breaker: ${closed} of ${breakers.length} closed`);
  $("note-store").className = closed < breakers.length ? "bad" : "";
  const outcomes = Object.entries(activity?.outcomes ?? {}).filter(([, n]) => n > 0);
  const lost = health ?? {};
  const { rejection_cache_entries, memory_keys, leases = [] } = activity?.store ?? {};
  const lines = [
    ...breakers.map(({ node, state }) => {
      const [text, kind] = BREAKER[state] ?? [state, "warn"];
      return el("li", {}, keyText(node), " circuit breaker ", badge(text, kind));
    }),
    ...(lost.issues ?? []).map((text) => el("li", {}, badge("issue", "bad"), " ", text)),
    ...(lost.warnings ?? []).map((text) => el("li", {}, badge("warning", "warn"), " ", text)),
    ...(lost.unchecked ?? []).map((text) => el("li", {}, badge("not checked", "warn"), " ", text)),
  ];
  $("store-details").replaceChildren(
    facts([
      ["Health", health ? (health.healthy ? "healthy" : "unhealthy") : "–"],
      ["Refunds dropped", count(lost.dropped_refunds ?? 0)],
      ["Refunds unconfirmed", count(lost.unconfirmed ?? 0)],
      ["Admitted uncounted", count(activity?.uncounted ?? 0)],
      rejection_cache_entries != null ? ["Rejections cached", count(rejection_cache_entries)] : null,
      memory_keys != null ? ["Keys in memory", count(memory_keys)] : null,
      ...leases.map(({ policy, granted, spent, held }) => [`Leased units of ${policy}`, `${count(held)} held; ${count(spent)} of ${count(granted)} spent`]),
    ]),
    el("h3", { class: "part" }, "Requests since the start"),
    facts(outcomes.map(([name, n]) => [name.replaceAll("_", " "), count(n)])),
    el("ul", { class: "plain" }, ...lines),
  );
}
