// Search over the titles and texts of all conversations.

import * as chats from "./chats.js";
import { eachMessage } from "./storage.js";
import { showMessage } from "./thread.js";

const MAX_RESULTS = 100;
const AROUND = 40;

let timer = null;
let turn = 0;
let wanted = null;

export function cancel() {
  clearTimeout(timer);
  turn += 1;
}

/** Calls `done` with what is found, newest conversations first, unless another search has begun. */
export function run(query, done) {
  cancel();
  const own = turn;
  timer = setTimeout(async () => {
    const results = await find(query);
    if (own === turn) done(results);
  }, 150);
}

async function find(query) {
  const needle = query.toLowerCase();
  const found = new Map();
  for (const chat of chats.state.chats.values()) {
    if (chat.title.toLowerCase().includes(needle)) found.set(chat.id, { chat });
  }
  await eachMessage(message => {
    const chat = chats.state.chats.get(message.chat);
    if (!chat || found.get(chat.id)?.match !== undefined) return;
    const texts = [message.content, ...(message.files ?? []).map(file => `${file.name} ${file.text ?? ""}`)];
    for (const text of texts) {
      const at = text.toLowerCase().indexOf(needle);
      if (at < 0) continue;
      found.set(chat.id, { chat, message: message.id, ...excerpt(text, at, query.length) });
      return;
    }
  });
  return Array.from(found.values()).sort((a, b) => b.chat.updated - a.chat.updated).slice(0, MAX_RESULTS);
}

function excerpt(text, at, length) {
  const flat = part => part.replace(/\s+/g, " ");
  // Marks of Markdown only disturb.
  const bare = part => flat(part.replace(/[*`#|]+/g, ""));
  const start = Math.max(0, at - AROUND);
  return {
    before: (start ? "…" : "") + bare(text.slice(start, at)),
    match: flat(text.slice(at, at + length)),
    after: bare(text.slice(at + length, at + length + 2 * AROUND)),
  };
}

/** Shows a message of a conversation, now or when that is open. */
export function showWhenOpen(chat, message) {
  if (chats.state.open === chat) {
    showMessage(message);
    return;
  }
  wanted = { chat, message };
}

export function start() {
  chats.changes.addEventListener("open", () => {
    if (wanted && wanted.chat === chats.state.open) {
      const { message } = wanted;
      requestAnimationFrame(() => showMessage(message));
    }
    wanted = null;
  });
}
