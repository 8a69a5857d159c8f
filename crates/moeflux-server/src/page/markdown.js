// Text as HTML, which the server renders and cleans; shown as it is where the server does not answer.

import { render } from "./api.js";
import { copyButton, h } from "./dom.js";

/** Between two renderings of an answer that is being written, in milliseconds. */
const LEAST_WAIT = 100;
/** Whole texts in one request, and their characters. */
const BATCH = 20;
const BATCH_CHARS = 200_000;
const CACHED = 400;

const cache = new Map();
const waiting = new Map();
let timer = null;

/** Adds what HTML cannot: buttons, and focus for what scrolls. */
function adorn(box) {
  for (const head of box.querySelectorAll(".code-head")) {
    if (head.querySelector("button")) continue;
    const pre = head.nextElementSibling;
    head.append(copyButton("Copy code", () => pre.textContent));
    pre.tabIndex = 0;
  }
  for (const table of box.querySelectorAll(".table")) {
    table.tabIndex = 0;
    table.setAttribute("role", "region");
    table.setAttribute("aria-label", "Table");
  }
}

function show(box, html) {
  // The server's sanitizer has been over it, and the page's policy runs no script but its own.
  box.innerHTML = html;
  box.classList.remove("unrendered");
  adorn(box);
}

function showPlain(box, text) {
  box.textContent = text;
  box.classList.add("unrendered");
}

function keep(text, html) {
  cache.delete(text);
  cache.set(text, html);
  if (cache.size > CACHED) cache.delete(cache.keys().next().value);
}

/** Renders a whole text into `box`, together with others that come at the same time. */
export function renderWhole(box, text) {
  if (cache.has(text)) {
    show(box, cache.get(text));
    return;
  }
  showPlain(box, text);
  waiting.set(box, text);
  timer ??= setTimeout(flush, 10);
}

async function flush() {
  const some = [];
  let chars = 0;
  for (const [box, text] of waiting) {
    chars += text.length;
    if (some.length && (some.length >= BATCH || chars > BATCH_CHARS)) break;
    some.push([box, text]);
  }
  try {
    const rendered = await render(some.map(([, text]) => text), false);
    some.forEach(([box, text], i) => {
      const html = rendered[i].finished.join("\n");
      keep(text, html);
      if (waiting.get(box) !== text) return;
      waiting.delete(box);
      show(box, html);
    });
  } catch {
    // `retry` is called when the server answers again.
    timer = null;
    return;
  }
  timer = waiting.size ? setTimeout(flush, 0) : null;
}

/** Renders what could not be rendered before. */
export function retry() {
  for (const box of waiting.keys()) if (!box.isConnected) waiting.delete(box);
  if (waiting.size) timer ??= setTimeout(flush, 0);
}

/** A text that is being written: only what follows its finished blocks is sent to the server. */
export class LiveText {
  constructor(box, onDrawn) {
    this.box = box;
    this.onDrawn = onDrawn;
    this.text = "";
    this.reset();
    this.timer = null;
    this.isBusy = false;
    this.isClosed = false;
    this.took = 0;
  }

  reset() {
    this.start = 0;
    this.end = 0;
    this.code = null;
    this.tail = h("div.tail");
    this.box.replaceChildren(this.tail);
  }

  update(text) {
    this.text = text;
    this.extendCode();
    if (this.timer || this.isBusy || this.isClosed) return;
    // Long blocks that are not finished come less often, so that work stays in proportion to time.
    const wait = Math.max(LEAST_WAIT, 2 * this.took, (text.length - this.start) / 50);
    this.timer = setTimeout(() => this.draw(), this.end ? wait : 0);
  }

  /** Shows code that has come since the last rendering, without colours. */
  extendCode() {
    if (!this.code) return;
    const more = this.text.slice(this.end);
    const fence = more.search(/^\s*[`~]/m);
    this.code.data = fence < 0 ? more : more.slice(0, fence);
    this.onDrawn();
  }

  async draw() {
    this.timer = null;
    this.isBusy = true;
    const end = this.text.length;
    const since = performance.now();
    try {
      const [rendered] = await render([this.text.slice(this.start, end)], true);
      if (!this.isClosed) this.place(rendered, end);
    } catch {
      if (!this.isClosed) showPlain(this.tail, this.text.slice(this.start, end));
    }
    this.took = performance.now() - since;
    this.isBusy = false;
    if (this.text.length > end && !this.isClosed) this.update(this.text);
  }

  place({ finished, tail, tail_start: start, is_code_open: isOpen }, end) {
    if (finished.length) {
      const done = h("div.part");
      show(done, finished.join("\n"));
      this.tail.before(...done.childNodes);
    }
    show(this.tail, tail);
    this.start += start;
    this.end = end;
    this.code = null;
    const codes = isOpen ? this.tail.querySelectorAll("pre code") : [];
    if (codes.length) {
      const code = codes[codes.length - 1];
      // The renderer leaves out line ends at the end.
      if (/\n$/.test(this.text.slice(0, end)) && code.textContent) code.append("\n");
      this.code = document.createTextNode("");
      code.append(this.code);
      this.extendCode();
    }
    this.onDrawn();
  }

  /** The text is complete: renders it once more as a whole, by what it may refer to at its end. */
  finish(text) {
    this.isClosed = true;
    clearTimeout(this.timer);
    if (!text) {
      this.box.replaceChildren();
      return;
    }
    renderLater(this.box, text, this.onDrawn);
  }
}

/** As `renderWhole`, but what is shown stays until there is something to show instead. */
async function renderLater(box, text, onDrawn) {
  try {
    const [{ finished }] = await render([text], false);
    keep(text, finished.join("\n"));
    show(box, cache.get(text));
    onDrawn();
  } catch {
    renderWhole(box, text);
  }
}
