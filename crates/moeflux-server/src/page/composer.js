// The field for questions: its draft, its files, and what sends or stops.

import * as answers from "./answer.js";
import * as chats from "./chats.js";
import { byId } from "./dom.js";
import { Files, LONG_PASTE, takeDrops } from "./files.js";
import { thinks } from "./models.js";
import { isPicture } from "./pictures.js";
import * as settings from "./settings.js";
import * as storage from "./storage.js";
import { editLast, toEnd } from "./thread.js";

const question = byId("question");
const files = new Files(() => keepDraft());
const isTouch = () => matchMedia("(pointer: coarse)").matches;
let timer = null;
/** The conversation that the draft belongs to; "" is one that has not begun. */
let draftOf = "";

function grow() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
  byId("send").disabled = !question.value.trim() && !files.list.length;
}

function keepDraft() {
  grow();
  clearTimeout(timer);
  timer = setTimeout(saveDraft, 300);
}

async function saveDraft() {
  clearTimeout(timer);
  timer = null;
  const chat = draftOf;
  const text = question.value;
  if (!text && !files.list.length) await storage.write({ remove: [["drafts", chat]] });
  else await storage.write({ put: [["drafts", { chat, text, files: files.list }]] });
}

/** Shows the draft of the conversation that was opened. */
async function showDraft() {
  const next = chats.state.open ?? "";
  if (next !== draftOf && timer) await saveDraft();
  draftOf = next;
  const draft = await storage.get("drafts", next);
  if (draftOf !== next) return;
  question.value = draft?.text ?? "";
  files.set(draft?.files ?? []);
  grow();
  if (!isTouch()) question.focus();
}

/** Sends what is in the field. */
async function ask() {
  const text = question.value.trim();
  if ((!text && !files.list.length) || answers.running.has(chats.state.open)) return;
  const chat = chats.state.open;
  const parent = chats.shownPath().at(-1) ?? null;
  const fields = { role: "user", parent: parent?.id ?? null, content: text, files: files.list };
  question.value = "";
  files.set([]);
  const draft = draftOf;
  clearTimeout(timer);
  timer = null;
  grow();
  await storage.write({ remove: [["drafts", draft]] });
  const message = await chats.add(chat, fields);
  if (chats.state.open === message.chat) draftOf = message.chat;
  toEnd();
  answers.answer(message);
}

function showBusy() {
  const isBusy = answers.running.has(chats.state.open);
  byId("send").hidden = isBusy;
  byId("stop").hidden = !isBusy;
}

export function stop() {
  answers.stop(chats.state.open);
}

function onKey(event) {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey && !isTouch()) {
    event.preventDefault();
    ask();
  }
  if (event.key === "ArrowUp" && !question.value) {
    event.preventDefault();
    editLast();
  }
}

function onPaste(event) {
  const data = event.clipboardData;
  const text = data?.getData("text/plain") ?? "";
  const pasted = Array.from(data?.files ?? []);
  // Programs for tables and documents give a picture of a text along with it.
  const isOfText = text.trim() && pasted.every(isPicture) && !pasted.some(file => text.includes(file.name));
  if (pasted.length && !isOfText) {
    event.preventDefault();
    files.add(pasted);
    return;
  }
  if (text.length > LONG_PASTE) {
    event.preventDefault();
    files.addText("pasted.txt", text);
  }
}

/** The switch for thinking, where the model does. */
export function showThinking() {
  const button = byId("think");
  button.hidden = !thinks();
  const isOn = settings.settings.thinking !== "none";
  button.setAttribute("aria-pressed", String(isOn));
  button.title = isOn ? "The model thinks before it answers" : "The model answers at once";
}

export function start() {
  byId("ask").addEventListener("submit", event => {
    event.preventDefault();
    ask();
  });
  byId("stop").addEventListener("click", stop);
  byId("attach").addEventListener("click", () => byId("file-input").click());
  byId("file-input").addEventListener("change", event => {
    files.add(Array.from(event.target.files));
    event.target.value = "";
  });
  byId("think").addEventListener("click", () => {
    settings.change({ thinking: settings.settings.thinking === "none" ? "" : "none" });
    showThinking();
  });
  question.addEventListener("input", keepDraft);
  question.addEventListener("keydown", onKey);
  question.addEventListener("paste", onPaste);
  chats.changes.addEventListener("open", () => {
    showBusy();
    // The first question of a conversation has just been sent.
    if (draftOf !== (chats.state.open ?? "") || !answers.running.has(chats.state.open)) showDraft();
  });
  chats.changes.addEventListener("thread", showBusy);
  answers.runs.addEventListener("done", event => {
    showBusy();
    const isShown = event.detail.message.chat === chats.state.open;
    if (isShown && document.activeElement === document.body && !isTouch()) question.focus();
  });
  addEventListener("pagehide", () => { if (timer) saveDraft(); });
  takeDrops(files);
  grow();
}
