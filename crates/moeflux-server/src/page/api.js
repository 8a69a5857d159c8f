// Requests to the server that the page came from, and its errors in plain words.

import * as settings from "./settings.js";

/** What went wrong. `kind` is key, busy, context, network, refused or server. */
export class Problem extends Error {
  constructor(kind, message, { advice = "", seconds = null } = {}) {
    super(message);
    this.kind = kind;
    this.advice = advice;
    this.seconds = seconds;
  }
}

// Paths are relative, so that the page works below any path of a proxy.
export const url = path => new URL(path, document.baseURI);

function headers() {
  return settings.key ? { authorization: `Bearer ${settings.key}` } : {};
}

/** Sends a request; `Problem` unless the server answers with success. */
export async function send(path, { body = undefined, signal = undefined } = {}) {
  const options = { headers: headers(), signal };
  if (body !== undefined) {
    options.method = "POST";
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body, (_, value) => (typeof value === "string" ? wellFormed(value) : value));
  }
  let response;
  try {
    response = await fetch(url(path), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("network", "The server does not answer.", { advice: "Is it running? Retry when it is." });
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

// Half of a pair of surrogates is no text.
const wellFormed = text => (text.toWellFormed ? text.toWellFormed() : text);

async function problemOf(response) {
  const { status } = response;
  const error = (await response.json().catch(() => null))?.error;
  const said = error?.message ?? `the server answered with status ${status}`;
  const seconds = Number(response.headers.get("retry-after")) || null;
  if (status === 401) return new Problem("key", "The server needs a valid API key.", { advice: "Give it in the settings." });
  if (status === 429 || (status === 503 && seconds)) return new Problem("busy", "The server is busy.", { seconds: seconds ?? 2 });
  return problemFrom(error, said, status);
}

/** An error that came as a reply, or in the middle of a stream. */
export function problemFrom(error, said = error?.message, status = 500) {
  const isContext = /context/.test(`${error?.code} ${error?.param}`) || /context (has room|length|window|is full)/i.test(said);
  if (isContext && status < 500) {
    const advice = "Begin a new chat, shorten or edit an earlier question, or start the server with a larger --ctx.";
    return new Problem("context", "The conversation is longer than what the model can hold.", { advice: `${advice} The server says: ${said}` });
  }
  if (status >= 500) return new Problem("server", `The server could not do it: ${said}`, {});
  return new Problem("refused", `The server refused the request: ${said}`, {});
}

/** The JSON values of an event stream. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  let isWhole = false;
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("network", "The connection broke off.", { advice: "What had come is kept." });
    }
    if (part.done) break;
    held += part.value;
    const blocks = held.split("\n\n");
    held = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").find(line => line.startsWith("data: "))?.slice(6);
      if (data === "[DONE]") isWhole = true;
      else if (data) yield JSON.parse(data);
    }
  }
  if (!isWhole) throw new Problem("network", "The connection ended before the answer did.", { advice: "What had come is kept." });
}

export async function status() {
  return (await send("status")).json();
}

/** Renders Markdown: see `LiveText`. */
export async function render(texts, unfinished) {
  const response = await send("page/render", { body: { texts, unfinished } });
  return (await response.json()).texts;
}
