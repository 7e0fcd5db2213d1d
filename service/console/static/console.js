"use strict";
// Optional: every page works without this script. It shows times in the reader's time zone and refreshes pages. It inserts
// only its own text and parts of pages that the service sent.

/** A loading message is shown after this time. */
const LOADING_AFTER_MS = 150;
const REQUEST_TIMEOUT_MS = 20_000;
/** The longest interval between refreshes; failures extend the interval. */
const MAX_REFRESH_S = 60;
/** The interval between updates of the menu's counts and of relative times. */
const COUNTS_EVERY_MS = 20_000;
/** Pages stop refreshing after this time without interaction, so that the session of an open tab can expire. */
const IDLE_AFTER_MS = 15 * 60_000;

/** Open menus, and open decision forms of a ticket. */
const OPEN_FOLDS = "details.pop[open], details.menu[open]";
const FOCUSABLE = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function make(name, kind, text) {
  const element = document.createElement(name);
  element.className = kind;
  element.textContent = text;
  if (name === "button") element.type = "button";
  return element;
}

function announce(text) {
  document.querySelector("[data-said]").textContent = text;
}

// --- times and samples

function enhance(root) {
  const two = (number) => String(number).padStart(2, "0");
  for (const time of all("time[datetime]", root)) {
    const at = new Date(time.dateTime);
    if (isNaN(at)) continue;
    const clock = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
    const exact = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}`;
    if (!time.matches(".ago")) time.textContent = exact;
    else if (!time.title.includes("(")) time.title = `${exact} (${time.title})`;
  }
  renewTimes(root);
  for (const name of all("text[data-hour]", root)) {
    const at = new Date(name.dataset.hour);
    name.textContent = `${two(at.getHours())}:${two(at.getMinutes())}`;
  }
  // On a narrow screen, show the newest hours first.
  for (const chart of all(".scroll > .chart", root)) chart.parentElement.scrollLeft = chart.parentElement.scrollWidth;
  for (const sample of all("[data-copy]", root)) {
    const button = make("button", "copy", "Copy");
    button.addEventListener("click", () => copy(sample, button));
    sample.matches("code") ? sample.after(button) : sample.before(button);
  }
}

const UNITS = [["day", "days", 86_400], ["h", "h", 3_600], ["min", "min", 60]];

/** Updates the relative times in `root`. */
function renewTimes(root) {
  for (const time of all("time.ago[datetime]", root)) {
    const left = (new Date(time.dateTime) - Date.now()) / 1000;
    const [one, many, size] = UNITS.find((unit) => Math.abs(left) >= unit[2]) ?? [];
    const number = Math.floor(Math.abs(left) / size);
    const words = `${number} ${number === 1 ? one : many}`;
    const text = !size ? "now" : left > 0 ? `in ${words}` : `${words} ago`;
    if (time.textContent !== text) time.textContent = text;
  }
}

function nameZone() {
  const sentence = document.querySelector("[data-zone]");
  if (sentence) sentence.textContent = "Exact times are in your time zone. Hover over a time for UTC.";
}

async function copy(sample, button) {
  try {
    await navigator.clipboard.writeText(sample.textContent);
    button.textContent = "Copied";
  } catch {
    // Browsers deny clipboard access under plain HTTP; select the text instead.
    getSelection().selectAllChildren(sample);
    button.textContent = "Selected. Press Ctrl+C to copy.";
  }
  announce(button.textContent);
  setTimeout(() => { button.textContent = "Copy"; }, 3000);
}

// --- notices

/** Focuses the notice for screen readers and removes it from the URL, so that a reload or bookmark does not repeat it. */
function showNotice() {
  const notice = document.querySelector(".notice");
  const url = new URL(location.href);
  if (!notice || !url.searchParams.has("done")) return;
  url.searchParams.delete("done");
  url.searchParams.delete("undo");
  history.replaceState(null, "", url);
  // Do not take the focus from a field.
  const isFree = document.activeElement === document.body && !document.querySelector("[autofocus]");
  if (isFree) notice.focus({ preventScroll: true });
}

/** Removes the notice, because it does not apply to the content that is shown now. */
function removeNotice() {
  document.querySelector(".notice")?.remove();
}

/** Replaces the address of a form's response with that of the list: browsers cannot go back to a response, or reload it. */
function replaceAddress() {
  const { instead } = document.querySelector("[data-instead]")?.dataset ?? {};
  if (instead) history.replaceState(null, "", instead);
}

// --- loading pages

/** Returns the page, or an error message. */
async function load(url) {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS) });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (response.redirected) return followRedirect(url);
    const message = all(".refusal", page).map((each) => each.textContent).join(" ");
    return response.ok ? page : message || `The service responded with ${response.status}.`;
  } catch {
    return "The service did not respond.";
  }
}

/** Follows a redirect, for example to the sign-in; the returned promise never resolves. */
function followRedirect(url) {
  location.assign(url);
  return new Promise(() => {});
}

/** Whether a form in `part` is being sent, or was changed after `since`, which is a time of `performance.now()`. */
function isInUse(part, since = -1) {
  return all("form", part).some((form) => form.dataset.sent || Number(form.dataset.typed ?? -1) > since);
}

/** Replaces `old` with `fresh`; keeps the focus and open details. */
function replace(old, fresh) {
  const focused = document.activeElement, place = all(FOCUSABLE, old).indexOf(focused);
  const open = all("details", old).map((details) => details.open);
  old.replaceWith(fresh);
  enhance(fresh);
  all("details", fresh).forEach((details, n) => { details.open ||= open[n] ?? false; });
  if (place < 0) return;
  const found = all(FOCUSABLE, fresh);
  // The row of a ticket may be at another position.
  const moved = focused.dataset.open && found.find((each) => each.dataset.open === focused.dataset.open);
  (moved || found[place] || document.querySelector("main")).focus({ preventScroll: true });
}

const here = () => location.pathname + location.search;

function showLoading(part) {
  if (part.querySelector(":scope > .loading")) return;
  const loading = make("p", "loading", "Loading");
  loading.dataset.state = "loading";
  loading.setAttribute("role", "status");
  part.prepend(loading);
}

// --- refreshing: elements with `data-refresh` in seconds, and an id

const asSent = new WeakMap();
let timer, failures = 0, activeAt = Date.now();

function scheduleRefresh() {
  clearTimeout(timer);
  const watched = all("[data-refresh][id]");
  watched.filter((each) => !asSent.has(each)).forEach((each) => asSent.set(each, each.outerHTML));
  const every = Math.min(...watched.map((each) => Number(each.dataset.refresh) || MAX_REFRESH_S)) * 2 ** failures;
  if (watched.length) timer = setTimeout(refresh, Math.min(MAX_REFRESH_S, every) * 1000);
}

async function refresh() {
  clearTimeout(timer);
  // The next interaction resumes refreshing.
  if (document.hidden || Date.now() - activeAt > IDLE_AFTER_MS || !document.querySelector("[data-refresh]")) return;
  const from = refreshedFrom(document);
  const page = await load(from ?? location.href);
  failures = typeof page === "string" ? failures + 1 : 0;
  // The user may have opened another ticket since. If this ticket has left the list, the response contains another one.
  const isSame = !failures && from === refreshedFrom(document) && from === refreshedFrom(page);
  const said = isSame ? all("[data-refresh][id]").map((each) => update(each, page.getElementById(each.id))) : [];
  if (said.some(Boolean)) announce(said.find(Boolean));
  scheduleRefresh();
}

/** The address of the open ticket, for refreshes. The list's own address opens its first ticket, which may change. */
const refreshedFrom = (page) => page.querySelector("[data-here]")?.dataset.here;

/** Updates a part; returns its status if that is final, otherwise "". */
function update(each, fresh) {
  // Do not replace a part whose form the user is filling in, has changed, or is sending.
  const isLeft = isInUse(each) || each.querySelector(":is(input, select, textarea):focus");
  if (!fresh || isLeft || fresh.outerHTML === asSent.get(each)) return "";
  asSent.set(fresh, fresh.outerHTML);
  replace(each, fresh);
  if (fresh.dataset.refresh) return "";
  removeNotice();
  // A finished job has changed the menu's counts.
  renewCounts();
  return fresh.querySelector(".status")?.textContent ?? "";
}

// --- live counts of the menu

/** The menu's counts when the page was loaded, by name. */
const counted = Object.fromEntries(all("[data-count]").map((each) => [each.dataset.count, Number(each.textContent.replace(/\D/g, ""))]));
let countsTag = "";

/** Updates the counts and the health line; `[data-new]` elements show how many were added since the page was loaded. */
async function renewCounts() {
  const url = document.querySelector("[data-live]")?.dataset.live;
  if (!url || document.hidden || Date.now() - activeAt > IDLE_AFTER_MS) return;
  renewTimes(document);
  try {
    const headers = countsTag ? { "If-None-Match": countsTag } : {};
    const response = await fetch(url, { headers, redirect: "error", signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS) });
    if (response.status !== 200) return;
    countsTag = response.headers.get("ETag") ?? "";
    showCounts(await response.json());
  } catch {
    // Keep the page unchanged; the next update may succeed.
    countsTag = "";
  }
}

function showCounts({ counts, health }) {
  for (const [name, { number, text }] of Object.entries(counts)) {
    all(`[data-count="${name}"]`).forEach((each) => { each.textContent = text; });
    counted[name] = Math.min(counted[name] ?? number, number);
    const added = number - counted[name];
    for (const each of all(`[data-new="${name}"]`)) {
      each.hidden = added <= 0;
      if (added > 0) each.textContent = `${added} new`;
    }
  }
  const line = document.querySelector("[data-health]");
  if (line && health) {
    line.textContent = health.text;
    line.className = `status ${health.tone}`;
  }
}

function noteActivity() {
  const wasIdle = Date.now() - activeAt > IDLE_AFTER_MS;
  activeAt = Date.now();
  if (wasIdle) refresh();
}

// --- events

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method === "post") {
    // Ignore a second click. Disable buttons after the submit, because the values of disabled ones are not sent.
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
    setTimeout(() => all("button", form).forEach((button) => { button.disabled = true; }));
  }
});

document.addEventListener("input", (event) => {
  if (event.target.form) event.target.form.dataset.typed = performance.now();
});

// At most one fold is open. A click elsewhere, a click on a link in it and the Escape key close it.
document.addEventListener("click", (event) => {
  for (const each of all(OPEN_FOLDS)) {
    if (!each.contains(event.target) || event.target.closest("a")) each.open = false;
  }
});

document.addEventListener("keydown", (event) => {
  const opened = event.key === "Escape" && document.querySelector(OPEN_FOLDS);
  if (opened) {
    opened.open = false;
    opened.querySelector("summary").focus();
  }
});

addEventListener("pageshow", () => {
  for (const form of all("form[data-sent]")) {
    delete form.dataset.sent;
    all("button", form).forEach((button) => { button.disabled = false; });
  }
});

for (const type of ["pointermove", "keydown"]) addEventListener(type, noteActivity, { passive: true });
document.addEventListener("visibilitychange", () => { refresh(); renewCounts(); });
setInterval(renewCounts, COUNTS_EVERY_MS);

scheduleRefresh();
enhance(document);
showNotice();
replaceAddress();
nameZone();
