// What the user has set, kept in the browser.

const NAME = "moeflux-settings";
const KEY = "moeflux-key";

/** Numbers that a request may carry: name, label, least, most, step, explanation. */
export const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.05, "Higher is more varied; 0 always takes the likeliest token."],
  ["top_k", "Top K", 0, null, 1, "Only this many of the likeliest tokens; 0 for all."],
  ["top_p", "Top P", 0, 1, 0.01, "The likeliest tokens that have this probability together."],
  ["min_p", "Min P", 0, 1, 0.01, "Tokens with at least this share of the likeliest one's probability."],
  ["repetition_penalty", "Repeat penalty", 0.01, 10, 0.01, "Above 1, what was said gets less likely."],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, "Above 0, tokens that occurred get less likely."],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, "The same, by how often they occurred."],
  ["max_tokens", "Max tokens", 1, null, 1, "Where an answer ends at the latest."],
  ["seed", "Seed", 0, null, 1, "The same seed gives the same answer."],
];

export const settings = { system: "", thinking: "", stop: "", theme: "", keepKey: true, showFacts: null, model: "" };
export let key = "";

function stored(storage, name) {
  try {
    return window[storage].getItem(name);
  } catch {
    return null;
  }
}

/** Returns whether it was kept. */
function store(storage, name, value) {
  try {
    if (value === null) window[storage].removeItem(name);
    else window[storage].setItem(name, value);
    return true;
  } catch {
    return false;
  }
}

export function load() {
  try {
    Object.assign(settings, JSON.parse(stored("localStorage", NAME) ?? "{}"));
  } catch {
    // What is no JSON counts as nothing.
  }
  key = stored("localStorage", KEY) ?? stored("sessionStorage", KEY) ?? "";
}

/** Changes settings; returns whether they were kept. */
export function change(changed) {
  Object.assign(settings, changed);
  return store("localStorage", NAME, JSON.stringify(settings));
}

/** Changes the API key: kept in the browser or only for this tab. */
export function changeKey(value, isKept) {
  key = value.trim();
  change({ keepKey: isKept });
  store("sessionStorage", KEY, key || null);
  return store("localStorage", KEY, isKept && key ? key : null);
}

/** Reads again what another tab has set. */
export function watch(listener) {
  window.addEventListener("storage", event => {
    if (event.key !== NAME && event.key !== KEY) return;
    load();
    listener();
  });
}

/** The fields of a request that follow from the settings; `thinks` is whether the model does. */
export function requestFields(thinks) {
  const fields = {};
  for (const [name] of NUMBERS) {
    const text = settings[name];
    if (text !== undefined && text !== "" && Number.isFinite(Number(text))) fields[name] = Number(text);
  }
  const stops = settings.stop.split("\n").map(line => line.replaceAll("\\n", "\n")).filter(line => line);
  if (stops.length) fields.stop = stops;
  if (thinks && settings.thinking) fields.reasoning_effort = settings.thinking;
  return fields;
}
