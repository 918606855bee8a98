// The routes beside this page, and the token, which only this variable holds.

const base = location.origin + location.pathname.replace(/\/*$/, "/");
let token = "";
/** Aborts the requests of a session when it ends. */
let sessionEnd = new AbortController();

/** An answer other than success; `status` is 0 if there was none. */
class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, options) {
  const headers = { ...options.headers };
  if (token) headers.authorization = `Bearer ${token}`;
  try {
    return await fetch(base + path, { ...options, headers, cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The service does not respond.");
  }
}

/** Why a response is no success: problem+json's words, if it has any. */
async function problem(response) {
  const body = await response.json().catch(() => null);
  return new Problem(response.status, body?.detail ?? body?.title ?? `The service responded with status ${response.status}.`);
}

/** GETs a route, or sends a body to it, and returns the JSON of the response. */
async function call(path, body, method = "POST") {
  const options = { headers: { accept: "application/json" }, signal: sessionEnd.signal };
  if (body !== undefined) {
    options.method = method;
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await request(path, options);
  // An unhealthy service reports its health with status 503.
  const reports = response.ok || (path === "health" && response.status === 503);
  if (!reports) throw await problem(response);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The service's response is no JSON.");
  }
}

/** Reads server-sent events until the stream ends; `onData` gets the data of each. */
async function readEvents(signal, onData) {
  const response = await request("events", { headers: { accept: "text/event-stream" }, signal });
  if (!response.ok) throw await problem(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (text + value).split(/\r?\n\r?\n/);
    text = events.pop();
    for (const event of events) {
      const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (lines.length > 0) onData(lines.map((line) => line.slice(5)).join("\n"));
    }
  }
}

/** Silence after which what is shown counts as stale, and after which the connection is made anew. */
const STALE_MS = 4_000;
const SILENT_MS = 12_000;
const LONGEST_WAIT_MS = 30_000;

/** Ends what is under way, and forgets the token. */
function endSession() {
  token = "";
  sessionEnd.abort();
  sessionEnd = new AbortController();
}

/**
 * Follows the events and reconnects with growing pauses. `onState` gets `live`, `stale`, `connecting` or `waiting` with
 * the time of the last event or of the next attempt, or `off` if the application reports no activity or forbids to read it;
 * `onDenied` gets a 401. Ends with the session.
 */
function follow({ onActivity, onState, onDenied }) {
  const end = sessionEnd;
  let attempt = null;
  let failures = 0;
  let last = 0;
  let state = "";
  const become = (next, at) => {
    if (state !== next) onState(next, at);
    state = next;
  };
  const watch = setInterval(() => {
    const silent = Date.now() - last;
    if (state === "live" && silent > STALE_MS) become("stale", new Date(last));
    if (state === "stale" && silent > SILENT_MS) attempt?.abort();
  }, 500);
  const onData = (data) => {
    const activity = JSON.parse(data);
    failures = 0;
    last = Date.now();
    become("live", new Date());
    onActivity(activity);
  };
  (async () => {
    while (!end.signal.aborted) {
      become("connecting", new Date());
      attempt = new AbortController();
      try {
        await readEvents(AbortSignal.any([end.signal, attempt.signal]), onData);
      } catch (error) {
        if (end.signal.aborted) return;
        if (error.status === 401) return onDenied(error);
        if (error.status === 403 || error.status === 404) return become("off", new Date());
      }
      const pause = Math.min(LONGEST_WAIT_MS, 1000 * 2 ** failures) * (0.75 + Math.random() / 2);
      failures += 1;
      become("waiting", new Date(Date.now() + pause));
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  })();
  end.signal.addEventListener("abort", () => clearInterval(watch));
}
