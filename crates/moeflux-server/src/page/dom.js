// Elements, and what of the browser several modules need.

export const byId = id => document.getElementById(id);

/** An element: its name with classes ("div.a.b"), properties and attributes, children. */
export function h(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key in element && key !== "list") element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

// Paths on a field of 24 by 24.
const ICONS = {
  add: "M12 5v14M5 12h14",
  attach: "M20 11.5l-8.3 8.3a5.3 5.3 0 0 1-7.5-7.5l8.7-8.7a3.5 3.5 0 0 1 5 5l-8.6 8.6a1.8 1.8 0 0 1-2.5-2.5l7.6-7.6",
  chart: "M4 20V10M10 20V4M16 20v-8M21 20H3",
  check: "M5 12.5l4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  export: "M12 15V4M7.5 8.5L12 4l4.5 4.5M5 15v5h14v-5",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  forward: "M5 5l7 7-7 7M13 5l7 7-7 7",
  help: "M9.2 9a2.9 2.9 0 1 1 4.3 2.5c-1 .6-1.5 1.2-1.5 2.3M12 17.2v.2M12 21a9 9 0 1 1 0-18 9 9 0 0 1 0 18z",
  import: "M12 4v11M7.5 10.5L12 15l4.5-4.5M5 15v5h14v-5",
  left: "M14.5 6l-6 6 6 6",
  menu: "M4 7h16M4 12h16M4 17h16",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z",
  more: "M5.5 12h.01M12 12h.01M18.5 12h.01",
  retry: "M20 5v5h-5M4 19v-5h5M19 10a7.5 7.5 0 0 0-13.5-2M5 14a7.5 7.5 0 0 0 13.5 2",
  right: "M9.5 6l6 6-6 6",
  search: "M10.5 17a6.5 6.5 0 1 1 0-13 6.5 6.5 0 0 1 0 13zM15.5 15.5L20 20",
  send: "M12 20V5M5.5 11L12 4.5l6.5 6.5",
  settings: "M4 7h9M19 7h1M16 4.5v5M4 17h1M11 17h9M8 14.5v5",
  stop: "M7 7h10v10H7z",
  sun: "M12 16a4 4 0 1 1 0-8 4 4 0 0 1 0 8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
};

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button that is only an icon. */
export function iconButton(name, label, onclick, properties = {}) {
  return h("button.plain", { type: "button", title: label, "aria-label": label, onclick, ...properties }, icon(name));
}

/** Puts text into the clipboard, with or without a secure context. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Plain http has no `navigator.clipboard`: copy a selection, as before there was one.
  }
  const focused = document.activeElement;
  const box = h("textarea.hidden", { value: text, readOnly: true });
  (document.querySelector("dialog[open]") ?? document.body).append(box);
  box.select();
  let copied = false;
  try {
    copied = document.execCommand("copy");
  } catch {
    // Forbidden: the caller says so.
  }
  box.remove();
  focused?.focus();
  return copied;
}

/** A button that copies what `text` returns, and says whether it did. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const copied = await copyText(text());
    button.replaceChildren(icon(copied ? "check" : "close"));
    button.title = copied ? "Copied" : "The browser does not allow copying";
    announce(button.title);
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.title = label;
    }, 1500);
  });
  button.classList.add("copy");
  return button;
}

/** Says something to screen readers. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** Shows a line at the bottom for some seconds, with an action or without. */
export function notice(text, { action = null, label = "", seconds = 6, isError = false } = {}) {
  const box = byId("notices");
  // All but an open dialog is inert.
  (document.querySelector("dialog[open]") ?? document.body).append(box);
  const close = () => item.remove();
  const item = h(isError ? "div.notice.wrong" : "div.notice", { role: isError ? "alert" : "status" },
    h("span", {}, text),
    action && h("button.link", { type: "button", onclick: () => { close(); action(); } }, label),
    iconButton("close", "Dismiss", close));
  box.append(item);
  while (box.children.length > 3) box.firstElementChild.remove();
  if (seconds) setTimeout(close, 1000 * seconds);
}

/** A name that no other record has; `crypto.randomUUID` needs a secure context. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join("");
}

export function byteText(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i += 1;
  }
  return `${n.toFixed(n < 10 && i ? 1 : 0)} ${units[i]}`;
}

export function durationText(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return `${Math.round(seconds / 60)} min`;
}

export const count = n => n.toLocaleString("en");
