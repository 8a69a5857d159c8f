// What is known of the server: polled, and shown beside the conversation.

import { running, runs, server } from "./answer.js";
import { status } from "./api.js";
import { Chart } from "./charts.js";
import * as chats from "./chats.js";
import { byId, byteText, count, durationText, h } from "./dom.js";
import { retry } from "./markdown.js";

const rateChart = new Chart(byId("rate-chart"), null);
const hitChart = new Chart(byId("hit-chart"), 1);
/** The figures of the poll before. */
let last = null;
let share = null;
let onModel = () => {};

function define(list, pairs) {
  list.replaceChildren(...pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]));
}

function showModel(model) {
  define(byId("model"), [
    ["Family", model.family], ["Layers", model.layers],
    ["Experts", `${model.experts_per_token} of ${model.experts}`], ["Context", `${count(model.context)} tokens`],
  ]);
  byId("model-name").textContent = model.name;
  byId("model-name").title = model.name;
}

function showMemory(memory) {
  const parts = { weights: memory.weights_bytes, cache: memory.cache_bytes || memory.experts_bytes };
  parts.other = Math.max(0, memory.planned_bytes - parts.weights - parts.cache);
  const bar = byId("memory-bar");
  bar.replaceChildren(...Object.entries(parts).map(([name, size]) => {
    const part = h(`i.${name}`);
    part.style.width = `${(100 * size) / memory.planned_bytes}%`;
    return part;
  }));
  bar.setAttribute("aria-label", `Planned memory: weights ${byteText(parts.weights)}, experts ${byteText(parts.cache)}, the rest ${byteText(parts.other)}`);
  define(byId("memory"), [
    ["In use", byteText(memory.resident_bytes)], ["Planned", byteText(memory.planned_bytes)],
    ["Weights", byteText(parts.weights)], ["Experts in memory", byteText(parts.cache)],
    ["All experts", byteText(memory.experts_bytes)], ["Read by", memory.expert_io],
  ]);
}

function showNow(now) {
  define(byId("now"), [
    ["Answers being made", `${now.running} of ${now.sessions}`], ["Waiting", now.waiting],
    ["Tokens made", count(now.generated_tokens)], ["Prompt tokens read", count(now.prompt_tokens)],
    ["Prompt tokens reused", count(now.reused_tokens)], ["Experts read", byteText(now.bytes_read)],
  ]);
  const seconds = last ? now.uptime_seconds - last.uptime_seconds : 0;
  if (seconds > 0) {
    const rate = Math.max(0, (now.rows - last.rows) / seconds);
    rateChart.add(rate);
    byId("rate").textContent = rate.toFixed(rate < 10 ? 1 : 0);
    const hits = now.expert_hits - last.expert_hits;
    const all = hits + now.expert_misses - last.expert_misses;
    hitChart.add(all > 0 ? hits / all : null);
    if (all > 0) share = hits / all;
    if (share !== null) byId("hits").textContent = `${(100 * share).toFixed(0)} %`;
  }
  last = now;
}

/** One line below the field: the answer that is being made, or the last one. */
function showLine() {
  const run = running.get(chats.state.open);
  const path = chats.shownPath();
  const facts = run ? liveFacts(run) : path.findLast(message => message.facts?.prompt)?.facts;
  const parts = [];
  if (facts?.rate) parts.push(["Speed", `${facts.rate.toFixed(1)} tok/s`]);
  if (facts?.first !== null && facts?.first !== undefined) parts.push(["First token", durationText(facts.first)]);
  const used = facts?.prompt ? facts.prompt + facts.tokens : null;
  const context = server.model?.context;
  if (used && context) parts.push(["Context", `${count(used)} of ${count(context)}`]);
  if (facts?.hits !== undefined) parts.push(["In memory", `${Math.round(100 * facts.hits)} %`]);
  if (facts?.read) parts.push(["Read", byteText(facts.read)]);
  byId("figures").replaceChildren(...parts.map(([name, value]) => h("span", {}, `${name} `, h("b", {}, value))));
  byId("figures").classList.toggle("full", Boolean(used && context && used > 0.85 * context));
}

function liveFacts(run) {
  const prompt = run.usage?.prompt_tokens ?? run.promptTotal ?? null;
  if (run.progress) run.promptTotal = run.progress.total;
  return {
    rate: run.rate, first: run.first === null ? null : (run.first - run.start) / 1000,
    prompt, tokens: run.n, hits: share ?? undefined,
  };
}

async function poll() {
  const connection = byId("connection");
  try {
    const { model, memory, now } = await status();
    const isNew = JSON.stringify(server.model) !== JSON.stringify(model);
    server.model = model;
    if (isNew) {
      showModel(model);
      onModel();
    }
    showMemory(memory);
    showNow(now);
    if (!connection.hidden) {
      connection.hidden = true;
      retry();
    }
  } catch (error) {
    byId("connection-text").textContent = error.message;
    byId("give-key").hidden = error.kind !== "key";
    connection.hidden = false;
    last = null;
  }
  setTimeout(poll, document.hidden ? 5000 : 1000);
}

export function start(listener) {
  onModel = listener;
  let isDue = false;
  const line = () => {
    if (isDue) return;
    isDue = true;
    setTimeout(() => {
      isDue = false;
      showLine();
    }, 200);
  };
  for (const name of ["open", "thread"]) chats.changes.addEventListener(name, line);
  runs.addEventListener("progress", line);
  runs.addEventListener("done", line);
  poll();
}
