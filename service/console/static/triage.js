"use strict";
// Optional: the inbox works without this script. It opens tickets beside the list, counts the selection and has shortcuts.

const FIELDS = "input:not([type=checkbox]), select, textarea, [contenteditable]";
const ticketOf = (page) => page.getElementById("ticket");

// --- the open ticket

const panes = document.querySelector(".panes");
let openedAt = here();
let openings = 0;
/** How far the page was scrolled when a ticket took the place of its list. */
let listTop;

/** Whether an address names a ticket: without a name it means the list, which has its first ticket beside it. */
const namesTicket = (href) => new URL(href, location).searchParams.has("export");
const isShown = (element) => element.getClientRects().length > 0;
const isListShown = () => isShown(panes.querySelector(".pane-list"));

/** Opens a ticket beside the list or, on a phone, in its place. `isNew` adds it to the history; `byKeys` focuses its title. */
async function openTicket(href, { isNew = true, byKeys = false } = {}) {
  const opening = ++openings, began = performance.now();
  const old = ticketOf(document);
  old?.setAttribute("aria-busy", "true");
  const late = old && setTimeout(showLoading, LOADING_AFTER_MS, old);
  const page = await load(href);
  clearTimeout(late);
  // Another ticket was asked for meanwhile; answers may arrive in any order.
  if (opening !== openings) return;
  if (isNew && old && isInUse(old, began)) {
    stopWaiting(old);
    announce("The ticket stays open, because you are using its form.");
    return;
  }
  const fresh = typeof page === "string" ? null : ticketOf(page);
  if (!fresh || !old) {
    if (isNew) location.assign(href);
    else location.reload();
    return;
  }
  const hadFocus = old.contains(document.activeElement), wasListShown = isListShown();
  const isSame = old.dataset.here === fresh.dataset.here;
  if (wasListShown) listTop = scrollY;
  if (isNew) history.pushState(null, "", href);
  shown = openedAt = here();
  removeNotice();
  showInstead(old, fresh, isSame);
  panes.classList.toggle("opened", namesTicket(href));
  markRow(page);
  // Back at the list, the user continues where they left it, wherever its first ticket is.
  if (namesTicket(href)) currentRow()?.scrollIntoView({ block: "nearest" });
  // On a phone the list has gone, with the focus and with what the page was scrolled to.
  const isInstead = !isListShown() && (wasListShown || !isSame);
  if (isInstead) fresh.scrollIntoView();
  const title = fresh.querySelector("h2");
  title.tabIndex = -1;
  if (byKeys || isInstead || (hadFocus && !isSame)) title.focus({ preventScroll: true });
  else announce(title.textContent);
}

/** Shows a ticket: another one keeps neither open folds nor the focus, which might be on a decision. */
function showInstead(old, fresh, isSame) {
  if (isSame) {
    replace(old, fresh);
  } else {
    old.replaceWith(fresh);
    enhance(fresh);
  }
  scheduleRefresh();
}

function stopWaiting(ticket) {
  ticket.removeAttribute("aria-busy");
  ticket.querySelector(":scope > .loading")?.remove();
}

const currentRow = () => document.querySelector(".row[aria-current]");

/** Marks the row of the ticket that a page shows. */
function markRow(page) {
  const open = page.querySelector(".row[aria-current] [data-open]")?.dataset.open;
  for (const row of all("[data-tickets] .row")) {
    if (row.querySelector("[data-open]").dataset.open === open) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
}

/** Shows the list as the user left it, with the focus at the ticket they were at. */
function showTickets() {
  const row = currentRow(), focused = document.activeElement;
  const isInstead = !isListShown();
  panes.classList.remove("opened");
  if (isInstead && listTop === undefined) row?.scrollIntoView({ block: "center" });
  else if (isInstead) scrollTo(0, listTop);
  if (isInstead || ticketOf(document)?.contains(focused)) row?.querySelector("a").focus({ preventScroll: true });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-open], .back a");
  const isPlain = !(event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
  if (link && isPlain) {
    event.preventDefault();
    // Keys click without a pointer, and so without a count of clicks.
    if (link.dataset.open) openTicket(link.href, { byKeys: event.detail === 0 });
    else leaveTicket(link.href);
  }
});

/** Follows the link to all tickets, which a phone has above a ticket. */
function leaveTicket(href) {
  history.pushState(null, "", href);
  returnTo();
}

/** Shows what the address names. */
function returnTo() {
  shown = openedAt = here();
  if (namesTicket(location.href)) {
    openTicket(location.href, { isNew: false });
    return;
  }
  // A ticket that is still loading is no longer wanted.
  openings++;
  const ticket = ticketOf(document);
  if (ticket) stopWaiting(ticket);
  showTickets();
  if (ticket && isShown(ticket)) openTicket(location.href, { isNew: false });
}

addEventListener("popstate", () => {
  // A link within the page, such as the skip link, leaves the ticket as it is.
  if (panes && here() !== openedAt) returnTo();
});

/** After a decision, the list continues at the next ticket; a row that is in view stays where it is. */
function showCurrentRow() {
  const row = panes && namesTicket(location.href) && currentRow();
  if (!row || !isShown(row)) return;
  const { top, bottom } = row.getBoundingClientRect(), list = row.closest(".pane-list").getBoundingClientRect();
  if (top < list.top || bottom > Math.min(list.bottom, innerHeight)) row.scrollIntoView({ block: "center" });
}
showCurrentRow();

// --- the filters

/** A menu that would leave the screen at the right begins further left. */
document.addEventListener("toggle", ({ target }) => {
  const options = target.open && target.querySelector(":scope > .options");
  if (!options) return;
  options.style.translate = "";
  const over = options.getBoundingClientRect().right + 8 - document.documentElement.clientWidth;
  if (over > 0) options.style.translate = `${-over}px`;
}, true);

// --- the selection

const selection = () => document.getElementById("selection");
const countPicked = () => all(".row input[type=checkbox]:checked").length;
const isAllPicked = () => Boolean(selection()?.elements.all?.checked);

function countSelected() {
  const form = selection();
  if (!form) return;
  form.querySelector("[data-selected]").textContent = isAllPicked() ? "Every ticket of the list" : `${countPicked()} selected`;
}

document.addEventListener("change", (event) => {
  if (event.target.closest(".row, #selection")) countSelected();
});
addEventListener("pageshow", countSelected);
countSelected();

// --- shortcuts

const help = document.getElementById("keys");
const hint = document.querySelector("[data-help]");
const hasKeys = document.querySelector("[data-keys]")?.dataset.keys === "on";

const pageOf = (href) => new URL(href, location).searchParams.get("cursor");

function follow(name) {
  const href = ticketOf(document)?.dataset[name];
  if (!href) return;
  // The next page of the list has rows of its own.
  if (pageOf(href) === pageOf(location)) openTicket(href);
  else location.assign(href);
}

/** While another ticket is loading, the user may mean that one: keys decide on none. */
const isLoading = () => Boolean(ticketOf(document)?.matches('[aria-busy="true"]'));

function press(key) {
  if (isLoading()) return;
  if (countPicked() || isAllPicked()) {
    // The user means the selection, and a decision on another ticket would lose it. Its button shows a summary first.
    selection().querySelector(`[data-key="${key}"]`)?.click();
    return;
  }
  const found = ticketOf(document)?.querySelector(`[data-key="${key}"]`);
  if (!found) return;
  if (found.matches("details")) {
    found.open = true;
    found.querySelector("select").focus();
  } else if (found.form.reportValidity()) {
    found.form.requestSubmit(found);
  }
}

const KEYS = {
  j: () => follow("next"),
  k: () => follow("previous"),
  a: () => press("a"),
  d: () => press("d"),
  x: () => isLoading() || document.querySelector(".row[aria-current] input")?.click(),
  "/": () => document.querySelector(".search input[type=search]").focus(),
  "?": () => help.showModal(),
};

document.addEventListener("keydown", (event) => {
  // In a field, such as the target that was missing for an approval, keys type. This one leaves it.
  if (event.key === "Escape" && event.target.matches(FIELDS)) event.target.blur();
  const isTyped = event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.repeat;
  // The list of shortcuts has the button that turns them on again.
  const isOn = hasKeys || (help && event.key === "?");
  if (!isOn || isTyped || help.open || event.target.closest(FIELDS) || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});

if (hint) {
  hint.hidden = false;
  hint.addEventListener("click", () => help.showModal());
}
