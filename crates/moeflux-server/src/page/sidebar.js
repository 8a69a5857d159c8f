// The list of conversations.

import { running, runs } from "./answer.js";
import * as chats from "./chats.js";
import { byId, h, icon, iconButton, notice } from "./dom.js";
import * as search from "./search.js";
import { exportChats, exportMarkdown } from "./transfer.js";

const list = byId("chats");
const DAY = 86_400_000;

function startOfDay(time) {
  return new Date(time).setHours(0, 0, 0, 0);
}

/** What a conversation of this time is grouped under. */
function groupOf(time) {
  const days = Math.round((startOfDay(Date.now()) - startOfDay(time)) / DAY);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days < 7) return "Previous 7 days";
  if (days < 30) return "Previous 30 days";
  return new Date(time).toLocaleDateString("en", { month: "long", year: "numeric" });
}

const focusKey = element => element?.closest("[data-chat]")?.dataset.chat;

function draw() {
  const query = byId("search").value.trim();
  if (query) {
    search.run(query, results => drawResults(query, results));
    return;
  }
  search.cancel();
  if (list.querySelector("form")) return;
  const focused = list.contains(document.activeElement) ? focusKey(document.activeElement) : null;
  const sorted = Array.from(chats.state.chats.values()).sort((a, b) => b.updated - a.updated);
  const parts = [];
  let group = null;
  let items = null;
  for (const chat of sorted) {
    const name = groupOf(chat.updated);
    if (name !== group) {
      group = name;
      items = h("ul", { "aria-label": name });
      parts.push(h("h2", {}, name), items);
    }
    items.append(row(chat));
  }
  if (!parts.length) parts.push(h("p.hint", {}, "No chats yet."));
  list.replaceChildren(...parts);
  if (focused) list.querySelector(`[data-chat="${focused}"] a`)?.focus();
}

const address = id => `#${id}`;

function row(chat) {
  const isOpen = chat.id === chats.state.open;
  const link = h("a", { href: address(chat.id), title: chat.title, onclick: closeDrawer }, chat.title);
  if (isOpen) link.setAttribute("aria-current", "page");
  if (running.has(chat.id)) link.append(h("span.busy", { role: "img", "aria-label": "being answered" }));
  const item = h(isOpen ? "li.open" : "li", {}, link,
    iconButton("more", `Actions for ${chat.title}`, event => openMenu(item, chat, event.currentTarget), { "aria-haspopup": "menu", "aria-expanded": "false" }));
  item.dataset.chat = chat.id;
  return item;
}

function openMenu(item, chat, button) {
  if (closeMenu() === item) return;
  const entry = (name, label, act) => h("button", { type: "button", role: "menuitem", onclick: () => { closeMenu(); act(); } }, icon(name), label);
  const menu = h("div.menu", { role: "menu" },
    entry("edit", "Rename", () => rename(item, chat)),
    entry("export", "Export as Markdown", () => exportMarkdown(chat.id)),
    entry("export", "Export as JSON", () => exportChats([chat.id])),
    entry("trash", "Delete", () => remove(chat)));
  menu.addEventListener("keydown", event => {
    const entries = Array.from(menu.children);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      const i = entries.indexOf(document.activeElement);
      entries[(i + step + entries.length) % entries.length].focus();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      closeMenu();
      button.focus();
    }
  });
  item.append(menu);
  button.setAttribute("aria-expanded", "true");
  // Near the end of the list there is no room below.
  const isLow = menu.getBoundingClientRect().bottom > list.getBoundingClientRect().bottom;
  menu.classList.toggle("above", isLow);
  menu.firstElementChild.focus();
}

/** Closes the menu that is open; returns the row it was at. */
function closeMenu() {
  const menu = list.querySelector(".menu");
  if (!menu) return null;
  const item = menu.parentElement;
  menu.remove();
  item.querySelector("[aria-expanded]").setAttribute("aria-expanded", "false");
  return item;
}

function rename(item, chat) {
  const input = h("input", { value: chat.title, "aria-label": "Title", maxLength: 200 });
  let isDone = false;
  const done = isKept => {
    if (isDone) return;
    isDone = true;
    form.remove();
    if (isKept) chats.rename(chat.id, input.value.trim());
    draw();
    list.querySelector(`[data-chat="${chat.id}"] a`)?.focus();
  };
  const form = h("form", { onsubmit: event => { event.preventDefault(); done(true); } }, input);
  input.addEventListener("blur", () => done(true));
  input.addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    done(false);
  });
  item.replaceChildren(form);
  input.select();
  input.focus();
}

async function remove(chat) {
  const removed = await chats.remove(chat.id);
  notice(`“${chat.title}” was deleted.`, { label: "Undo", seconds: 10, action: () => chats.restore(removed) });
}

function drawResults(query, results) {
  if (byId("search").value.trim() !== query) return;
  if (!results.length) {
    list.replaceChildren(h("p.hint", { role: "status" }, `Nothing has “${query}” in it.`));
    return;
  }
  const items = results.map(({ chat, message, before, match, after }) => {
    const open = () => {
      closeDrawer();
      if (message) search.showWhenOpen(chat.id, message);
    };
    const text = match === undefined ? null : h("small", {}, before, h("mark", {}, match), after);
    return h("li.result", {}, h("a", { href: address(chat.id), onclick: open }, h("span", {}, chat.title), text));
  });
  list.replaceChildren(h("h2", { role: "status" }, `${results.length} found`), h("ul", {}, ...items));
}

export function openDrawer() {
  document.body.classList.add("show-chats");
  byId("toggle-chats").setAttribute("aria-expanded", "true");
}

export function closeDrawer() {
  document.body.classList.remove("show-chats");
  byId("toggle-chats").setAttribute("aria-expanded", "false");
}

export function focusSearch() {
  openDrawer();
  byId("search").focus();
  byId("search").select();
}

export function start() {
  for (const name of ["list", "open"]) chats.changes.addEventListener(name, draw);
  runs.addEventListener("done", draw);
  byId("search").addEventListener("input", draw);
  byId("search").addEventListener("keydown", event => {
    if (event.key !== "Escape" || !event.target.value) return;
    event.stopPropagation();
    event.target.value = "";
    draw();
  });
  byId("toggle-chats").addEventListener("click", () => {
    if (document.body.classList.contains("show-chats")) closeDrawer();
    else openDrawer();
  });
  byId("veil").addEventListener("click", closeDrawer);
  document.addEventListener("pointerdown", event => {
    if (!event.target.closest?.(".menu, [aria-haspopup]")) closeMenu();
  });
  draw();
}
