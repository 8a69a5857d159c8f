// Conversations as files: JSON for export and import, Markdown for readers.

import * as chats from "./chats.js";
import { h, newId, notice } from "./dom.js";
import { isDataUrl } from "./pictures.js";
import * as storage from "./storage.js";
import { newestLeaf, pathTo, textForModel } from "./tree.js";

const FORMAT = "moeflux-conversations";

/** Saves conversations as a file. */
export async function exportChats(ids) {
  const conversations = [];
  for (const id of ids) {
    const chat = chats.state.chats.get(id);
    if (chat) conversations.push({ ...chat, messages: await storage.messagesOf(id) });
  }
  if (!conversations.length) {
    notice("There is nothing to export.");
    return;
  }
  const text = JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
  const title = conversations.length === 1 ? conversations[0].title : `${conversations.length} conversations`;
  download(title, ".json", "application/json", text);
}

function download(title, ending, type, text) {
  const name = `${title.replace(/[^\p{L}\p{N} ._-]+/gu, "").trim().slice(0, 60) || "conversation"}${ending}`;
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Saves what is shown of a conversation, without its other versions, as a file of Markdown. */
export async function exportMarkdown(id) {
  const chat = chats.state.chats.get(id);
  const messages = new Map((await storage.messagesOf(id)).map(message => [message.id, message]));
  const running = chats.liveMessages.get(id);
  if (running) messages.set(running.id, running);
  const path = pathTo(messages, chat.leaf);
  const pictures = path.flatMap(picturesOf);
  let nth = 0;
  const parts = path.map(message => {
    const shown = picturesOf(message).map(({ name }) => `![${name.replace(/[[\]\\]/g, "\\$&")}][picture-${(nth += 1)}]`);
    return markdownOf(message, shown);
  });
  // What pictures hold is at the end, where it disturbs no reader.
  if (nth) parts.push(pictures.map(({ image }, i) => `[picture-${i + 1}]: ${image}`).join("\n"));
  download(chat.title, ".md", "text/markdown;charset=utf-8", [`# ${chat.title}`, ...parts].join("\n\n") + "\n");
}

const picturesOf = message => (message.files ?? []).filter(file => file.image);

/** A message with its role as a heading, after it its pictures; thoughts are a quotation. */
function markdownOf(message, pictures) {
  if (message.role === "user") return ["## User", ...pictures, textForModel(message).trim()].filter(part => part).join("\n\n");
  const name = message.model ? `## Assistant (${message.model})` : "## Assistant";
  const thought = message.thought?.trim().split("\n").map(line => `> ${line}`.trimEnd()).join("\n");
  return [name, thought, message.content.trim()].filter(part => part).join("\n\n");
}

export const exportAll = () => exportChats(Array.from(chats.state.chats.keys()));

/** Adds the conversations of files; what is here already stays as it is. */
export async function importFiles(files) {
  for (const file of files) {
    try {
      const n = await importText(await file.text());
      notice(n ? `${n} ${n === 1 ? "conversation" : "conversations"} of ${file.name} added.` : `All of ${file.name} was here already.`);
    } catch (error) {
      notice(`${file.name} cannot be imported: ${error.message}.`, { isError: true, seconds: 12 });
    }
  }
}

async function importText(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("it is no JSON");
  }
  if (value?.format !== FORMAT || !Array.isArray(value.conversations)) throw new Error("it is no export of this page");
  if (value.version !== 1) throw new Error(`it has version ${value.version} of the format, and this page knows version 1`);
  const read = value.conversations.map(readChat);
  const put = [];
  const added = new Map();
  for (const { chat, messages } of read) {
    const isHere = chats.state.chats.has(chat.id);
    const known = new Set((isHere ? await storage.messagesOf(chat.id) : []).map(message => message.id));
    const missing = messages.filter(message => !known.has(message.id));
    if (isHere && !missing.length) continue;
    if (!isHere) await renameTaken(chat, missing);
    put.push(...missing.map(message => ["messages", message]));
    if (isHere) continue;
    put.push(["chats", chat]);
    added.set(chat.id, chat);
  }
  if (!put.length) return 0;
  await storage.write({ put });
  for (const [id, chat] of added) chats.state.chats.set(id, chat);
  chats.changes.dispatchEvent(new Event("list"));
  return new Set(put.map(([store, record]) => (store === "chats" ? record.id : record.chat))).size;
}

/** Gives new ids to the messages of a new chat where another chat has messages with these ids. */
async function renameTaken(chat, messages) {
  const found = await Promise.all(messages.map(message => storage.get("messages", message.id)));
  if (!found.some(message => message)) return;
  const ids = new Map(messages.map(message => [message.id, newId()]));
  for (const message of messages) {
    message.id = ids.get(message.id);
    message.parent = ids.get(message.parent) ?? null;
  }
  chat.leaf = ids.get(chat.leaf) ?? null;
}

const isText = value => typeof value === "string";
const isTime = value => Number.isFinite(value) && value > 0;

/** A conversation of a file: only what is known, and only of the right type. */
function readChat(value, i) {
  const at = `conversation ${i + 1}`;
  if (!value || !isText(value.id) || !isText(value.title) || !Array.isArray(value.messages)) {
    throw new Error(`${at} lacks an id, a title or messages`);
  }
  const created = isTime(value.created) ? value.created : Date.now();
  const updated = isTime(value.updated) ? value.updated : created;
  const messages = value.messages.map((message, j) => readMessage(message, value.id, `message ${j + 1} of ${at}`));
  const byId = new Map(messages.map(message => [message.id, message]));
  if (byId.size < messages.length) throw new Error(`${at} has two messages with the same id`);
  for (const message of messages) if (message.parent !== null && !byId.has(message.parent)) message.parent = null;
  const leaf = byId.has(value.leaf) ? value.leaf : newestLeaf(byId, null);
  return { chat: { id: value.id, title: value.title.slice(0, 200), created, updated, leaf }, messages };
}

/** A text or a picture; `null` where it is neither. */
function readFile(value) {
  if (!isText(value?.name)) return null;
  const { name, text, image, width, height } = value;
  if (isText(text)) return { name, text };
  if (!isDataUrl(image)) return null;
  return [width, height].every(Number.isSafeInteger) ? { name, image, width, height } : { name, image };
}

function readMessage(value, chat, at) {
  if (!value || !["user", "assistant"].includes(value.role) || !isText(value.content)) {
    throw new Error(`${at} lacks a role or its content`);
  }
  const message = {
    id: isText(value.id) ? value.id : newId(),
    chat,
    parent: isText(value.parent) ? value.parent : null,
    role: value.role,
    content: value.content,
    created: isTime(value.created) ? value.created : Date.now(),
    state: ["done", "stopped", "interrupted"].includes(value.state) ? value.state : "interrupted",
  };
  if (value.state === "failed" && isText(value.error?.message)) {
    message.state = "failed";
    message.error = { kind: "server", message: value.error.message, advice: isText(value.error.advice) ? value.error.advice : "" };
  }
  if (isText(value.thought)) message.thought = value.thought;
  if (isText(value.model)) message.model = value.model;
  if (Array.isArray(value.files)) {
    message.files = value.files.map(readFile).filter(file => file);
  }
  const facts = Object.entries(value.facts ?? {}).filter(([, fact]) => Number.isFinite(fact) || isText(fact));
  if (facts.length) message.facts = Object.fromEntries(facts);
  return message;
}
