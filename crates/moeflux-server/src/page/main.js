// Brings the parts of the page together.

import * as chats from "./chats.js";
import * as composer from "./composer.js";
import { byId, icon, notice } from "./dom.js";
import * as facts from "./facts.js";
import * as keys from "./keys.js";
import * as options from "./options.js";
import * as search from "./search.js";
import * as settings from "./settings.js";
import * as sidebar from "./sidebar.js";
import * as storage from "./storage.js";
import * as thread from "./thread.js";

const wide = matchMedia("(min-width: 90rem)");

for (const element of document.querySelectorAll("[data-icon]")) element.prepend(icon(element.dataset.icon));

/** The conversation that the address names. */
const named = () => location.hash.slice(1) || null;

async function follow() {
  const id = named();
  if (id !== chats.state.open) await chats.open(id);
  if (id && !chats.state.open) history.replaceState(null, "", location.pathname + location.search);
}

function begin() {
  sidebar.closeDrawer();
  if (named()) location.hash = "";
  else if (chats.state.open) chats.open(null);
  byId("question").focus();
}

function showTitle() {
  const title = chats.state.chats.get(chats.state.open)?.title;
  document.title = title ? `${title} – moeflux` : "moeflux";
  byId("title").textContent = title ?? "New chat";
  // The first question gives a conversation its address.
  if (chats.state.open && named() !== chats.state.open) history.pushState(null, "", `#${chats.state.open}`);
}

function showFacts() {
  const isShown = settings.settings.showFacts ?? wide.matches;
  document.body.classList.toggle("show-facts", isShown);
  byId("toggle-facts").setAttribute("aria-expanded", String(isShown));
}

function toggleFacts() {
  settings.change({ showFacts: !document.body.classList.contains("show-facts") });
  showFacts();
}

const THEMES = ["", "light", "dark"];
const THEME_NAMES = ["system", "light", "dark"];

function showSettings() {
  composer.showThinking();
  const i = Math.max(0, THEMES.indexOf(settings.settings.theme));
  const button = byId("theme");
  const isDark = i === 2 || (i === 0 && matchMedia("(prefers-color-scheme: dark)").matches);
  button.replaceChildren(icon(isDark ? "moon" : "sun"));
  button.title = `Theme: ${THEME_NAMES[i]}`;
  button.setAttribute("aria-label", button.title);
  byId("open-settings").classList.toggle("changed", options.isChanged());
}

function nextTheme() {
  const i = Math.max(0, THEMES.indexOf(settings.settings.theme));
  settings.change({ theme: THEMES[(i + 1) % THEMES.length] });
  options.applyTheme();
  showSettings();
}

let told = null;

/** Says once that something is not kept, not with every record. */
function tellProblem(text) {
  if (told === text) return;
  told = text;
  setTimeout(() => { told = null; }, 60_000);
  notice(text, { isError: true, seconds: 15 });
}

async function start() {
  storage.watchProblems(tellProblem);
  settings.load();
  // On a phone the figures take the whole screen.
  if (matchMedia("(max-width: 52rem)").matches) settings.settings.showFacts = false;
  showFacts();
  options.start(showSettings);
  await chats.load();
  thread.start();
  composer.start();
  search.start();
  sidebar.start();
  chats.changes.addEventListener("open", showTitle);
  chats.changes.addEventListener("list", showTitle);
  keys.start({ search: sidebar.focusSearch, begin, settings: options.open, stop: composer.stop });
  facts.start(() => {
    thread.nameModel();
    showSettings();
  });
  for (const button of document.querySelectorAll(".begin")) button.addEventListener("click", begin);
  byId("open-settings").addEventListener("click", options.open);
  byId("toggle-facts").addEventListener("click", toggleFacts);
  byId("close-facts").addEventListener("click", toggleFacts);
  byId("theme").addEventListener("click", nextTheme);
  addEventListener("hashchange", follow);
  await chats.open(named());
  // The browser is asked not to throw conversations away when space gets short.
  navigator.storage?.persist?.().catch(() => {});
  document.body.dataset.ready = "true";
}

start();
