// The most rejected keys, shadow policies, and the explanation of a request.

async function refreshTop() {
  // An application that counts no activity has no such route.
  const top = await call("top?n=10").catch((error) => {
    if (error.status !== 404) throw error;
    return null;
  });
  if (top === null) return $("top").replaceChildren(empty("The application counts none."));
  const { since, policies } = top;
  const rejecting = policies.filter(({ rejected }) => rejected > 0);
  const parts = rejecting.flatMap(({ policy, rejected, keys }) => [
    el("h3", { class: "name" }, policy, el("span", { class: "note" }, `${count(rejected)} ${isShadow(policy) ? "would be rejected" : "rejected"}`)),
    topTable(policy, rejected, keys),
  ]);
  if (parts.length === 0) parts.push(empty("No request was rejected."));
  parts.push(el("p", { class: "note" }, `Since ${moment(since)}.`));
  keepFocus($("top"), parts);
}

const isShadow = (name) => policyNamed(name)?.role === "shadow";

function topTable(policy, rejected, keys) {
  const rows = keys.map(({ key, rejected: n, at_most_over }) => {
    const show = el("button", { type: "button", class: "link", "data-focus": `${policy} ${key}`, onclick: () => openKey(policy, key) }, keyText(key));
    const over = at_most_over > 0 ? el("small", {}, `at most ${count(at_most_over)} fewer`) : null;
    return el("tr", {}, el("td", {}, show), el("td", { class: "bar-cell" }, meter(Math.min(0.999, n / rejected))), el("td", { class: "number" }, count(n), over));
  });
  const head = el("tr", { class: "hidden" }, el("th", {}, "Key"), el("th", {}, "Share"), el("th", {}, "Rejected"));
  return el("table", { "aria-label": `Most rejected keys of ${policy}` }, el("thead", {}, head), el("tbody", {}, ...rows));
}

async function refreshShadows() {
  const { shadows } = await call("shadows");
  const parts = shadows.flatMap(({ policy, evaluated, would_reject }) => [
    el("h3", { class: "name" }, policy, badge("shadow")),
    facts([
      ["Evaluated", count(evaluated)],
      ["Would reject", `${count(would_reject)} (${percent(would_reject, evaluated)})`],
    ]),
  ]);
  $("shadows").replaceChildren(...(parts.length > 0 ? parts : [empty("No policy is evaluated as a shadow.")]));
}

const OUTCOME = { admitted: "good", allow_listed: "good", skipped: "good" };

async function explain() {
  const headers = $("explain-headers").value.split("\n").filter((line) => line.trim() !== "").map((line) => {
    const colon = line.indexOf(":");
    if (colon < 1) throw new Problem(0, `No header field: ${line}`);
    return [line.slice(0, colon).trim(), line.slice(colon + 1).trim()];
  });
  const peer = $("explain-peer").value.trim();
  const body = { method: $("explain-method").value, uri: $("explain-uri").value.trim(), headers };
  if (peer) body.peer = peer;
  showExplanation(await call("explain", body));
}

function showExplanation({ outcome, reason, retry_after_ms, hint, policies }) {
  const admitted = outcome in OUTCOME;
  const later = retry_after_ms > 0 ? `, retry after ${span(retry_after_ms)}` : "";
  const text = `${admitted ? "✓" : "✗"} ${outcome.replaceAll("_", " ")}${reason ? ` (${reason})` : ""}${later}`;
  say($("explain-message"), `This request would be: ${text}`, !admitted);
  const rows = policies.map((policy) => {
    const name = el("div", { class: "name" }, policy.policy, policy.shadow ? badge("shadow") : null);
    if (!policy.applies) {
      return el("tr", {}, el("td", { class: "wide" }, name), el("td", { colspan: 3, class: "wide empty" }, `does not apply: ${policy.reason ?? ""}`));
    }
    const verdict = policy.would_admit ? badge("✓ admits", "good") : badge("✗ rejects", "bad");
    const later = policy.would_admit ? null : el("small", {}, `admits ${wait(policy.retry_after_ms ?? null)}`);
    const link = el("button", { type: "button", class: "link", onclick: () => openKey(policy.policy, policy.key) }, keyText(policy.key ?? ""));
    return el("tr", {},
      el("td", { class: "wide" }, name),
      el("td", { class: "wide" }, policy.key ? link : "all requests together", policy.reason ? el("small", {}, policy.reason) : null),
      el("td", { "data-label": "Remaining" }, left(policy), policy.limit === undefined ? null : el("small", {}, `costs ${count(policy.cost)}`)),
      el("td", {}, verdict, later));
  });
  const head = el("tr", {}, ...["Policy", "Key", "Remaining", "Decision"].map((name) => el("th", {}, name)));
  const table = el("table", { class: "stacked" }, el("thead", {}, head), el("tbody", {}, ...rows));
  $("explain-result").replaceChildren(table, hint ? el("p", { class: "note" }, `Note: ${hint}.`) : "");
}

function wireInsight() {
  onSubmit($("explain-form"), async () => {
    try {
      await explain();
    } catch (error) {
      $("explain-result").replaceChildren();
      fail(error, $("explain-message"));
    }
  });
}
