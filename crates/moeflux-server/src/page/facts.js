// What is known of the server: polled, and shown beside the conversation.

import { running, runs } from "./answer.js";
import { status } from "./api.js";
import { Chart } from "./charts.js";
import * as chats from "./chats.js";
import { byId, byteText, count, durationText, h } from "./dom.js";
import { retry } from "./markdown.js";
import { abilities, choices, choose, chosen, context, models, read } from "./models.js";

const rateChart = new Chart(byId("rate-chart"), null);
const hitChart = new Chart(byId("hit-chart"), 1);
/** The figures of the poll before. */
let last = null;
let share = null;
let onModel = () => {};
/** How many polls there have been, and after how many the list of models is read. */
let n = 0;
const LIST_EVERY = 10;

function define(list, pairs) {
  list.replaceChildren(...pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]));
}

/** What `/status` says of the model in memory. */
function showLoaded(model) {
  const pairs = model ? [
    ["Name", model.name], ["Family", model.family], ["Layers", model.layers],
    ["Experts", `${model.experts_per_token} of ${model.experts}`], ["Context", `${count(model.context)} tokens`],
  ] : [["Name", "none is loaded"]];
  define(byId("model"), pairs);
}

/** The model that questions go to: its name, or a choice where there are several. */
function showChosen() {
  const name = chosen() ?? "";
  const all = choices();
  const [text, select] = [byId("model-name"), byId("model-choice")];
  text.hidden = all.length > 1;
  select.hidden = all.length < 2;
  text.textContent = name;
  text.title = name;
  const drawn = JSON.stringify(all);
  if (select.dataset.drawn !== drawn) {
    select.dataset.drawn = drawn;
    select.replaceChildren(...all.map(([value, label]) => h("option", { value }, label)));
  }
  select.value = name;
  select.title = name;
  byId("abilities").textContent = abilities().join(" · ");
}

/** Reads the list of models, and shows what has changed of it. */
async function readModels() {
  const before = shownModels();
  try {
    await read();
  } catch {
    // `poll` says what is wrong with the server.
  }
  tellModels(before);
}

const shownModels = () => JSON.stringify([models, chosen()]);

function tellModels(before) {
  if (shownModels() === before) return;
  showChosen();
  showLine();
  onModel();
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
  const size = context();
  if (used && size) parts.push(["Context", `${count(used)} of ${count(size)}`]);
  if (facts?.hits !== undefined) parts.push(["In memory", `${Math.round(100 * facts.hits)} %`]);
  if (facts?.read) parts.push(["Read", byteText(facts.read)]);
  byId("figures").replaceChildren(...parts.map(([name, value]) => h("span", {}, `${name} `, h("b", {}, value))));
  byId("figures").classList.toggle("full", Boolean(used && size && used > 0.85 * size));
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
    const isNew = JSON.stringify(models.loaded) !== JSON.stringify(model ?? null);
    models.loaded = model ?? null;
    if (isNew) {
      showLoaded(models.loaded);
      onModel();
    }
    n += 1;
    if (isNew || n % LIST_EVERY === 0) await readModels();
    if (isNew) showChosen();
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
  runs.addEventListener("done", readModels);
  byId("model-choice").addEventListener("change", event => {
    const before = shownModels();
    choose(event.target.value);
    tellModels(before);
  });
  poll();
}
