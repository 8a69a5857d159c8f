// The conversation, and what is known of the server.
"use strict";

const byId = id => document.getElementById(id);
const list = byId("messages");
const question = byId("question");
const messages = [];
let running = null;

const settings = { system: "", temperature: "", maxTokens: "", key: "" };
const fields = { system: byId("system"), temperature: byId("temperature"), maxTokens: byId("max-tokens"), key: byId("key") };
for (const [name, field] of Object.entries(fields)) {
  field.addEventListener("input", () => { settings[name] = field.value; });
}

function headers() {
  return settings.key ? { authorization: "Bearer " + settings.key } : {};
}

// Messages.

function showEmpty() {
  const empty = element("li", element("strong", "Ask the model something"), "It runs on this machine; nothing leaves it.");
  empty.className = "empty";
  list.replaceChildren(empty);
}

function addTurn(role) {
  if (list.firstElementChild?.className === "empty") list.replaceChildren();
  const body = element("div");
  body.className = "body";
  const item = element("li", body);
  item.className = role;
  list.append(item);
  return { item, body };
}

const isAtEnd = () => list.scrollHeight - list.scrollTop - list.clientHeight < 80;
const toEnd = () => { list.scrollTop = list.scrollHeight; };

function footer(item, parts, buttons) {
  const foot = element("div", ...parts.map(it => element("span", it)));
  foot.className = "foot";
  for (const [label, act] of buttons) {
    const button = element("button", label);
    button.type = "button";
    button.addEventListener("click", act);
    foot.append(button);
  }
  item.append(foot);
}

async function copy(text, event) {
  const button = event.currentTarget;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

// Asking.

function request() {
  const all = settings.system ? [{ role: "system", content: settings.system }, ...messages] : messages;
  const body = {
    model: byId("model-name").textContent,
    messages: all,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
  };
  if (settings.temperature !== "") body.temperature = Number(settings.temperature);
  if (settings.maxTokens !== "") body.max_tokens = Number(settings.maxTokens);
  return JSON.stringify(body);
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const line = part.split("\n").find(it => it.startsWith("data: "));
      if (line && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

async function answer() {
  const { item, body } = addTurn("assistant");
  item.classList.add("writing");
  const controller = new AbortController();
  running = controller;
  setBusy(true);
  const state = { text: "", thought: "", usage: null, start: performance.now(), first: null, n: 0, error: null };
  let drawn = false;
  const draw = () => {
    drawn = false;
    const follow = isAtEnd();
    renderMarkdown(body, state.text);
    showThought(item, body, state);
    if (follow) toEnd();
  };
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", ...headers() },
      body: request(),
      signal: controller.signal,
    });
    if (!response.ok) {
      const problem = await response.json().catch(() => null);
      throw new Error(problem?.error?.message ?? `the server said ${response.status}`);
    }
    for await (const event of eventsOf(response)) {
      take(event, state);
      if (!drawn) {
        drawn = true;
        requestAnimationFrame(draw);
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") state.error = error.message;
  }
  if (running === controller) {
    running = null;
    setBusy(false);
    byId("progress").hidden = true;
  }
  // A new conversation has no place for it.
  if (!item.isConnected) return;
  draw();
  item.classList.remove("writing");
  finish(item, state);
}

function take(event, state) {
  if (event.error) throw new Error(event.error.message);
  if (event.usage) state.usage = event.usage;
  if (event.prompt_progress) showProgress(event.prompt_progress, state);
  const delta = event.choices?.[0]?.delta;
  if (!delta) return;
  if (delta.content || delta.reasoning_content) {
    state.first ??= performance.now();
    state.n += 1;
    byId("progress").hidden = true;
  }
  state.text += delta.content ?? "";
  state.thought += delta.reasoning_content ?? "";
}

function showThought(item, body, state) {
  if (!state.thought) return;
  let box = item.querySelector(".thought");
  if (!box) {
    box = element("details", element("summary", "Thinking"), element("div"));
    box.className = "thought";
    body.before(box);
  }
  box.lastElementChild.textContent = state.thought;
}

function showProgress({ processed, total, cache }, state) {
  const box = byId("progress");
  box.hidden = state.first !== null || processed >= total;
  byId("progress-bar").style.width = `${(100 * processed) / total}%`;
  const seconds = (performance.now() - state.start) / 1000;
  const done = processed - cache;
  const left = done > 0 ? (seconds / done) * (total - processed) : null;
  const rest = left === null ? "" : `, ${duration(left)} left`;
  byId("progress-text").textContent = `Reading the prompt: ${processed} of ${total} tokens${rest}`;
}

function finish(item, state) {
  const follow = isAtEnd();
  if (state.error) {
    const box = element("p", state.error);
    box.className = "error";
    box.setAttribute("role", "alert");
    item.append(box);
  }
  if (!state.text && !state.thought) {
    footer(item, state.error ? [] : ["Nothing was said"], [["Try again", retry]]);
    if (follow) toEnd();
    question.focus();
    return;
  }
  messages.push({ role: "assistant", content: state.text });
  const facts = [];
  const n = state.usage?.completion_tokens ?? state.n;
  const seconds = (performance.now() - (state.first ?? state.start)) / 1000;
  if (state.usage || state.n) facts.push(`${n} tokens`);
  if (n > 1 && seconds > 0) facts.push(`${((n - 1) / seconds).toFixed(1)} tok/s`);
  if (state.first) facts.push(`first after ${duration((state.first - state.start) / 1000)}`);
  footer(item, facts, [["Copy", event => copy(state.text, event)], ["Again", retry]]);
  if (follow) toEnd();
  question.focus();
}

function retry() {
  if (running) return;
  while (messages.length && messages.at(-1).role === "assistant") messages.pop();
  while (list.lastElementChild?.classList.contains("assistant")) list.lastElementChild.remove();
  if (messages.length) answer();
}

function ask() {
  const text = question.value.trim();
  if (!text || running) return;
  // A question without an answer is no part of what the model reads.
  if (messages.at(-1)?.role === "user") messages.pop();
  messages.push({ role: "user", content: text });
  addTurn("user").body.textContent = text;
  question.value = "";
  grow();
  toEnd();
  answer();
}

function setBusy(isBusy) {
  byId("send").hidden = isBusy;
  byId("stop").hidden = !isBusy;
}

function begin() {
  running?.abort();
  messages.length = 0;
  showEmpty();
  question.focus();
}

function grow() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight + 2}px`;
}

byId("ask").addEventListener("submit", event => { event.preventDefault(); ask(); });
byId("stop").addEventListener("click", () => running?.abort());
byId("new-chat").addEventListener("click", begin);
byId("toggle-facts").addEventListener("click", event => {
  const shown = document.body.classList.toggle("show-facts");
  event.currentTarget.setAttribute("aria-expanded", String(shown));
  event.currentTarget.textContent = shown ? "Chat" : "Facts";
});
question.addEventListener("input", grow);
question.addEventListener("keydown", event => {
  const isPhone = matchMedia("(pointer: coarse)").matches;
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !isPhone) {
    event.preventDefault();
    ask();
  }
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape") running?.abort();
  if (event.key.toLowerCase() === "k" && event.ctrlKey && event.shiftKey) {
    event.preventDefault();
    begin();
  }
});

// Facts.

const rateChart = new Chart(byId("rate-chart"), null);
const hitChart = new Chart(byId("hit-chart"), 1);
let last = null;

function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i += 1; }
  return `${n.toFixed(n < 10 && i ? 1 : 0)} ${units[i]}`;
}

function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return `${Math.round(seconds / 60)} min`;
}

function define(dl, pairs) {
  dl.replaceChildren(...pairs.flatMap(([name, value]) => [element("dt", name), element("dd", String(value))]));
}

function showStatus({ model, memory, now }) {
  if (byId("model-name").textContent !== model.name) byId("model-name").textContent = model.name;
  define(byId("model"), [
    ["Family", model.family], ["Layers", model.layers],
    ["Experts", `${model.experts_per_token} of ${model.experts}`], ["Context", `${model.context} tokens`],
  ]);
  const parts = { weights: memory.weights_bytes, cache: memory.cache_bytes || memory.experts_bytes };
  parts.other = Math.max(0, memory.planned_bytes - parts.weights - parts.cache);
  const bar = byId("memory-bar");
  bar.replaceChildren(...Object.entries(parts).map(([name, size]) => {
    const it = element("i");
    it.className = name;
    it.style.width = `${(100 * size) / memory.planned_bytes}%`;
    return it;
  }));
  bar.setAttribute("aria-label", `Planned memory: weights ${bytes(parts.weights)}, experts ${bytes(parts.cache)}, the rest ${bytes(parts.other)}`);
  define(byId("memory"), [
    ["In use", bytes(memory.resident_bytes)], ["Planned", bytes(memory.planned_bytes)],
    ["Weights", bytes(parts.weights)], ["Experts in memory", bytes(parts.cache)],
    ["All experts", bytes(memory.experts_bytes)], ["Read by", memory.expert_io],
  ]);
  define(byId("now"), [
    ["Answers being made", `${now.running} of ${now.sessions}`], ["Waiting", now.waiting],
    ["Tokens made", now.generated_tokens], ["Prompt tokens read", now.prompt_tokens],
    ["Prompt tokens known", now.reused_tokens],
  ]);
  showRates(now);
}

function showRates(now) {
  const seconds = last ? now.uptime_seconds - last.uptime_seconds : 0;
  if (seconds > 0) {
    const rate = Math.max(0, (now.rows - last.rows) / seconds);
    rateChart.add(rate);
    byId("rate").textContent = rate.toFixed(rate < 10 ? 1 : 0);
    const hits = now.expert_hits - last.expert_hits;
    const all = hits + now.expert_misses - last.expert_misses;
    hitChart.add(all > 0 ? hits / all : null);
    if (all > 0) byId("hits").textContent = `${((100 * hits) / all).toFixed(0)} %`;
  }
  last = now;
}

async function poll() {
  const connection = byId("connection");
  try {
    const response = await fetch("/status", { headers: headers() });
    if (response.status === 401) throw new Error("An API key is needed: see Settings.");
    if (!response.ok) throw new Error(`The server said ${response.status}.`);
    showStatus(await response.json());
    connection.textContent = "";
    connection.classList.remove("wrong");
  } catch (error) {
    connection.textContent = error instanceof TypeError ? "The server does not answer." : error.message;
    connection.classList.add("wrong");
  }
  setTimeout(poll, document.hidden ? 5000 : 1000);
}

showEmpty();
grow();
poll();
if (!matchMedia("(pointer: coarse)").matches) question.focus();
