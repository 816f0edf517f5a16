"use strict";
(() => {
const REFRESH_MS = 2000;
const TIMEOUT_MS = 10000;
const at = id => document.getElementById(id);
const compare = new Intl.Collator("en", { numeric: true }).compare;

function h(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter(child => child !== null && child !== undefined && child !== ""));
  return made;
}

function merge(old, fresh) {
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const left = [...old.childNodes];
  for (const child of [...fresh.childNodes]) {
    const same = left.shift();
    if (!same) old.append(child);
    else if (same.nodeName !== child.nodeName) same.replaceWith(child);
    else if (same.nodeType === Node.TEXT_NODE) { if (same.data !== child.data) same.data = child.data; }
    else merge(same, child);
  }
  for (const rest of left) rest.remove();
}

const count = (number, what) => number + " " + what + (number === 1 ? "" : "s");

function moment(seconds, now) {
  if (!seconds) return null;
  const date = new Date(seconds * 1000);
  const sameDay = date.toDateString() === new Date(now * 1000).toDateString();
  const text = sameDay
    ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
    : date.toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
  return h("time", { datetime: date.toISOString() }, text);
}

function span(seconds) {
  if (seconds < 60) return "less than a minute";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h " + Math.floor(seconds / 60) % 60 + " min";
  return Math.floor(seconds / 86400) + " days";
}

function lease(row, site) {
  const since = row.since ? [" for ", span(Math.max(0, site.now - row.since)), ", since ", moment(row.since, site.now)] : [];
  const until = row.until ? [", until ", moment(row.until, site.now), " at the latest"] : [];
  return h("li", { class: row.user === site.me ? "mine" : null },
    h("strong", null, row.user || "another user"), row.user === site.me ? " (you)" : "", ": ",
    count(row.gpus, "GPU"), ", ", row.what, " ", h("span", { class: "soft" }, "(" + row.job + ")"), since, until);
}

const GIB = 1024 ** 3;
const known = value => value !== null && value !== undefined;

function numbers(gpu) {
  return [known(gpu.use) ? Math.round(gpu.use * 100) + " %" : null,
    known(gpu.used) ? (gpu.used / GIB).toFixed(1) + " of " + (gpu.total / GIB).toFixed(0) + " GiB" : null,
    known(gpu.celsius) ? Math.round(gpu.celsius) + " \u00b0C" : null].filter(Boolean).map(text => h("span", null, text));
}

function tile(gpu, row, site) {
  const verdict = gpu.held ? "out of service" : gpu.verdict || "";
  const isEmpty = !gpu.user && !gpu.held && !gpu.unfenced && !row.problem && row.free > 0;
  const kind = gpu.held ? "fatal" : verdict && verdict !== "ok" ? verdict : isEmpty ? "empty" : "";
  return h("li", { class: "tile " + kind + (gpu.unfenced ? " unfenced" : "") + (gpu.user && gpu.user === site.me ? " mine" : "") },
    h("div", null, h("strong", null, known(gpu.minor) ? "GPU " + gpu.minor : "A GPU"),
      verdict ? h("span", { class: verdict === "ok" ? "soft" : "bad" }, verdict) : null),
    gpu.model ? h("div", { class: "soft" }, gpu.model) : null,
    known(gpu.use) ? h("meter", { "aria-hidden": "true", min: 0, max: 1, value: gpu.use }) : null,
    numbers(gpu).length ? h("div", null, numbers(gpu)) : null,
    (gpu.reasons || []).length ? h("p", { class: "bad" }, gpu.reasons.join(", ")) : null,
    gpu.unfenced ? h("p", { class: "bad" }, h("strong", null, "not fenced: Slurm still gives it to jobs")) : null,
    gpu.user ? h("p", null, h("strong", null, gpu.user + (gpu.user === site.me ? " (you)" : "")),
      gpu.since ? [" since ", moment(gpu.since, site.now)] : "", gpu.until ? [" until ", moment(gpu.until, site.now)] : "")
      : h("p", { class: isEmpty ? "free" : "soft" }, isEmpty ? "free" : "not in use"));
}

const words = row => [row.name, row.user, row.what, row.job, row.why, ...(row.models || []), ...(row.tiles || []).flatMap(one => [one.model, one.verdict, one.unfenced && "not fenced", ...(one.reasons || [])]),
  ...(row.leases || []).flatMap(one => [one.user, one.what, one.job])].join(" ").toLowerCase();

function found(rows) {
  const wanted = at("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter(row => wanted.every(word => words(row).includes(word)));
}

function node(row, site) {
  return h("tr", null,
    h("th", { scope: "row" }, row.name, h("div", { class: "soft" }, row.models.join(", "))),
    h("td", { "data-name": "Free GPUs", class: "number" },
      h("span", { class: row.free ? "free" : null }, row.gpus ? row.free + " of " + row.gpus : "none there")),
    h("td", { "data-name": "Free otherwise", class: "number" },
      row.free_cpus + " of " + row.cpus + " cores, " + row.free_memory_gib + " of " + row.memory_gib + " GiB"),
    h("td", null,
      row.problem ? h("p", { class: "bad" }, "Takes no jobs: " + row.problem) : null,
      row.held ? h("p", { class: "bad" }, count(row.held, "GPU") + " held out of service") : null,
      row.tiles.length ? h("ul", { class: "tiles", "aria-label": "GPUs of " + row.name }, row.tiles.map(one => tile(one, row, site))) : null,
      row.leases.length ? h("ul", null, row.leases.map(one => lease(one, site)))
        : row.tiles.length ? null : h("span", { class: "soft" }, "no GPUs")));
}

function waiting(row, site) {
  return h("tr", null,
    h("th", { scope: "row" }, row.user + (row.user === site.me ? " (you)" : "")),
    h("td", { "data-name": "What" }, row.what + " (" + row.job + ")"),
    h("td", { "data-name": "GPUs", class: "number" }, String(row.gpus)),
    h("td", { "data-name": "Waits for" }, row.why),
    h("td", { "data-name": "Since" }, moment(row.since, site.now) || ""));
}

function table(caption, heads, rows) {
  return h("table", null, h("caption", null, caption),
    h("thead", null, h("tr", null, heads.map(name => h("th", { scope: "col" }, name)))), h("tbody", null, rows));
}

function view(site) {
  const nodes = found([...site.nodes].sort((a, b) => compare(a.name, b.name)));
  const queue = found(site.waiting);
  const more = site.waiting_total - site.waiting.length;
  return h("div", { id: "view" },
    h("h2", null, "Free now"),
    site.models.length ? h("dl", { class: "sums" }, site.models.map(one => h("div", null,
      h("dt", null, one.model), h("dd", null, one.free + " of " + one.total),
      h("dd", { class: "soft" }, h("small", null, one.largest + " on one node"))))) : h("p", null, "There are no GPUs."),
    h("h2", null, "Nodes"),
    table(count(nodes.length, "node"), ["Node", "Free GPUs", "Free otherwise", "Who has GPUs, since when, until when"],
      nodes.map(row => node(row, site))),
    h("h2", null, "Waiting"),
    queue.length ? table(count(queue.length, "job") + (more > 0 ? " of " + site.waiting_total : ""),
      ["Who", "What", "GPUs", "Waits for", "Since"], queue.map(row => waiting(row, site))) : h("p", { class: "soft" }, "No job waits."));
}

let site = null;
let paused = false;
let timer = 0;
let turn = 0;

function say(text, isError) {
  if (at("state").textContent !== text) at("state").textContent = text;
  at("state").className = isError ? "error" : "";
}

function draw() {
  if (!site) return;
  merge(at("own"), h("div", { id: "own", role: "status", "aria-live": "polite" },
    (site.warnings || []).map(text => h("p", { class: "error" }, text))));
  merge(at("view"), view(site));
  const mine = site.nodes.flatMap(row => row.leases).filter(row => row.user === site.me).reduce((sum, row) => sum + row.gpus, 0);
  const free = site.models.reduce((sum, one) => sum + one.free, 0);
  if (site.failure) say("The scheduler does not answer. What you see is from " + new Date(site.at * 1000).toLocaleString() + ".", true);
  else {
    const unfenced = site.nodes.filter(row => row.tiles.some(gpu => gpu.unfenced)).map(row => row.name);
    const told = unfenced.length ? " Slurm still gives fatal GPUs to jobs on " + unfenced.join(", ")
      + ". An administrator can close each node with: gpuops drain NODE" : "";
    say(count(free, "GPU") + " free. You have " + mine + "." + told, told);
  }
  at("age").textContent = "As of " + new Date(site.at * 1000).toLocaleTimeString();
}

async function refresh() {
  clearTimeout(timer);
  const own = ++turn;
  try {
    const answer = await fetch("now/data", { credentials: "same-origin", redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (answer.status === 403 || answer.status === 401) throw new Error("you are logged out; log in again");
    if (!answer.ok) throw new Error("its answer is " + answer.status);
    const told = await answer.json();
    if (own !== turn) return;
    site = told;
    draw();
  } catch (error) {
    if (own !== turn) return;
    say("The portal does not answer: " + error.message + "." + (site ? " What you see is from " + new Date(site.at * 1000).toLocaleTimeString() + "." : ""), true);
  }
  if (!paused && !document.hidden) timer = setTimeout(refresh, REFRESH_MS);
}

at("pause").addEventListener("click", () => {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", String(paused));
  if (paused) clearTimeout(timer);
  else refresh();
});
at("finder").addEventListener("submit", event => event.preventDefault());
at("find").addEventListener("input", draw);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (!paused) refresh();
});
refresh();
})();
