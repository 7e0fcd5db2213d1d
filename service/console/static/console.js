"use strict";
// Everything works without this script; with it times are the reader's own, lists change in place, and pages follow what
// goes on. It puts in nothing but text of its own and parts of pages that the service itself sent.

/** Whoever waits for less is not told. */
const LOADING_AFTER_MS = 150;
/** The service has answered by then, or will not. */
const PATIENCE_MS = 20_000;
/** How far apart what fails to refresh is asked for again, at most. */
const SELDOM_S = 60;
/** What nobody touches for so long stands still, so that a session that was left alone comes to its end. */
const PRESENT_MS = 15 * 60_000;

const LISTS = "[data-list]";
const FILTERS = "form[data-filters]";
const FOCUSABLE = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function make(name, kind, text) {
  const element = document.createElement(name);
  element.className = kind;
  element.textContent = text;
  if (name === "button") element.type = "button";
  return element;
}

function say(text) {
  document.querySelector("[data-said]").textContent = text;
}

// --- times and samples

function settle(root) {
  const two = (number) => String(number).padStart(2, "0");
  for (const time of all("time[datetime]", root)) {
    const at = new Date(time.dateTime);
    if (isNaN(at)) continue;
    const clock = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
    time.textContent = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}`;
  }
  for (const name of all("text[data-hour]", root)) {
    const at = new Date(name.dataset.hour);
    name.textContent = `${two(at.getHours())}:${two(at.getMinutes())}`;
  }
  // On a narrow screen, what is new is seen first.
  for (const chart of all(".scroll > .chart", root)) chart.parentElement.scrollLeft = chart.parentElement.scrollWidth;
  for (const sample of all("[data-copy]", root)) {
    const button = make("button", "copy", "Copy");
    button.addEventListener("click", () => copy(sample, button));
    sample.before(button);
  }
}

async function copy(sample, button) {
  try {
    await navigator.clipboard.writeText(sample.textContent);
    button.textContent = "Copied";
  } catch {
    // Not under plain HTTP: what is marked is copied by hand.
    getSelection().selectAllChildren(sample);
    button.textContent = "Marked, press Ctrl+C";
  }
  say(button.textContent);
  setTimeout(() => { button.textContent = "Copy"; }, 3000);
}

// --- what was done

/** Has it read out, and takes it out of the address: whoever loads the page again or keeps it did not do it again. */
function notice() {
  const told = document.querySelector(".notice");
  const url = new URL(location.href);
  if (!told || !url.searchParams.has("done")) return;
  url.searchParams.delete("done");
  history.replaceState(null, "", url);
  shown = here();
  // Where a field is about to have the focus, it keeps it.
  const isFree = document.activeElement === document.body && !document.querySelector("[autofocus]");
  if (isFree) told.focus({ preventScroll: true });
}

// --- asking for a page

/** Returns the page, or a text that says why there is none. */
async function ask(url) {
  try {
    const answer = await fetch(url, { signal: AbortSignal.timeout(PATIENCE_MS) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.redirected) return leave(url);
    const told = all(".refusal, .refusal + ul > li", page).map((each) => each.textContent).join(" ");
    return answer.ok ? page : told || `The service answered with ${answer.status}.`;
  } catch {
    return "The service did not answer.";
  }
}

/** Goes where the service leads, such as to the door; nothing more happens here. */
function leave(url) {
  location.assign(url);
  return new Promise(() => {});
}

/** Puts `come` where `old` stands; whoever was in there stays at the same place. */
function exchange(old, come) {
  const place = all(FOCUSABLE, old).indexOf(document.activeElement);
  const open = all("details", old).map((details) => details.open);
  old.replaceWith(come);
  settle(come);
  all("details", come).forEach((details, n) => { details.open ||= open[n] ?? false; });
  if (place >= 0) (all(FOCUSABLE, come)[place] ?? document.querySelector("main")).focus({ preventScroll: true });
}

// --- lists

const here = () => location.pathname + location.search;
/** What the page shows, or is about to. */
let shown = here();
let turns = 0;

async function turn(url, { isNew = true, isPager = false } = {}) {
  const mine = ++turns;
  const lists = all(LISTS);
  lists.forEach((list) => list.setAttribute("aria-busy", "true"));
  const late = setTimeout(() => lists.forEach(showLoading), LOADING_AFTER_MS);
  const page = await ask(url);
  clearTimeout(late);
  if (mine !== turns) return;
  if (isNew) history.pushState(null, "", url);
  shown = here();
  if (typeof page === "string") {
    lists.forEach((list) => showError(list, page));
    return;
  }
  const parts = all(`${LISTS}, ${FILTERS}`), come = all(`${LISTS}, ${FILTERS}`, page);
  if (parts.length !== come.length) await leave(location.href);
  document.title = page.title;
  parts.forEach((part, n) => exchange(part, come[n]));
  if (isPager) goTo(document.querySelector(LISTS));
  say(all(LISTS).map(tell).join(" "));
}

function showLoading(list) {
  if (list.querySelector(":scope > .loading")) return;
  const told = make("p", "loading", "Loading");
  told.dataset.state = "loading";
  told.setAttribute("role", "status");
  list.prepend(told);
}

function showError(list, why) {
  const told = make("div", "empty failed", "");
  told.dataset.state = "error";
  told.setAttribute("role", "alert");
  const again = make("button", "", "Try again");
  again.addEventListener("click", () => turn(location.href, { isNew: false, isPager: true }));
  told.append(make("p", "", `${list.ariaLabel ?? "This list"} could not be loaded. ${why}`), again);
  const hadFocus = list.contains(document.activeElement);
  list.removeAttribute("aria-busy");
  list.replaceChildren(told);
  if (hadFocus) again.focus();
}

function tell(list) {
  const empty = list.querySelector("[data-state]");
  return `${list.ariaLabel ?? "List"}: ${empty ? empty.textContent.trim() : `${all("tbody tr", list).length} shown.`}`;
}

function goTo(list) {
  list.tabIndex = -1;
  list.focus({ preventScroll: true });
  list.scrollIntoView({ block: "nearest" });
}

function filtersOf(form) {
  const chosen = [...new FormData(form)].filter(([, value]) => value !== "");
  return `${location.pathname}${chosen.length ? `?${new URLSearchParams(chosen)}` : ""}`;
}

function isTurn(link, event) {
  const isPlain = !(event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
  return isPlain && link.origin === location.origin && link.pathname === location.pathname && !link.hash && !link.target;
}

// --- what a page follows: elements with `data-refresh` in seconds, and an id

const asSent = new WeakMap();
let next, failures = 0, touchedAt = Date.now();

function follow() {
  clearTimeout(next);
  const followed = all("[data-refresh][id]");
  followed.filter((each) => !asSent.has(each)).forEach((each) => asSent.set(each, each.outerHTML));
  const every = Math.min(...followed.map((each) => Number(each.dataset.refresh) || SELDOM_S)) * 2 ** failures;
  if (followed.length) next = setTimeout(refresh, Math.min(SELDOM_S, every) * 1000);
}

async function refresh() {
  clearTimeout(next);
  // It goes on with the next sign of life.
  if (document.hidden || Date.now() - touchedAt > PRESENT_MS || !document.querySelector("[data-refresh]")) return;
  const page = await ask(location.href);
  failures = typeof page === "string" ? failures + 1 : 0;
  if (!failures) all("[data-refresh][id]").forEach((each) => renew(each, page.getElementById(each.id)));
  follow();
}

function renew(each, come) {
  // Nothing that somebody types or has sent is taken away from under them.
  const isInUse = each.querySelector(":is(input, select, textarea):focus, [data-sent]");
  if (!come || isInUse || come.outerHTML === asSent.get(each)) return;
  asSent.set(come, come.outerHTML);
  exchange(each, come);
  if (!come.dataset.refresh) say(come.querySelector(".status")?.textContent ?? "");
}

function isThere() {
  const wasAway = Date.now() - touchedAt > PRESENT_MS;
  touchedAt = Date.now();
  if (wasAway) refresh();
}

// --- what a person does

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.matches(FILTERS) && document.querySelector(LISTS)) {
    event.preventDefault();
    turn(filtersOf(form));
  } else if (form.method === "post") {
    // A second click sends nothing. Later, since what is disabled would not be sent.
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
    setTimeout(() => all("button", form).forEach((button) => { button.disabled = true; }));
  }
});

document.addEventListener("click", (event) => {
  const link = event.target.closest(`${LISTS} a[href]`);
  if (!link || !isTurn(link, event)) return;
  event.preventDefault();
  turn(link.href, { isPager: true });
});

addEventListener("popstate", () => {
  if (here() === shown) return;
  shown = here();
  turn(location.href, { isNew: false });
});

addEventListener("pageshow", () => {
  for (const form of all("form[data-sent]")) {
    delete form.dataset.sent;
    all("button", form).forEach((button) => { button.disabled = false; });
  }
});

for (const sign of ["pointermove", "keydown"]) addEventListener(sign, isThere, { passive: true });
document.addEventListener("visibilitychange", refresh);

follow();
settle(document);
notice();
const { timeZone } = Intl.DateTimeFormat().resolvedOptions();
document.querySelector("[data-zone]").textContent = `Times are those of ${timeZone}; hover over one for UTC.`;
