// Files that go with a question: texts and pictures.

import { byId, byteText, count, h, icon, iconButton, notice } from "./dom.js";
import { chosen, sees } from "./models.js";
import { isPicture, readPicture, thumbnail } from "./pictures.js";

const MAX_FILE_BYTES = 512 << 10;
const MAX_ALL_BYTES = 1 << 20;
/** A paste that is longer becomes a file. */
export const LONG_PASTE = 4000;

const sizeOf = text => new Blob([text ?? ""]).size;

/** The text of a file; an `Error` with a sentence where it is none, or too large. */
async function readText(file) {
  if (file.size > MAX_FILE_BYTES) {
    throw new Error(`${file.name} has ${byteText(file.size)}: a file may have ${byteText(MAX_FILE_BYTES)} at most.`);
  }
  const kind = /^(image|audio|video)\//.exec(file.type)?.[1] ?? (/\.pdf$|\.docx?$/i.test(file.name) ? "document" : null);
  const isOther = kind && !file.type.includes("svg");
  const text = isOther ? null : decoded(await file.arrayBuffer());
  if (text === null) throw new Error(`${file.name} is no text file and no picture: only these can be read here.`);
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
        if (isPicture(file)) await this.addPicture(file);
        else this.addText(file.name || "file.txt", await readText(file));
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
    this.push({ name, text });
  }

  async addPicture(file) {
    if (!sees()) throw new Error(`${chosen()} sees no pictures: ${file.name} was left out.`);
    const picture = await readPicture(file);
    this.push({ name: file.name || "picture", ...picture });
  }

  /** Adds a file by a name of its own. */
  push({ name, ...file }) {
    let unique = name;
    for (let n = 2; this.list.some(other => other.name === unique); n += 1) unique = `${name} (${n})`;
    this.list.push({ name: unique, ...file });
    this.draw();
    this.onChange();
  }

  draw() {
    const box = byId("files");
    box.hidden = !this.list.length;
    box.replaceChildren(...this.list.map(file => h(file.image ? "span.chip.shown" : "span.chip", {},
      ...(file.image ? [thumbnail(file)] : textChip(file)),
      iconButton("close", `Remove ${file.name}`, () => {
        this.list = this.list.filter(other => other !== file);
        this.draw();
        this.onChange();
        byId("question").focus();
      }))));
  }
}

const textChip = ({ name, text }) => [
  icon("file"),
  h("span", { title: `${count(text.length)} characters` }, name),
  h("small", {}, byteText(sizeOf(text))),
];

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
