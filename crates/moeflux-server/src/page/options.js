// The dialog of the settings.

import { byId, h, notice } from "./dom.js";
import { chosenStatus, thinks } from "./models.js";
import * as settings from "./settings.js";
import { exportAll, importFiles } from "./transfer.js";

const dialog = byId("settings");
let onChange = () => {};
/** Called when a key has been given. */
let afterKey = null;

const LEVELS = [["", "Default"], ["none", "Off"], ["low", "Low"], ["medium", "Medium"], ["high", "High"]];

function field(name) {
  return dialog.querySelector(`[name="${name}"]`);
}

/** What the server takes where a field is left empty. */
function defaultOf(name) {
  const value = chosenStatus()?.sampling?.[name];
  if (value !== undefined && value !== null) return `default ${Number(value.toFixed?.(3) ?? value)}`;
  return { max_tokens: "no limit", seed: "random" }[name] ?? "default";
}

function addNumbers() {
  byId("numbers").append(...settings.NUMBERS.map(([name, label, min, max, step, hint]) => {
    const input = h("input", { name, type: "number", inputMode: "decimal", min, max, step: step === 1 ? 1 : "any", "aria-describedby": `hint-${name}` });
    return h("label", {}, h("span", {}, label), input, h("small", { id: `hint-${name}` }, hint));
  }));
  field("thinking").append(...LEVELS.map(([value, label]) => h("option", { value }, label)));
}

function fill() {
  const { settings: all } = settings;
  for (const [name] of settings.NUMBERS) {
    field(name).value = all[name] ?? "";
    field(name).placeholder = defaultOf(name);
  }
  for (const name of ["system", "stop", "thinking", "theme"]) field(name).value = all[name];
  field("key").value = settings.key;
  field("keepKey").checked = all.keepKey;
  byId("thinking-row").hidden = !thinks();
  validate();
}

function validate() {
  for (const [name] of settings.NUMBERS) {
    const input = field(name);
    input.setAttribute("aria-invalid", String(!input.validity.valid));
    input.title = input.validationMessage;
  }
}

function keep(event) {
  const { name, type } = event.target;
  if (!name) return;
  validate();
  let isKept = true;
  if (name === "key" || name === "keepKey") {
    isKept = settings.changeKey(field("key").value, field("keepKey").checked);
  } else if (type !== "number" || event.target.validity.valid) {
    isKept = settings.change({ [name]: event.target.value });
  }
  byId("unkept").hidden = isKept;
  onChange();
}

/** Whether any sampling setting differs from the server's. */
export function isChanged() {
  const { settings: all } = settings;
  return Boolean(all.system.trim() || all.stop || settings.NUMBERS.some(([name]) => all[name]));
}

function reset() {
  const cleared = Object.fromEntries(settings.NUMBERS.map(([name]) => [name, ""]));
  settings.change({ ...cleared, system: "", stop: "", thinking: "" });
  fill();
  onChange();
  notice("All settings but the API key are the defaults again.");
}

export function open() {
  if (dialog.open) return;
  fill();
  dialog.showModal();
}

/** Opens the dialog at the key; `then` is called when it is closed with one. */
export function askForKey(then = null) {
  afterKey = then;
  open();
  field("key").focus();
  field("key").select();
}

export function applyTheme() {
  document.documentElement.dataset.theme = settings.settings.theme || "system";
}

export function start(listener) {
  onChange = () => {
    applyTheme();
    listener();
  };
  addNumbers();
  dialog.addEventListener("input", keep);
  dialog.addEventListener("close", () => {
    const then = afterKey;
    afterKey = null;
    if (then && settings.key) then();
  });
  dialog.addEventListener("give-key", event => askForKey(event.detail));
  dialog.querySelector("form").addEventListener("submit", event => {
    event.preventDefault();
    dialog.close();
  });
  byId("give-key").addEventListener("click", () => askForKey());
  byId("reset").addEventListener("click", reset);
  byId("export-all").addEventListener("click", exportAll);
  byId("import").addEventListener("click", () => byId("import-input").click());
  byId("import-input").addEventListener("change", async event => {
    await importFiles(Array.from(event.target.files));
    event.target.value = "";
  });
  for (const one of document.querySelectorAll("dialog")) {
    one.querySelector(".close").addEventListener("click", () => one.close());
    // A click beside the dialog closes it.
    one.addEventListener("pointerdown", event => { if (event.target === one) one.close(); });
  }
  settings.watch(() => {
    onChange();
    if (dialog.open) fill();
  });
  onChange();
}
