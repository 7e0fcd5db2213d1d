"use strict";
// Optional: the inbox works without this script. It opens tickets beside the list, counts the selection and has shortcuts.

const FIELDS = "input:not([type=checkbox]), select, textarea, [contenteditable]";
/** Decisions of a ticket, and filters. */
const OPEN_FOLDS = "details.pop[open], details.menu[open]";
const ticketOf = (page) => page.getElementById("ticket");

// --- the open ticket

let openedAt = here();
let openings = 0;

async function openTicket(href) {
  const opening = ++openings, began = performance.now();
  const old = ticketOf(document);
  old?.setAttribute("aria-busy", "true");
  const late = old && setTimeout(showLoading, LOADING_AFTER_MS, old);
  const page = await load(href);
  clearTimeout(late);
  // Another ticket was asked for meanwhile; answers may arrive in any order.
  if (opening !== openings) return;
  if (old && isInUse(old, began)) {
    old.removeAttribute("aria-busy");
    old.querySelector(":scope > .loading")?.remove();
    announce("The ticket stays open, because you are using its form.");
    return;
  }
  const fresh = typeof page === "string" ? null : ticketOf(page);
  if (!fresh || !old) {
    location.assign(href);
    return;
  }
  showInstead(old, fresh);
  history.pushState(null, "", href);
  shown = openedAt = here();
  document.querySelector(".panes").classList.add("opened");
  for (const row of all("[data-tickets] .row")) {
    const isOpen = page.querySelector(`.row[aria-current] [data-open="${row.querySelector("[data-open]").dataset.open}"]`);
    row.toggleAttribute("aria-current", Boolean(isOpen));
    if (!isOpen) continue;
    row.setAttribute("aria-current", "true");
    row.scrollIntoView({ block: "nearest" });
  }
  announce(fresh.querySelector("h2").textContent);
}

/** Shows a ticket: another one keeps neither open folds nor the focus, which might be on a decision. */
function showInstead(old, fresh) {
  const isSame = old.dataset.here === fresh.dataset.here, hadFocus = old.contains(document.activeElement);
  if (isSame) {
    replace(old, fresh);
  } else {
    old.replaceWith(fresh);
    enhance(fresh);
  }
  scheduleRefresh();
  if (isSame || !hadFocus) return;
  const title = fresh.querySelector("h2");
  title.tabIndex = -1;
  title.focus({ preventScroll: true });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-open]");
  const isPlain = !(event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
  if (link && isPlain) {
    event.preventDefault();
    openTicket(link.href);
  }
  // One fold at a time; a click elsewhere closes it.
  for (const each of all(OPEN_FOLDS)) {
    if (!each.contains(event.target)) each.open = false;
  }
});

addEventListener("popstate", () => {
  // A link within the page, such as the skip link, leaves the ticket as it is.
  if (here() !== openedAt) location.reload();
});

// --- the selection

function countSelected() {
  const form = document.getElementById("selection");
  if (!form) return;
  const picked = all(".row input[type=checkbox]:checked").length;
  const isAll = form.elements.all?.checked;
  form.querySelector("[data-selected]").textContent = isAll ? "Every ticket of the list" : `${picked} selected`;
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

function follow(name) {
  const href = ticketOf(document)?.dataset[name];
  if (href) openTicket(href);
}

/** While another ticket is loading, the user may mean that one: keys decide on none. */
const isLoading = () => Boolean(ticketOf(document)?.matches('[aria-busy="true"]'));

function press(key) {
  const found = !isLoading() && ticketOf(document)?.querySelector(`[data-key="${key}"]`);
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
  const opened = event.key === "Escape" && document.querySelector(OPEN_FOLDS);
  if (opened) {
    opened.open = false;
    opened.querySelector("summary").focus();
  }
  const isTyped = event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.repeat;
  if (!hasKeys || isTyped || help.open || event.target.closest(FIELDS) || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});

if (hint) {
  hint.hidden = false;
  hint.addEventListener("click", () => help.showModal());
}
