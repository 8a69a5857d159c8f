// The models that the server lists, and the one that questions go to.

import { send } from "./api.js";
import { count } from "./dom.js";
import * as settings from "./settings.js";

/** `list` is that of the server; `loaded` is what `/status` says of the model in memory, or `null`. */
export const models = { list: [], loaded: null };

/** Reads the list again. */
export async function read() {
  const { data = [], models: listed = [] } = await (await send("v1/models")).json();
  const abilities = new Map(listed.map(one => [one.name, one.capabilities ?? []]));
  models.list = data.map(card => ({ ...card, can: abilities.get(card.id) ?? [] }));
}

const isLoaded = card => (card.status?.value ?? "loaded") === "loaded";
const cardOf = name => models.list.find(card => card.id === name);

/** The name of the chosen model: the one that was chosen before where it is still listed. */
export function chosen() {
  const { list, loaded } = models;
  const known = cardOf(settings.settings.model) ?? cardOf(loaded?.name) ?? list.find(isLoaded) ?? list[0];
  return known?.id ?? loaded?.name ?? null;
}

export function choose(name) {
  settings.change({ model: name });
}

/** What the server says of the chosen model where that is the one in memory, else `null`. */
export function chosenStatus() {
  return models.loaded?.name === chosen() ? models.loaded : null;
}

/** Tokens of a conversation with the chosen model at most; `null` where that is not known. */
export function context() {
  return chosenStatus()?.context ?? cardOf(chosen())?.context_length ?? null;
}

/** Whether the chosen model can think before it answers. */
export function thinks() {
  const card = cardOf(chosen());
  return chosenStatus()?.thinks ?? card?.capabilities?.thinking?.supported ?? card?.can.includes("thinking") ?? false;
}

/** Whether the chosen model sees pictures; it may where that is not known. */
export function sees() {
  return cardOf(chosen())?.capabilities?.vision ?? true;
}

/** What the chosen model can do, in words. */
export function abilities() {
  const card = cardOf(chosen());
  const callsTools = chosenStatus()?.calls_tools ?? card?.capabilities?.function_calling ?? false;
  const size = context();
  return [
    size && `${count(size)} tokens of context`, thinks() && "thinking", callsTools && "tools",
    card?.capabilities?.vision && "pictures", card?.can.includes("insert") && "infill",
  ].filter(part => part);
}

/** Whether a question loads the chosen model first. */
export function loadsFirst() {
  const card = cardOf(chosen());
  return card !== undefined && !isLoaded(card);
}

/** Every model with the words of a choice. */
export function choices() {
  return models.list.map(card => [card.id, isLoaded(card) ? card.id : `${card.id} (loads on first use)`]);
}
