// Signing in and out, and what is read how often.

const session = { timers: [], generation: undefined, reading: false };

/** Submits by script alone: the page's policy forbids forms to send anything. */
function onSubmit(form, action) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    action();
  });
}

/** Shows a failure; one of authorization ends the session. */
function fail(error, message) {
  if (error.name === "AbortError") return;
  if (error.status === 401) signOut("The token is no longer accepted. Sign in again.");
  else if (message) say(message, error instanceof Problem ? error.message : String(error), true);
}

/** Reads now and then, in turn with itself; a failure waits for the next time. */
function every(ms, read) {
  const timer = { id: 0, on: true };
  const turn = async () => {
    await read().catch((error) => timer.on && fail(error, null));
    if (timer.on) timer.id = setTimeout(turn, ms);
  };
  session.timers.push(timer);
  turn();
}

async function refreshPolicies() {
  const { generation, policies } = await call("policies");
  session.generation = generation;
  if (JSON.stringify(policies) === JSON.stringify(live.policies)) return;
  layPolicies(policies);
  layKeys(policies);
}

async function refreshHealth() {
  live.health = await call("health");
  showStore();
}

function onActivity(activity) {
  if (activity.generation !== session.generation && !session.reading) {
    session.reading = true;
    const done = () => (session.reading = false);
    refreshPolicies().catch((error) => fail(error, null)).finally(done);
  }
  showActivity(activity);
}

const STATES = {
  live: () => ["● Live", "good"],
  stale: (at) => [`▲ Stale: nothing new since ${clockTime(at)}`, "warn"],
  connecting: () => ["… Connecting", "warn"],
  off: () => ["No live numbers: the application gives none", "warn"],
  waiting: (at) => [`▲ Stale: connection lost, next attempt at ${clockTime(at)}`, "bad"],
};

function onState(state, at) {
  const [text, kind] = STATES[state](at);
  $("connection").className = `pill ${kind}`;
  put($("connection"), text);
}

async function signIn() {
  await refreshPolicies();
  $("sign-in").hidden = true;
  $("dashboard").hidden = false;
  $("connection").hidden = false;
  $("sign-out").hidden = token === "";
  follow({ onActivity, onState, onDenied: (error) => fail(error, null) });
  every(15_000, refreshHealth);
  every(5_000, refreshConfig);
  every(5_000, refreshTop);
  every(5_000, refreshShadows);
  refreshBlocks().catch((error) => fail(error, $("blocks-message")));
  refreshOverrides();
}

/** Forgets the token and everything that was read with it. */
function signOut(reason = "") {
  endSession();
  for (const timer of session.timers) {
    timer.on = false;
    clearTimeout(timer.id);
  }
  Object.assign(session, { timers: [], generation: undefined });
  Object.assign(live, { before: null, policies: [], health: null, activity: null });
  live.history.clear();
  Object.assign(shown, { policy: "", key: "" });
  answer(false);
  for (const id of ["process", "policy-rows", "lookup-policy", "lookup-result", "block-rows", "override-rows", "top", "shadows", "explain-result", "store-details", "config-details", "config-document", "chart", "confirm-title", "confirm-text", "confirm-fields"]) $(id).replaceChildren();
  for (const node of document.querySelectorAll(".message, .tile b, .tile small, #lookup-hint")) node.textContent = "";
  for (const form of document.forms) form.reset();
  $("dashboard").hidden = true;
  $("connection").hidden = true;
  $("sign-out").hidden = true;
  askForToken(reason);
}

function askForToken(reason = "") {
  $("sign-in").hidden = false;
  put($("sign-in-error"), reason);
  $("token").focus();
}

async function submitToken() {
  token = $("token").value.trim();
  $("token").value = "";
  put($("sign-in-error"), "");
  try {
    // Header fields hold no other characters.
    if (!/^[\x20-\x7e]+$/.test(token)) throw new Problem(401, "");
    await signIn();
  } catch (error) {
    token = "";
    askForToken(error.status === 401 ? "This token is wrong." : error.message);
  }
}

/** Health names its issues without a token only where the application authorizes requests itself. */
async function start() {
  wireKeys();
  wireInsight();
  onSubmit($("sign-in-form"), submitToken);
  $("sign-out").addEventListener("click", () => signOut());
  try {
    const health = await call("health");
    if (Array.isArray(health.issues)) return await signIn();
  } catch {
    // The form reports what fails.
  }
  askForToken();
}

start();
