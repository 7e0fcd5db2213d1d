"use strict";
// Optional: the inbox works without this script. It opens tickets beside the list, counts the selection and handles shortcuts.

const FIELDS = "input:not([type=checkbox]), select, textarea, [contenteditable]";
const ticketOf = (page) => page.getElementById("ticket");

// --- the open ticket

const panes = document.querySelector(".panes");
let openedAt = here();
let openings = 0;
/** The scroll position of the page when a ticket replaced its list. */
let listTop;

/** Whether an address contains a ticket's id. An address without one is that of the list, which opens its first ticket. */
const namesTicket = (href) => new URL(href, location).searchParams.has("export");
const isShown = (element) => element.getClientRects().length > 0;
const isListShown = () => isShown(panes.querySelector(".pane-list"));

/** Opens a ticket beside the list, on a phone instead of it. `isNew` adds it to the history; `byKeys` focuses its title. */
async function openTicket(href, { isNew = true, byKeys = false } = {}) {
  const opening = ++openings, began = performance.now();
  const old = ticketOf(document);
  old?.setAttribute("aria-busy", "true");
  const late = old && setTimeout(showLoading, LOADING_AFTER_MS, old);
  const page = await load(href);
  clearTimeout(late);
  // The user has opened another ticket since. Responses may arrive in any order.
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
  openedAt = here();
  removeNotice();
  showInstead(old, fresh, isSame);
  panes.classList.toggle("opened", namesTicket(href));
  markRow(page);
  // A list without an open ticket keeps its scroll position, even if its first ticket is out of view.
  if (namesTicket(href)) currentRow()?.scrollIntoView({ block: "nearest" });
  // On a phone the ticket replaces the list, so the focus and the scroll position are lost.
  const isInstead = !isListShown() && (wasListShown || !isSame);
  if (isInstead) fresh.scrollIntoView();
  const title = fresh.querySelector("h2");
  title.tabIndex = -1;
  if (byKeys || isInstead || (hadFocus && !isSame)) title.focus({ preventScroll: true });
  else announce(title.textContent);
}

/** Shows a ticket. For another ticket, open folds and the focus are not kept: the focus might be on a decision. */
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

/** Marks the row of the ticket that is open on `page`. */
function markRow(page) {
  const open = page.querySelector(".row[aria-current] [data-open]")?.dataset.open;
  for (const row of all("[data-tickets] .row")) {
    if (row.querySelector("[data-open]").dataset.open === open) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
}

/** Shows the list at its last scroll position, with the focus on the row of the last open ticket. */
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
    // A click by the keyboard has a click count of 0.
    if (link.dataset.open) openTicket(link.href, { byKeys: event.detail === 0 });
    else leaveTicket(link.href);
  }
});

/** Follows the link to all tickets, which is above a ticket on a phone. */
function leaveTicket(href) {
  history.pushState(null, "", href);
  returnTo();
}

/** Shows the ticket or the list that the address describes. */
function returnTo() {
  openedAt = here();
  if (namesTicket(location.href)) {
    openTicket(location.href, { isNew: false });
    return;
  }
  // Ignore a ticket that is still loading.
  openings++;
  const ticket = ticketOf(document);
  if (ticket) stopWaiting(ticket);
  showTickets();
  if (ticket && isShown(ticket)) openTicket(location.href, { isNew: false });
}

addEventListener("popstate", () => {
  // Links within the page, such as the skip link, do not change the ticket.
  if (panes && here() !== openedAt) returnTo();
});

/** Scrolls to the row of the next ticket after a decision, unless the row is in view. */
function showCurrentRow() {
  const row = panes && namesTicket(location.href) && currentRow();
  if (!row || !isShown(row)) return;
  const { top, bottom } = row.getBoundingClientRect(), list = row.closest(".pane-list").getBoundingClientRect();
  if (top < list.top || bottom > Math.min(list.bottom, innerHeight)) row.scrollIntoView({ block: "center" });
}
showCurrentRow();

// --- the filters

/** Moves a menu to the left if it would extend beyond the right edge of the screen. */
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
  // The ticket is on another page of the list, so the whole page must be loaded.
  if (pageOf(href) === pageOf(location)) openTicket(href);
  else location.assign(href);
}

/** Whether a ticket is loading. The user may mean that ticket, so keys make no decision until it is shown. */
const isLoading = () => Boolean(ticketOf(document)?.matches('[aria-busy="true"]'));

function press(key) {
  if (isLoading()) return;
  if (countPicked() || isAllPicked()) {
    // The key is for the selection, which a decision on the open ticket would lose. The button shows a summary first.
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
  // In a field, such as the target that an approval needs, keys enter text. Escape leaves the field.
  if (event.key === "Escape" && event.target.matches(FIELDS)) event.target.blur();
  const isTyped = event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.repeat;
  // `?` always works, because the list of shortcuts has the button that turns them on again.
  const isOn = hasKeys || (help && event.key === "?");
  if (!isOn || isTyped || help.open || event.target.closest(FIELDS) || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});

if (hint) {
  hint.hidden = false;
  hint.addEventListener("click", () => help.showModal());
}
