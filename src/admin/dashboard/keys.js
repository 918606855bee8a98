// One key: its status in the store, and what can be done about it. Every change is confirmed first.

const shown = { policy: "", key: "" };

/** Resolves the question that the dialog asks. */
let pending = null;

/** Asks in the dialog; resolves to whether it was confirmed. */
function confirmed({ title, text, verb, danger = false, fields = [] }) {
  const dialog = $("confirm");
  put($("confirm-title"), title);
  put($("confirm-text"), text);
  put($("confirm-ok"), verb);
  $("confirm-ok").classList.toggle("danger", danger);
  $("confirm-fields").replaceChildren(...fields);
  answer(false);
  dialog.showModal();
  // The first field has the focus; without fields, the button that changes nothing.
  (fields[0]?.querySelector("input, select") ?? $("confirm-cancel")).focus();
  return new Promise((resolve) => (pending = resolve));
}

/** Closes the dialog. Its event `close` may come when it has been opened again, so that it answers nothing. */
function answer(yes) {
  const resolve = pending;
  pending = null;
  $("confirm").close();
  resolve?.(yes);
}

function field(label, control) {
  control.id = `confirm-${label.toLowerCase().replaceAll(" ", "-")}`;
  return el("div", { class: "grow" }, el("label", { for: control.id }, label), control);
}

const options = (names) => names.map((name) => el("option", { value: name }, name));
const bans = () => live.policies.filter(({ role }) => role === "ban");
const policyNamed = (name) => live.policies.find((policy) => policy.name === name);

/** Runs a change, shows what became of it in `message`, and brings what is shown up to date. */
async function change(message, action) {
  say(message, "");
  try {
    const text = await action();
    const lists = [refreshBlocks().catch((error) => fail(error, $("blocks-message"))), refreshOverrides()];
    await Promise.all([refreshLookup(), ...lists]);
    say(message, text);
  } catch (error) {
    fail(error, message);
  }
}

function layKeys(policies) {
  const chosen = $("lookup-policy").value;
  $("lookup-policy").replaceChildren(...options(policies.map(({ name }) => name)));
  if (policyNamed(chosen)) $("lookup-policy").value = chosen;
  showHint();
}

function showHint() {
  const policy = policyNamed($("lookup-policy").value);
  put($("lookup-hint"), policy ? `Counts ${countedBy(policy)}.` : "");
}

async function lookup(policy, key) {
  Object.assign(shown, { policy, key });
  $("lookup-policy").value = policy;
  $("lookup-key").value = key;
  showHint();
  say($("lookup-message"), "");
  try {
    await refreshLookup();
  } catch (error) {
    $("lookup-result").replaceChildren();
    fail(error, $("lookup-message"));
  }
}

async function refreshLookup() {
  const { policy, key } = shown;
  if (!key) return;
  const status = await call("peek", { policy, key });
  if (shown.policy === policy && shown.key === key) showStatus(status);
}

/** What a key has left; a block list has no quota, and either blocks it or does not. */
function left({ limit, remaining, blocked_until }) {
  if (limit !== undefined) return `${count(remaining)} of ${count(limit)}`;
  return blocked_until ? "blocked" : "not blocked";
}

function showStatus(status) {
  const { policy, key, limit, remaining, cost, blocked_until, retry_after_ms, reset_after_ms, would_admit } = status;
  const kind = policyNamed(policy);
  const admit = would_admit ? badge("✓ would be admitted", "good") : badge("✗ would be rejected", "bad");
  const button = (text, onclick, danger) => el("button", { type: "button", onclick, class: danger ? "danger" : null, "data-focus": text }, text);
  const ban = kind?.role === "ban";
  keepFocus($("lookup-result"), [
    el("div", { class: "name" }, keyText(key), badge(policy), admit),
    facts([
      ban ? ["Blocked", blocked_until ? `until ${moment(blocked_until)}` : "no"] : null,
      limit === undefined ? null : [ban ? "Rejections left" : "Remaining", left(status)],
      ban ? null : ["A request costs", count(cost)],
      ["Admitted", wait(retry_after_ms)],
      limit === undefined ? null : ["Unused again", reset_after_ms > 0 ? `in ${span(reset_after_ms)}` : "now"],
    ]),
    limit === undefined ? "" : meter(limit > 0 ? (limit - remaining) / limit : 1),
    el("div", { class: "actions" },
      button("Reset", () => reset(status)),
      ban ? null : button("Credit units", () => credit(status)),
      button("Override", () => override(policy, key)),
      bans().length > 0 ? button("Block", () => block(policy, key), true) : null,
      ban ? button("Unblock", () => unblock(policy, key, $("lookup-message"))) : null,
      kind?.strategy === "list_window" ? button("List callers", () => listCallers(policy, key)) : null),
  ], $("lookup-key"));
}

async function listCallers(policy, key) {
  await change($("lookup-message"), async () => {
    const { callers } = await call("callers", { policy, key });
    return callers.length > 0 ? `Callers, oldest first: ${callers.join(", ")}.` : "No callers.";
  });
}

async function reset({ policy, key }) {
  const text = `${key} under ${policy} becomes as if it had never been used, in all processes.`;
  if (!(await confirmed({ title: "Reset this key?", text, verb: "Reset" }))) return;
  await change($("lookup-message"), async () => {
    const { before, after } = await call("reset", { policy, key });
    const all = (list) => list.map((status) => `${status.policy} ${left(status)}`).join(", ");
    return `Reset. Remaining before: ${all(before)}; now: ${all(after)}.`;
  });
}

async function credit({ policy, key }) {
  const units = el("input", { type: "number", min: 1, step: 1, value: 1, required: true });
  const text = `Adds units to ${key} under ${policy}, in all processes.`;
  if (!(await confirmed({ title: "Credit units?", text, verb: "Credit", fields: [field("Units", units)] }))) return;
  await change($("lookup-message"), async () => {
    const { credited, after } = await call("credit", { policy, key, units: units.valueAsNumber });
    return `Credited ${count(credited)}. Remaining now: ${left(after)}.`;
  });
}

async function block(policy, key) {
  const ban = el("select", {}, ...options(bans().map(({ name }) => name)));
  const like = bans().find((ban) => ban.name === policy) ?? bans().find((ban) => ban.key === policyNamed(policy)?.key);
  if (like) ban.value = like.name;
  const time = el("input", { type: "number", min: 1, step: 1, value: 15, required: true });
  const unit = el("select", {}, ...[["minutes", 60], ["hours", 3600], ["days", 86_400]].map(([name, size]) => el("option", { value: size }, name)));
  const fields = [field("For", time), field("Unit", unit), field("Under the ban", ban)];
  const text = `Requests of ${key} are rejected in all processes until the block ends.`;
  if (!(await confirmed({ title: "Block this key?", text, verb: "Block", danger: true, fields }))) return;
  await change($("lookup-message"), async () => {
    const seconds = time.valueAsNumber * Number(unit.value);
    const { blocked } = await call("block", { policy: ban.value, key, seconds });
    return `Blocked: ${blocked.map(({ policy, ends_at }) => `under ${policy} until ${moment(ends_at)}`).join(", ")}.`;
  });
}

async function unblock(policy, key, message) {
  const text = `Requests of ${key} are admitted again under ${policy}, in all processes.`;
  if (!(await confirmed({ title: "Unblock this key?", text, verb: "Unblock" }))) return;
  await change(message, async () => {
    const { unblocked } = await call("unblock", { policy, key });
    if (unblocked.length === 0) return `Nothing was lifted: ${key} was not blocked under ${policy}.`;
    return `Unblocked ${key} under ${policy}, where it was blocked until ${moment(unblocked[0].ends_at)}.`;
  });
}

async function refreshBlocks() {
  showBlocks(await call("blocks"));
}

/** Why a list of blocks has not all of them. */
const INCOMPLETE = {
  limit: "There are more than are listed here.",
  timeout: "There may be more: the search took too long and ended early.",
  keys_moved: "There may be more: keys moved to another node of the cluster during the search. Refresh to repeat it.",
};

function showBlocks({ blocks, complete, incomplete }) {
  const rows = blocks.map(({ policy, key, ends_at, ends_in_ms }) => {
    const show = el("button", { type: "button", class: "link", onclick: () => openKey(policy, key) }, keyText(key));
    const free = el("button", { type: "button", class: "quiet", "aria-label": `Unblock ${key}`, "data-focus": `${policy} ${key}`, onclick: () => unblock(policy, key, $("blocks-message")) }, "Unblock");
    return el("tr", {},
      el("td", { class: "wide" }, show), el("td", {}, policy),
      el("td", {}, `in ${span(Math.max(0, ends_in_ms))}`, el("small", {}, moment(ends_at))), el("td", { class: "number" }, free));
  });
  const note = (text) => el("tr", {}, el("td", { colspan: 4, class: "wide empty" }, text));
  if (!complete) rows.push(note(INCOMPLETE[incomplete] ?? "There may be more."));
  if (rows.length === 0) rows.push(note(bans().length > 0 ? "No key is blocked." : "No policy is a ban, so no key can be blocked."));
  keepFocus($("block-rows"), rows, $("blocks-refresh"));
}

async function override(policy, key) {
  const option = ([name, value]) => el("option", { value }, name);
  const own = policyNamed(policy)?.quota;
  const kinds = [["exempt from the policy", "exempt"]];
  // A block list has no quota.
  if (own) kinds.unshift(["limited by a quota", "quota"]);
  const kind = el("select", {}, ...kinds.map(option));
  const quota = el("input", { type: "text", value: own ?? "", required: true, autocomplete: "off" });
  const time = el("input", { type: "number", min: 1, step: 1, value: 24, required: true });
  const unit = el("select", {}, ...[["hours", 3600], ["days", 86_400], ["for good", ""]].map(option));
  const note = el("input", { type: "text", maxlength: 200, autocomplete: "off" });
  const enable = () => {
    quota.disabled = kind.value === "exempt";
    time.disabled = unit.value === "";
  };
  for (const choice of [kind, unit]) choice.addEventListener("change", enable);
  enable();
  const fields = [field("The key is", kind), field("Quota", quota), field("For", time), field("Unit", unit), field("Note", note)];
  const text = `What holds for ${key} under ${policy} in all processes, in place of the policy's quota.`;
  if (!(await confirmed({ title: "Override the limit of this key?", text, verb: "Override", fields }))) return;
  await change($("lookup-message"), async () => {
    const body = { policy, key };
    if (kind.value === "exempt") body.exempt = true;
    else body.quota = quota.value.trim();
    if (unit.value) body.seconds = time.valueAsNumber * Number(unit.value);
    if (note.value) body.note = note.value;
    const { after } = await call("overrides", body, "PUT");
    return `Set: ${overrideText(after)}.`;
  });
}

async function liftOverride({ policy, key }) {
  const text = `The policy's own quota applies to ${key} under ${policy} again, in all processes.`;
  if (!(await confirmed({ title: "Lift this override?", text, verb: "Lift" }))) return;
  await change($("overrides-message"), async () => {
    const { before } = await call("overrides", { policy, key }, "DELETE");
    return before ? `Lifted: ${overrideText(before)}.` : "There was no override any more.";
  });
}

const overrideText = ({ policy, key, quota, until }) => `${key} under ${policy}, ${quota ?? "exempt"}${until ? ` until ${moment(until)}` : ""}`;

/** Reads the overrides; a store without them has none to show. */
async function refreshOverrides() {
  try {
    showOverrides(await call("overrides"));
  } catch (error) {
    $("override-rows").replaceChildren();
    fail(error, $("overrides-message"));
  }
}

function showOverrides({ overrides, total }) {
  const rows = overrides.map((one) => {
    const { policy, key, quota, until, note, set_by, unused } = one;
    const show = el("button", { type: "button", class: "link", onclick: () => openKey(policy, key) }, keyText(key));
    const lift = el("button", { type: "button", class: "quiet", "aria-label": `Lift the override of ${key}`, "data-focus": `override ${policy} ${key}`, onclick: () => liftOverride(one) }, "Lift");
    const state = unused ? badge("unused", "warn") : null;
    return el("tr", {},
      el("td", { class: "wide" }, show), el("td", {}, policy),
      el("td", {}, quota ?? "exempt", state, unused ? el("small", {}, unused) : null),
      el("td", {}, until ? moment(until) : "for good"),
      el("td", {}, note ?? "", el("small", {}, set_by ?? "")), el("td", { class: "number" }, lift));
  });
  const row = (text) => el("tr", {}, el("td", { colspan: 6, class: "wide empty" }, text));
  if (overrides.length < total) rows.push(row(`There are ${count(total - overrides.length)} more.`));
  if (rows.length === 0) rows.push(row("No key has an override."));
  keepFocus($("override-rows"), rows, $("overrides-refresh"));
}

/** Shows a key that was chosen elsewhere on the page. */
async function openKey(policy, key) {
  await lookup(policy, key);
  $("lookup-title").scrollIntoView({ block: "start" });
  $("lookup-key").focus({ preventScroll: true });
}

function wireKeys() {
  $("lookup-policy").addEventListener("change", showHint);
  onSubmit($("lookup-form"), () => lookup($("lookup-policy").value, $("lookup-key").value.trim()));
  $("blocks-refresh").addEventListener("click", async () => {
    try {
      await refreshBlocks();
      say($("blocks-message"), `Read at ${clockTime(new Date())}.`);
    } catch (error) {
      fail(error, $("blocks-message"));
    }
  });
  $("overrides-refresh").addEventListener("click", async () => {
    say($("overrides-message"), "");
    await refreshOverrides();
  });
  onSubmit($("confirm").querySelector("form"), () => answer(true));
  $("confirm-cancel").addEventListener("click", () => answer(false));
  // Escape.
  $("confirm").addEventListener("cancel", () => answer(false));
}
