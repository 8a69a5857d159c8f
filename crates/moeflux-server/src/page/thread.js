// The shown conversation.

import * as answers from "./answer.js";
import * as chats from "./chats.js";
import { announce, byId, count, durationText, h } from "./dom.js";
import { questions } from "./introduction.js";
import { MessageView } from "./message.js";
import { chosen, chosenStatus } from "./models.js";

const list = byId("messages");
const views = new Map();
let follows = true;

const isAtEnd = () => list.scrollHeight - list.scrollTop - list.clientHeight < 60;
export const toEnd = () => {
  follows = true;
  list.scrollTop = list.scrollHeight;
};

// Bodies are rendered when they come near what is seen.
const seen = new IntersectionObserver(entries => {
  for (const entry of entries) if (entry.isIntersecting) views.get(entry.target.dataset.id)?.render();
}, { root: list, rootMargin: "600px" });

// What grows above or at the end does not push the end out of sight.
const resized = new ResizeObserver(() => { if (follows) list.scrollTop = list.scrollHeight; });

const actions = {
  isWriting: message => chats.writing.has(message.id),
  drawn: () => { if (follows) list.scrollTop = list.scrollHeight; },
  again: message => answers.again(message),
  goOn: message => answers.goOn(message),
  show: message => chats.showBranch(message),
  giveKey: message => byId("settings").dispatchEvent(new CustomEvent("give-key", { detail: () => answers.again(message) })),
  edit: view => edit(view),
};

function edit(view) {
  const { message } = view;
  if (answers.running.has(message.chat)) return;
  view.edit(async text => {
    const fields = { role: message.role, parent: message.parent, content: text, files: message.files ?? [] };
    const added = await chats.add(message.chat, fields);
    if (message.role === "user") answers.answer(added);
  });
}

/** Edits the last question of the shown conversation. */
export function editLast() {
  const last = chats.shownPath().findLast(message => message.role === "user");
  if (last) edit(views.get(last.id));
}

function empty() {
  const [name, introduction] = [chosen(), chosenStatus()?.introduction];
  return h("li.empty", {},
    h("strong", {}, name ? `Ask ${name} something` : "Ask the model something"),
    introduction && h("span", {}, `${introduction.about}.`),
    questions(),
    h("span", {}, "Chats are kept in this browser only."));
}

function forget(view) {
  seen.unobserve(view.item);
  resized.unobserve(view.item);
}

/** Brings the list in line with the shown path. */
function draw() {
  const path = chats.shownPath();
  const ids = new Set(path.map(message => message.id));
  for (const [id, view] of views) {
    if (ids.has(id)) continue;
    forget(view);
    view.item.remove();
    views.delete(id);
  }
  if (!path.length) {
    list.replaceChildren(empty());
    return;
  }
  list.querySelector(".empty")?.remove();
  const siblings = siblingLists(path);
  path.forEach((message, i) => {
    let view = views.get(message.id);
    if (!view) {
      view = new MessageView(message, actions);
      views.set(message.id, view);
      seen.observe(view.item);
      resized.observe(view.item);
    }
    if (!view.item.classList.contains("editing")) refresh(view, message, siblings[i]);
    if (list.children[i] !== view.item) list.insertBefore(view.item, list.children[i] ?? null);
  });
  if (follows) toEnd();
}

/** Draws a message again only where something about it has changed. */
function refresh(view, message, siblings) {
  // What another tab has written comes as another object.
  view.message = message;
  const { content, thought, state, error, facts } = message;
  const isOwn = chats.writing.has(message.id);
  // The remark on a guess has what the model says of itself, which may come after the message.
  const introduction = facts?.isGuess && chosenStatus()?.introduction;
  const drawn = JSON.stringify([content.length, thought?.length, state, isOwn, error, facts, introduction, siblings.map(one => one.id)]);
  if (view.drawn === drawn) return;
  const isNewText = view.drawn && !view.live && view.length !== content.length;
  view.drawn = drawn;
  view.length = content.length;
  view.update(message, siblings);
  if (isNewText && view.isRendered && !view.live && !isOwn && state !== "writing") {
    view.isRendered = false;
    view.render();
  }
}

/** For each message of the path, all versions of it. */
function siblingLists(path) {
  const byParent = new Map();
  for (const message of chats.state.messages.values()) {
    const key = message.parent ?? null;
    if (!byParent.has(key)) byParent.set(key, []);
    byParent.get(key).push(message);
  }
  return path.map(message => {
    const all = byParent.get(message.parent ?? null) ?? [message];
    return all.length > 1 ? all.sort((a, b) => a.created - b.created) : all;
  });
}

/** Shows a message, such as one that was searched for. */
export async function showMessage(id) {
  const message = chats.state.messages.get(id);
  if (!message) return;
  await chats.showBranch(message);
  follows = false;
  const view = views.get(id);
  view?.render();
  view?.item.scrollIntoView({ block: "center" });
  view?.item.classList.add("found");
  setTimeout(() => view?.item.classList.remove("found"), 2500);
}

function showProgress(run) {
  const box = byId("progress");
  const isShown = run && run.message.chat === chats.state.open && run.first === null;
  box.hidden = !isShown || !(run.progress || run.waitUntil || run.loads || run.nPictures);
  if (box.hidden) return;
  const bar = byId("progress-bar");
  if (run.waitUntil) {
    const seconds = Math.max(0, Math.ceil((run.waitUntil - performance.now()) / 1000));
    bar.removeAttribute("value");
    byId("progress-text").textContent = `The server is busy. Trying again in ${seconds} s.`;
    return;
  }
  if (!run.progress) {
    bar.removeAttribute("value");
    const looks = run.nPictures === 1 ? "Looking at the picture" : `Looking at ${run.nPictures} pictures`;
    byId("progress-text").textContent = run.loads ? `Loading ${run.loads}` : looks;
    return;
  }
  const { processed, total, cache } = run.progress;
  const done = processed - cache;
  const seconds = (performance.now() - run.start) / 1000;
  const left = done > 0 && processed < total ? `, ${durationText((seconds / done) * (total - processed))} left` : "";
  bar.max = total;
  bar.value = processed;
  byId("progress-text").textContent = `Reading the prompt: ${count(processed)} of ${count(total)} tokens${left}`;
}

export function start() {
  chats.changes.addEventListener("thread", draw);
  chats.changes.addEventListener("open", () => {
    for (const view of views.values()) forget(view);
    views.clear();
    list.replaceChildren();
    follows = true;
    draw();
    showProgress(answers.running.get(chats.state.open));
  });
  answers.runs.addEventListener("progress", event => {
    showProgress(event.detail);
    views.get(event.detail.message.id)?.advance();
  });
  answers.runs.addEventListener("done", event => {
    showProgress(null);
    const { state, error } = event.detail.message;
    announce(state === "done" ? "The answer is complete." : error?.message ?? "The answer was stopped.");
  });
  list.addEventListener("scroll", () => {
    follows = isAtEnd();
    byId("to-end").hidden = follows;
  });
  byId("to-end").addEventListener("click", toEnd);
  draw();
}

/** The model's name has come. */
export function nameModel() {
  draw();
}
