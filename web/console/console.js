// The page of a hub: topics, groups, live events and dead letters. Whatever
// comes from the hub goes into the document as text.

const $ = (id) => document.getElementById(id);
const shown = 200;   // rows of a table of names
const kept = 200;    // live events
const step = 2000;   // ms between two looks

let token = sessionStorage.getItem("token") ?? "";

/** Problem is an answer that is an error, with the hub's code. */
class Problem extends Error {
  constructor(status, body) {
    super(body?.detail ?? body?.title ?? `the hub answered ${status}`);
    this.status = status;
    this.code = body?.code ?? "";
  }
}

async function call(method, path, { body, signal, type = "application/json" } = {}) {
  const headers = {};
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = type;
  const answer = await fetch(path, { method, headers, body, signal, cache: "no-store" });
  if (!answer.ok) {
    throw new Problem(answer.status, await answer.json().catch(() => null));
  }
  return answer;
}

const get = async (path, options) => (await call("GET", path, options)).json();

// Elements.

function cell(text, cls) {
  const td = document.createElement("td");
  td.textContent = text;
  if (cls) td.className = cls;
  return td;
}

function button(text, action, cls) {
  const b = document.createElement("button");
  b.type = "button";
  b.textContent = text;
  if (cls) b.className = cls;
  b.addEventListener("click", action);
  return b;
}

function row(...cells) {
  const tr = document.createElement("tr");
  for (const c of cells) {
    if (c instanceof HTMLTableCellElement) {
      tr.append(c);
      continue;
    }
    const td = document.createElement("td");
    td.append(c);
    tr.append(td);
  }
  return tr;
}

const body = (table) => $(table).tBodies[0];
const number = (n) => n.toLocaleString("en");
const time = (ts) => new Date(ts).toISOString().slice(11, 23);

function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}

const clip = (s, n) => (s.length > n ? s.slice(0, n) + " …" : s);

// keepFocus lets a table be drawn anew without taking the focus from the
// button that somebody is on.
function keepFocus(table, draw) {
  const at = document.activeElement?.dataset?.name;
  const inside = at !== undefined && $(table).contains(document.activeElement);
  draw();
  if (inside) $(table).querySelector(`[data-name="${CSS.escape(at)}"]`)?.focus();
}

// Status.

function status(text, cls) {
  $("status").textContent = text;
  $("status").className = cls;
}

function failed(err) {
  if (err instanceof Problem && (err.status === 401 || err.status === 403)) {
    $("token-form").hidden = false;
    status(token ? `the token does not do: ${err.message}` : "this hub wants a token", "bad");
  } else if (err instanceof Problem) {
    status(err.message, "bad");
  } else {
    status("the hub does not answer; trying again", "bad");
  }
}

$("token-form").addEventListener("submit", (e) => {
  e.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("token", token);
  $("token").value = "";
  $("token-form").hidden = true;
  look();
  if (live.topic) follow(live.topic);
});

// Topics and groups.

const before = new Map(); // topic → {last, at, rate}

function rate(topic, last) {
  const now = performance.now();
  const was = before.get(topic);
  let r = 0;
  if (was) {
    const since = (last - was.last) / ((now - was.at) / 1000);
    r = (was.rate + since) / 2; // settles within a few looks
  }
  before.set(topic, { last, at: now, rate: r });
  return r;
}

let topics = [];

function drawTopics() {
  const part = $("topics-filter").value.trim();
  const list = topics.filter((t) => t.topic.includes(part));
  keepFocus("topics", () => {
    body("topics").replaceChildren(...list.slice(0, shown).map((t) => {
      const name = button(t.topic, () => follow(t.topic), "link");
      name.dataset.name = t.topic;
      const tr = row(name, cell(number(t.events), "n"), cell(number(t.last), "n"),
        cell(t.rate < 0.05 ? "" : t.rate < 10 ? t.rate.toFixed(1) : number(Math.round(t.rate)), "n"), cell(bytes(t.bytes), "n"));
      if (t.topic === live.topic) tr.className = "chosen";
      return tr;
    }));
  });
  $("topics-count").textContent = list.length > shown ? `${shown} of ${number(list.length)}` : number(list.length);
  $("topics-empty").hidden = topics.length > 0;
  const select = $("events-topic");
  if (select !== document.activeElement) {
    const names = topics.slice(0, 1000).map((t) => t.topic);
    if (live.topic && !names.includes(live.topic)) names.push(live.topic);
    if (names.join() !== [...select.options].map((o) => o.value).join()) {
      select.replaceChildren(...names.map((n) => new Option(n, n, false, n === live.topic)));
    }
    select.value = live.topic;
  }
}

$("topics-filter").addEventListener("input", drawTopics);

function drawGroups(groups) {
  body("groups").replaceChildren(...groups.slice(0, shown).map((g) =>
    row(cell(g.topic), cell(g.group + (g.paused ? " (paused)" : "")), cell(number(g.lag), g.lag > 0 ? "n lag" : "n"),
      cell(number(g.inflight), "n"), cell(number(g.members), "n"), cell(number(g.cursor), "n"))));
  $("groups-count").textContent = groups.length > shown ? `${shown} of ${number(groups.length)}` : number(groups.length);
  $("groups-empty").hidden = groups.length > 0;
}

// Dead letters.

let letters = ""; // the topic whose letters are shown

function drawDead(list) {
  const open = list.filter((d) => d.count > 0);
  keepFocus("dlq", () => {
    body("dlq").replaceChildren(...open.slice(0, shown).map((d) => {
      const show = button("Show", () => { letters = letters === d.topic ? "" : d.topic; look(); });
      const replay = button("Replay", () => replayLetters(d.topic, d.group));
      show.dataset.name = `show ${d.topic} ${d.group}`;
      replay.dataset.name = `replay ${d.topic} ${d.group}`;
      const actions = document.createElement("td");
      actions.append(show, " ", replay);
      return row(cell(d.topic), cell(d.group), cell(number(d.count), "n lag"), actions);
    }));
  });
  $("dlq-count").textContent = number(open.reduce((n, d) => n + d.count, 0));
  $("dlq-empty").hidden = open.length > 0;
}

async function replayLetters(topic, group) {
  try {
    const answer = await call("POST", `/dlq/${encodeURIComponent(topic)}/replay`, { body: JSON.stringify({ group }) });
    const done = await answer.json();
    status(`${done.replayed} dead letters of ${topic} replayed, ${done.remaining} remain`, "good");
    await look();
  } catch (err) {
    failed(err);
  }
}

async function drawLetters() {
  $("letters-box").hidden = letters === "";
  if (letters === "") return;
  const answer = await get(`/dlq/${encodeURIComponent(letters)}?limit=100`);
  body("letters").replaceChildren(...answer.records.map((l) =>
    row(cell(time(l.ts)), cell(l.group), cell(number(l.attempts), "n"), cell(clip(l.err ?? "", 500), "bad"),
      cell(clip(JSON.stringify(l.original), 1000), "payload"))));
}

// Live events.

const live = { topic: "", paused: false, stop: null, waiting: [] };

function addEvents(events) {
  if (live.paused) {
    live.waiting = [...live.waiting, ...events].slice(-kept);
    $("events-state").textContent = `${live.waiting.length} waiting`;
    return;
  }
  const tbody = body("events");
  for (const e of events.slice(-kept)) {
    tbody.prepend(row(cell(number(e.seq), "n"), cell(time(e.ts)), cell(e.key ?? ""), cell(clip(e.text, 2000), "payload")));
  }
  while (tbody.rows.length > kept) tbody.lastChild.remove();
  $("events-empty").hidden = tbody.rows.length > 0;
}

// read takes an event apart. The text of its payload is the stored one:
// JSON.parse would round large numbers.
function read(data) {
  const e = JSON.parse(data);
  e.text = member(data, "payload") ?? JSON.stringify(e.payload);
  return e;
}

// member finds the text of one member of an object.
function member(data, name) {
  let depth = 0;
  let value = -1; // where the value begins that is looked for
  for (let i = 0; i < data.length; i++) {
    switch (data[i]) {
      case '"': {
        const from = i;
        for (i++; data[i] !== '"'; i++) if (data[i] === "\\") i++;
        if (depth === 1 && value < 0 && data[i + 1] === ":" && data.slice(from + 1, i) === name) value = i + 2;
        break;
      }
      case "{": case "[": depth++; break;
      case "}": case "]": depth--;
        if (depth === 0 && value >= 0) return data.slice(value, i);
        break;
      case ",": if (depth === 1 && value >= 0) return data.slice(value, i);
    }
  }
  return undefined;
}

$("events-pause").addEventListener("click", () => {
  live.paused = !live.paused;
  $("events-pause").textContent = live.paused ? "Go on" : "Pause";
  $("events-pause").setAttribute("aria-pressed", live.paused);
  if (!live.paused) {
    const waiting = live.waiting;
    live.waiting = [];
    $("events-state").textContent = "";
    addEvents(waiting);
  }
});

$("events-topic").addEventListener("change", (e) => follow(e.target.value));

/** follow shows a topic: its last events, then what comes. */
async function follow(topic) {
  live.stop?.abort();
  const stop = new AbortController();
  Object.assign(live, { topic, stop, waiting: [] });
  body("events").replaceChildren();
  $("events-empty").hidden = false;
  $("events-empty").textContent = `No events in ${topic} yet.`;
  if (!$("publish-topic").value) $("publish-topic").value = /^(dlq|system)\./.test(topic) ? "" : topic;
  drawTopics();
  let last = -1;
  for (let pause = 500; !stop.signal.aborted; pause = Math.min(pause * 2, 10_000)) {
    try {
      if (last < 0) {
        const about = await get(`/topics/${encodeURIComponent(topic)}`, { signal: stop.signal });
        last = Math.max(about.last - 50, about.first - 1, 0);
      }
      const answer = await call("GET", `/subscribe?topic=${encodeURIComponent(topic)}&from=seq&seq=${last}`, { signal: stop.signal });
      $("events-state").textContent = "";
      for await (const events of stream(answer)) {
        last = events.at(-1).seq;
        pause = 500;
        addEvents(events);
      }
    } catch (err) {
      if (stop.signal.aborted) return;
      if (err instanceof Problem && err.code === "cursor_unknown") last = -1;
      if (err instanceof Problem && err.status < 500) failed(err);
    }
    if (stop.signal.aborted) return;
    $("events-state").textContent = "connecting again …";
    await new Promise((done) => setTimeout(done, pause * (0.5 + Math.random() / 2)));
  }
}

// stream gives the events of Server-Sent Events, as many together as came.
async function* stream(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    const events = [];
    for (const block of blocks) {
      const fields = block.split("\n").map((l) => l.match(/^([a-z]+): ?(.*)$/) ?? []);
      const data = fields.filter(([, name]) => name === "data").map(([, , value]) => value).join("\n");
      const kind = fields.find(([, name]) => name === "event")?.[2] ?? "message";
      if (data && kind === "event") events.push(read(data));
    }
    if (events.length) yield events;
  }
}

// Publishing.

$("publish").addEventListener("submit", async (e) => {
  e.preventDefault();
  const out = $("publish-result");
  const topic = $("publish-topic").value.trim();
  const query = new URLSearchParams({ id: crypto.randomUUID?.() ?? "" });
  if (!query.get("id")) query.delete("id"); // no secure context: the hub makes one
  if ($("publish-key").value) query.set("key", $("publish-key").value);
  try {
    const answer = await call("POST", `/publish/${encodeURIComponent(topic)}?${query}`, { body: $("publish-payload").value });
    const receipt = await answer.json();
    out.className = "";
    out.textContent = `stored as seq ${receipt.seq} of ${receipt.topic}, id ${receipt.id}`;
    if (live.topic !== receipt.topic) follow(receipt.topic);
    look();
  } catch (err) {
    out.className = "bad";
    out.textContent = err.message;
  }
});

// Looking at the hub.

let looking = null;

function look() {
  looking ??= lookOnce().catch(failed).finally(() => { looking = null; });
  return looking;
}

// What one token may see, another may not: each part stands for itself.
async function part(path, draw) {
  try {
    draw(await get(path));
    return null;
  } catch (err) {
    return err;
  }
}

async function lookOnce() {
  const errors = [
    await part("/topics", (a) => {
      topics = a.topics.map((t) => ({ ...t, rate: rate(t.topic, t.last) }));
      if (!live.topic && topics.length > 0) {
        const own = topics.filter((t) => !/^(dlq|system)\./.test(t.topic));
        follow((own.find((t) => t.topic === "process.state") ?? own[0] ?? topics[0]).topic);
      }
      drawTopics();
    }),
    await part("/groups", (a) => drawGroups(a.groups)),
    await part("/dlq", (a) => drawDead(a.topics)),
  ].filter(Boolean);
  if (errors.length) throw errors[0];
  await drawLetters();
  const ready = await fetch("/readyz", { cache: "no-store" });
  const { version } = await get("/healthz");
  status(ready.ok ? `ready · ${version}` : "draining: it takes no more work", ready.ok ? "good" : "bad");
}

async function run() {
  for (;;) {
    const began = performance.now();
    if (!document.hidden) await look();
    // A hub that takes long is asked less often.
    await new Promise((done) => setTimeout(done, Math.max(step, 5 * (performance.now() - began))));
  }
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
run();
