// Pictures that go with a question, as data URLs.

import { h } from "./dom.js";

/** What servers read; the browser makes a JPEG or WebP of other formats. */
const READ_BY_SERVERS = /^image\/(png|jpeg|webp|gif)$/;
/** A larger file is made smaller: each request has all pictures of its conversation. */
const MAX_BYTES = 2 << 20;
/** Pixels of a picture that was made smaller, at most: more than towers look at by default. */
const MAX_PIXELS = 4 << 20;
const QUALITY = 0.92;

/** Whether a file is a picture that a browser draws from pixels. */
export const isPicture = file => /^image\/(?!svg)/.test(file.type);

/** A file as `{ image, width, height }`; an `Error` with a sentence where the browser cannot read it. */
export async function readPicture(file) {
  let drawn;
  try {
    drawn = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is no picture that this browser can read.`);
  }
  const { width, height } = drawn;
  const isKept = READ_BY_SERVERS.test(file.type) && file.size <= MAX_BYTES;
  const image = await dataUrl(isKept ? file : await smaller(drawn, file.type));
  drawn.close();
  return { image, width, height };
}

function smaller(drawn, type) {
  const scale = Math.min(1, Math.sqrt(MAX_PIXELS / (drawn.width * drawn.height)));
  const canvas = h("canvas", { width: Math.ceil(drawn.width * scale), height: Math.ceil(drawn.height * scale) });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(drawn, 0, 0, canvas.width, canvas.height);
  // Photos have no transparency. Browsers that write no WebP write PNG.
  const into = /jpe?g|hei[cf]/.test(type) ? "image/jpeg" : "image/webp";
  return new Promise((resolve, reject) => {
    canvas.toBlob(blob => (blob ? resolve(blob) : reject(new Error("The picture is too large for this browser."))), into, QUALITY);
  });
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("The file cannot be read."));
    reader.readAsDataURL(blob);
  });
}

const sizeText = ({ name, width, height }) => (width ? `${name}, ${width} × ${height}` : name);

export const thumbnail = file => h("img", { src: file.image, alt: file.name, title: sizeText(file) });

/** The pictures of a message: small ones, each of which becomes large when it is pressed. */
export function gallery(files) {
  const pictures = files.filter(file => file.image);
  if (!pictures.length) return null;
  return h("div.pictures", {}, ...pictures.map(file => {
    const button = h("button.picture", { type: "button", title: sizeText(file), "aria-expanded": "false" },
      h("img", { src: file.image, alt: file.name, loading: "lazy" }));
    button.addEventListener("click", () => {
      button.setAttribute("aria-expanded", String(button.classList.toggle("large")));
    });
    return button;
  }));
}

/** Whether a value of a file of conversations is a picture that may be shown. */
export const isDataUrl = value =>
  typeof value === "string" && /^data:image\/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+$/.test(value);
