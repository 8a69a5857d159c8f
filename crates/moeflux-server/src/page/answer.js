// Answers as they are made: the request, its stream, and what is kept of it.

import { Problem, events, problemFrom, send, status } from "./api.js";
import * as chats from "./chats.js";
import { chosen, chosenStatus, loadsFirst, models, thinks } from "./models.js";
import { requestFields, settings } from "./settings.js";
import { contentForModel, pathTo } from "./tree.js";

/** How often a full queue is tried again. */
const MAX_TRIES = 8;
/** How many tokens tell whether an answer is a guess, and the least probability of each. */
const FIRST_TOKENS = 4;
const LEAST = Math.log(0.5);
/** Between two savings of an answer that is being written, in milliseconds. */
const SAVE_EVERY = 1000;

/** Answers that are being made, by their conversation. */
export const running = new Map();

/** Events: "progress" and "done", with the run as `detail`. */
export const runs = new EventTarget();
const emit = (name, run) => runs.dispatchEvent(new CustomEvent(name, { detail: run }));

/** One answer while it is made. */
class Run {
  constructor(message) {
    this.message = message;
    this.controller = new AbortController();
    this.start = performance.now();
    this.first = null;
    this.last = null;
    this.n = 0;
    this.usage = null;
    this.finish = null;
    /** How far the prompt is read. */
    this.progress = null;
    /** When a full queue is tried again. */
    this.waitUntil = null;
    this.saved = 0;
    /** Text that is held back until it is known to be no guess; `null` where nothing is. */
    this.held = null;
    this.nFirst = 0;
    this.isGuess = false;
    /** The model that is loaded first, or `null`. */
    this.loads = null;
    /** Pictures of the question, which the model looks at before it reads the prompt. */
    this.nPictures = 0;
  }

  get rate() {
    const seconds = (this.last - this.first) / 1000;
    return this.n > 1 && seconds > 0 ? (this.n - 1) / seconds : null;
  }
}

/** The messages of a request: up to `parent`, with `begun`, an answer that is gone on with. */
function requestMessages(parent, begun) {
  const path = pathTo(chats.state.messages, parent.id);
  const messages = [];
  path.forEach((one, i) => {
    const answer = path[i + 1];
    // A question whose answer is nothing but an error is no part of what the model reads.
    const isVoid = one.role === "user" && answer?.role === "assistant" && !answer.content;
    if (isVoid || (one.role === "assistant" && !one.content)) return;
    const content = one.role === "user" ? contentForModel(one) : one.content;
    messages.push({ role: one.role, content });
  });
  if (settings.system.trim()) messages.unshift({ role: "system", content: settings.system });
  if (begun) messages.push({ role: "assistant", content: begun.content.trimEnd() });
  return messages;
}

/** Whether an answer that is a guess is shown all the same. */
const mayGuess = body => !chosenStatus()?.introduction || body.temperature > 0 || body.continue_final_message === true;

function requestBody(messages, isContinued) {
  const body = {
    model: chosen() ?? "default",
    messages,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    ...requestFields(thinks()),
  };
  if (isContinued) {
    body.continue_final_message = true;
    body.add_generation_prompt = false;
    if (thinks()) body.reasoning_effort = "none";
  }
  if (!mayGuess(body)) body.logprobs = true;
  return body;
}

/** Answers the question `parent`; with `message`, that answer is gone on with. */
export async function answer(parent, message = null) {
  const chat = parent.chat;
  if (running.has(chat)) return;
  // Taken at once: another click must not begin a second one.
  running.set(chat, null);
  const isContinued = message !== null;
  // Read at once: another conversation may be shown before the request is sent.
  const messages = requestMessages(parent, message);
  const model = chosen();
  const fields = { role: "assistant", parent: parent.id, state: "writing", tab: chats.TAB, beat: Date.now(), model };
  let written = message;
  if (written) Object.assign(written, { ...fields, content: written.content.trimEnd(), error: null });
  else written = await chats.add(chat, fields);
  const run = new Run(written);
  if (loadsFirst()) run.loads = model;
  run.isContinued = isContinued;
  run.nPictures = (parent.files ?? []).filter(file => file.image).length;
  running.set(chat, run);
  chats.writing.add(written.id);
  chats.liveMessages.set(chat, written);
  chats.changes.dispatchEvent(new Event("thread"));
  const before = await status().catch(() => null);
  models.loaded ??= before?.model ?? null;
  try {
    const body = requestBody(messages, isContinued);
    emit("progress", run);
    if (body.logprobs) run.held = { content: "", thought: "" };
    await stream(run, body);
    release(run);
    written.state = "done";
  } catch (error) {
    if (run.isGuess) {
      written.state = "done";
    } else if (error.name === "AbortError") {
      written.state = "stopped";
    } else {
      written.state = "failed";
      const problem = error instanceof Problem ? error : new Problem("server", String(error.message ?? error));
      written.error = { kind: problem.kind, message: problem.message, advice: problem.advice };
    }
  }
  await conclude(run, before);
}

async function conclude(run, before) {
  const { message } = run;
  message.facts = factsOf(run);
  const after = before ? await status().catch(() => null) : null;
  if (after) {
    const hits = after.now.expert_hits - before.now.expert_hits;
    const all = hits + after.now.expert_misses - before.now.expert_misses;
    if (all > 0) message.facts.hits = hits / all;
    message.facts.read = after.now.bytes_read - before.now.bytes_read;
  }
  running.delete(message.chat);
  chats.writing.delete(message.id);
  chats.liveMessages.delete(message.chat);
  await chats.save(message);
  emit("done", run);
  chats.changes.dispatchEvent(new Event("thread"));
}

function factsOf(run) {
  return {
    tokens: run.usage?.completion_tokens ?? run.n,
    prompt: run.usage?.prompt_tokens ?? null,
    cached: run.usage?.prompt_tokens_details?.cached_tokens ?? null,
    rate: run.rate,
    first: run.first === null ? null : (run.first - run.start) / 1000,
    finish: run.finish,
    isGuess: run.isGuess,
  };
}

async function stream(run, body) {
  const response = await sendPatiently(run, body);
  for await (const event of events(response)) {
    if (event.error) throw problemFrom(event.error);
    take(run, event);
    if (performance.now() - run.saved > SAVE_EVERY) {
      run.saved = performance.now();
      run.message.beat = Date.now();
      chats.save(run.message);
    }
    emit("progress", run);
  }
}

/** Sends the request; a full queue is tried again after the time that the server names. */
async function sendPatiently(run, body) {
  const { signal } = run.controller;
  for (let n = 1; ; n += 1) {
    try {
      return await send("v1/chat/completions", { body, signal });
    } catch (error) {
      if (error.kind !== "busy" || n >= MAX_TRIES) throw error;
      await pause(run, error.seconds, signal);
    }
  }
}

function pause(run, seconds, signal) {
  run.waitUntil = performance.now() + 1000 * seconds;
  return new Promise((resolve, reject) => {
    const ticker = setInterval(() => {
      if (signal.aborted || performance.now() >= run.waitUntil) {
        clearInterval(ticker);
        run.waitUntil = null;
        if (signal.aborted) reject(new DOMException("stopped", "AbortError"));
        else resolve();
      }
      emit("progress", run);
    }, 250);
  });
}

function take(run, event) {
  const { message } = run;
  if (event.usage) run.usage = event.usage;
  if (event.prompt_progress) run.progress = event.prompt_progress;
  const choice = event.choices?.[0];
  if (choice?.finish_reason) run.finish = choice.finish_reason;
  const content = choice?.delta?.content ?? "";
  const thought = choice?.delta?.reasoning_content ?? "";
  if (run.held) lookAt(run, choice?.logprobs?.content ?? [], Boolean(content || thought));
  if (run.isGuess || (!content && !thought)) return;
  run.last = performance.now();
  run.first ??= run.last;
  run.n += 1;
  run.progress = null;
  const into = run.held ?? message;
  into.content += content;
  if (thought) into.thought = (into.thought ?? "") + thought;
}

/** Ends an answer whose first tokens are a guess, and shows what is none or comes without probabilities. */
function lookAt(run, tokens, hasText) {
  for (const { logprob } of tokens) {
    if (run.nFirst === FIRST_TOKENS) break;
    run.nFirst += 1;
    run.isGuess ||= logprob < LEAST;
  }
  if (run.isGuess) run.controller.abort();
  else if (run.nFirst === FIRST_TOKENS || (hasText && !tokens.length)) release(run);
}

function release(run) {
  if (!run.held) return;
  const { content, thought } = run.held;
  run.held = null;
  run.message.content += content;
  if (thought) run.message.thought = (run.message.thought ?? "") + thought;
}

export function stop(chat) {
  running.get(chat)?.controller.abort();
}

chats.changes.addEventListener("removed", event => stop(event.detail));

/** Answers again: beside the earlier answer, or in place of one that is only an error. */
export async function again(message) {
  const parent = chats.state.messages.get(message.parent);
  if (!parent || running.has(message.chat)) return;
  if (!message.content && !message.thought) await chats.drop(message);
  await answer(parent);
}

/** Writes on where an answer was stopped, interrupted or cut. */
export async function goOn(message) {
  const parent = chats.state.messages.get(message.parent);
  if (parent && message.content.trim()) await answer(parent, message);
}
