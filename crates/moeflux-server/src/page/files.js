// Text files that go with a question.

import { byId, byteText, count, h, icon, iconButton, notice } from "./dom.js";

const MAX_FILE_BYTES = 512 << 10;
const MAX_ALL_BYTES = 1 << 20;
/** A paste that is longer becomes a file. */
export const LONG_PASTE = 4000;

const sizeOf = text => new Blob([text]).size;

/** The text of a file; an `Error` with a sentence where it is none, or too large. */
async function readText(file) {
  if (file.size > MAX_FILE_BYTES) {
    throw new Error(`${file.name} has ${byteText(file.size)}: a file may have ${byteText(MAX_FILE_BYTES)} at most.`);
  }
  const kind = /^(image|audio|video)\//.exec(file.type)?.[1] ?? (/\.pdf$|\.docx?$/i.test(file.name) ? "document" : null);
  const isImage = kind && !file.type.includes("svg");
  const text = isImage ? null : decoded(await file.arrayBuffer());
  if (text === null) throw new Error(`${file.name} is no text file: only text can be read here.`);
  if (!text) throw new Error(`${file.name} is empty.`);
  return text;
}

function decoded(buffer) {
  const bytes = new Uint8Array(buffer);
  const isWide = (bytes[0] === 0xff && bytes[1] === 0xfe) || (bytes[0] === 0xfe && bytes[1] === 0xff);
  try {
    const encoding = isWide ? (bytes[0] === 0xff ? "utf-16le" : "utf-16be") : "utf-8";
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

/** The files of the question that is being written. */
export class Files {
  constructor(onChange) {
    this.list = [];
    this.onChange = onChange;
  }

  set(files) {
    this.list = files;
    this.draw();
  }

  async add(some) {
    for (const file of some) {
      try {
        this.addText(file.name || "file.txt", await readText(file));
      } catch (error) {
        notice(error.message, { isError: true });
      }
    }
  }

  addText(name, text) {
    const bytes = this.list.reduce((sum, file) => sum + sizeOf(file.text), sizeOf(text));
    if (bytes > MAX_ALL_BYTES) {
      notice(`${name} does not fit: the files of a question may have ${byteText(MAX_ALL_BYTES)} together.`, { isError: true });
      return;
    }
    let unique = name;
    for (let n = 2; this.list.some(file => file.name === unique); n += 1) unique = `${name} (${n})`;
    this.list.push({ name: unique, text });
    this.draw();
    this.onChange();
  }

  draw() {
    const box = byId("files");
    box.hidden = !this.list.length;
    box.replaceChildren(...this.list.map(file => h("span.chip", { title: `${count(file.text.length)} characters` },
      icon("file"), h("span", {}, file.name), h("small", {}, byteText(sizeOf(file.text))),
      iconButton("close", `Remove ${file.name}`, () => {
        this.list = this.list.filter(other => other !== file);
        this.draw();
        this.onChange();
        byId("question").focus();
      }))));
  }
}

/** Takes files that are dropped anywhere on the page. */
export function takeDrops(files) {
  const veil = byId("drop");
  const hasFiles = event => event.dataTransfer?.types.includes("Files");
  let depth = 0;
  addEventListener("dragenter", event => {
    if (!hasFiles(event)) return;
    depth += 1;
    veil.hidden = false;
  });
  addEventListener("dragleave", event => {
    if (!hasFiles(event)) return;
    depth -= 1;
    veil.hidden = depth <= 0;
  });
  addEventListener("dragover", event => { if (hasFiles(event)) event.preventDefault(); });
  addEventListener("drop", event => {
    depth = 0;
    veil.hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    files.add(event.dataTransfer.files);
  });
}
