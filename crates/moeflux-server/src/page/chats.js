// The conversations: which there are, which one is open, and what other tabs do to them.

import { newId } from "./dom.js";
import * as storage from "./storage.js";
import { childrenOf, newestLeaf, pathTo, titleOf } from "./tree.js";

/** `chats` by id; `open` is the id of the shown one or `null`; `messages` are those of the shown one. */
export const state = { chats: new Map(), open: null, messages: new Map() };

/** Events: "list" when chats have changed, "thread" when the shown messages have, "open" for another
 *  chat, "removed" with the id of one that is gone. */
export const changes = new EventTarget();
const emit = name => changes.dispatchEvent(new Event(name));

/** This tab, also after a reload. */
export const TAB = tabName();
/** Ids of messages that this tab is writing. */
export const writing = new Set();

function tabName() {
  try {
    sessionStorage.tab ??= newId();
    return sessionStorage.tab;
  } catch {
    return newId();
  }
}

const channel = "BroadcastChannel" in window ? new BroadcastChannel("moeflux") : null;
const share = chat => channel?.postMessage({ chat });

export async function load() {
  for (const chat of await storage.all("chats")) state.chats.set(chat.id, chat);
  channel?.addEventListener("message", event => refresh(event.data?.chat));
  emit("list");
}

/** Reads again what another tab has changed. */
async function refresh(id) {
  if (!id) return;
  const chat = await storage.get("chats", id);
  if (chat) {
    const leaf = state.open === id ? state.chats.get(id)?.leaf : chat.leaf;
    // Each tab shows its own branch.
    state.chats.set(id, { ...chat, leaf: leaf ?? chat.leaf });
  } else {
    forget(id);
  }
  emit("list");
  if (state.open !== id) return;
  if (!chat) {
    await open(null);
    return;
  }
  const stored = new Map((await storage.messagesOf(id)).map(message => [message.id, message]));
  if (state.open !== id) return;
  for (const own of writing) if (state.messages.has(own)) stored.set(own, state.messages.get(own));
  state.messages = stored;
  const shown = state.chats.get(id);
  // What was added below the shown leaf is shown, too.
  shown.leaf = newestLeaf(stored, stored.has(shown.leaf) ? shown.leaf : chat.leaf);
  emit("thread");
}

function forget(id) {
  state.chats.delete(id);
  changes.dispatchEvent(new CustomEvent("removed", { detail: id }));
}

/** Shows a conversation, or with `null` an empty one that is not kept yet. */
export async function open(id) {
  // Another tab may have made it.
  const chat = id ? state.chats.get(id) ?? await storage.get("chats", id) : null;
  if (chat) state.chats.set(id, chat);
  const messages = chat ? await storage.messagesOf(id) : [];
  state.open = chat ? id : null;
  const running = liveMessages.get(id);
  state.messages = new Map(messages.map(message => [message.id, message]));
  if (running) state.messages.set(running.id, running);
  for (const message of state.messages.values()) markInterrupted(message);
  if (chat && !state.messages.has(chat.leaf)) chat.leaf = newestLeaf(state.messages, null);
  emit("open");
}

/** Messages that are being written, by their chat: these objects are newer than what is stored. */
export const liveMessages = new Map();

/** An answer whose tab is gone says so. */
function markInterrupted(message) {
  if (message.state !== "writing" || writing.has(message.id)) return;
  const isOwn = message.tab === TAB;
  if (isOwn || Date.now() - (message.beat ?? 0) > 5000) message.state = "interrupted";
}

export const shownPath = () => pathTo(state.messages, state.chats.get(state.open)?.leaf);

export function siblingsOf(message) {
  return childrenOf(state.messages, message.parent ?? null);
}

let lastTime = 0;
function now() {
  lastTime = Math.max(Date.now(), lastTime + 1);
  return lastTime;
}

/** Adds a message to a chat, which is made with its first question. */
export async function add(chatId, fields) {
  let id = chatId;
  const created = now();
  const isNew = !id;
  if (isNew) {
    id = newId();
    const title = titleOf(fields.content || fields.files?.[0]?.name || "");
    state.chats.set(id, { id, title, created, updated: created, leaf: null });
    state.open = id;
    state.messages = new Map();
  }
  const message = { id: newId(), chat: id, parent: null, content: "", created, state: "done", ...fields };
  const chat = state.chats.get(id);
  chat.leaf = message.id;
  chat.updated = created;
  if (state.open === id) state.messages.set(message.id, message);
  if (isNew) {
    await storage.write({ put: [["chats", chat], ["messages", message]] });
  } else {
    await storage.write({ put: [["messages", message]] });
    await storage.update("chats", id, { leaf: chat.leaf, updated: chat.updated });
  }
  share(id);
  emit("list");
  if (isNew) emit("open");
  else if (state.open === id) emit("thread");
  return message;
}

/** Keeps what a message has become. */
export async function save(message) {
  if (!state.chats.has(message.chat)) return;
  await storage.write({ put: [["messages", message]] });
  share(message.chat);
}

/** Takes messages away, such as an answer that is nothing but an error. */
export async function drop(message) {
  state.messages.delete(message.id);
  const chat = state.chats.get(message.chat);
  if (chat?.leaf === message.id) chat.leaf = message.parent;
  await storage.write({ remove: [["messages", message.id]] });
  if (chat) await storage.update("chats", chat.id, { leaf: chat.leaf });
  share(message.chat);
  emit("thread");
}

/** Shows the branch through `message`. */
export async function showBranch(message) {
  const chat = state.chats.get(message.chat);
  chat.leaf = newestLeaf(state.messages, message.id);
  emit("thread");
  await storage.update("chats", chat.id, { leaf: chat.leaf });
}

export async function rename(id, title) {
  const chat = state.chats.get(id);
  if (!chat || !title) return;
  chat.title = title;
  emit("list");
  await storage.update("chats", id, { title });
  share(id);
}

/** Removes a chat; returns what `restore` needs to bring it back. */
export async function remove(id) {
  const chat = state.chats.get(id);
  const messages = await storage.messagesOf(id);
  const draft = await storage.get("drafts", id);
  forget(id);
  const keys = messages.map(message => ["messages", message.id]);
  await storage.write({ remove: [["chats", id], ["drafts", id], ...keys] });
  emit("list");
  if (state.open === id) await open(null);
  share(id);
  return { chat, messages, draft };
}

export async function restore({ chat, messages, draft }) {
  const put = [["chats", chat], ...messages.map(message => ["messages", message])];
  if (draft) put.push(["drafts", draft]);
  await storage.write({ put });
  state.chats.set(chat.id, chat);
  emit("list");
  share(chat.id);
}
