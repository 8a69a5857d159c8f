// Keys, and the dialog that lists them.

import { byId, h } from "./dom.js";

const isMac = /Mac|iPhone|iPad/.test(navigator.platform);
const CONTROL = isMac ? "⌘" : "Ctrl";

/** Keys of the whole page: name, what it needs, explanation. */
const GLOBAL = [
  ["k", { control: true }, "Search chats", "search"],
  ["o", { control: true, shift: true }, "New chat", "begin"],
  [",", { control: true }, "Settings", "settings"],
  ["/", { control: true }, "Keyboard shortcuts", "help"],
];

const OTHERS = [
  [["Enter"], "Send the message"],
  [["Shift", "Enter"], "New line"],
  [["Esc"], "Stop generating, or close what is open"],
  [["↑"], "In an empty field: edit the last message"],
];

function rows() {
  const global = GLOBAL.map(([name, { shift }, text]) => [[CONTROL, shift && "Shift", name.toUpperCase()].filter(key => key), text]);
  return [...OTHERS, ...global].map(([keys, text]) => h("div", {},
    h("dt", {}, text), h("dd", {}, ...keys.map(key => h("kbd", {}, key)))));
}

/** `actions`: search, begin, settings, stop. */
export function start(actions) {
  byId("keys").append(...rows());
  const all = { ...actions, help: () => byId("help").showModal() };
  byId("show-help").addEventListener("click", all.help);
  document.addEventListener("keydown", event => {
    if (event.isComposing) return;
    const isInDialog = document.querySelector("dialog[open]") !== null;
    if (event.key === "Escape" && !isInDialog) actions.stop();
    const hasControl = event.ctrlKey || event.metaKey;
    const found = GLOBAL.find(([name, { shift = false }]) =>
      event.key.toLowerCase() === name && hasControl && event.shiftKey === shift && !event.altKey);
    if (!found || isInDialog) return;
    event.preventDefault();
    all[found[3]]();
  });
}
