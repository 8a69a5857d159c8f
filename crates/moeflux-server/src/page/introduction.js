// What the page says of a model that can do little, and the questions that it offers.

import { byId, h } from "./dom.js";
import { chosenStatus } from "./models.js";

/** Asks a question as if it had been written and sent. */
function ask(question) {
  const field = byId("question");
  field.value = question;
  field.dispatchEvent(new Event("input"));
  byId("ask").requestSubmit();
}

/** Buttons with its questions; `null` for a model that needs no introduction. */
export function questions() {
  const introduction = chosenStatus()?.introduction;
  if (!introduction) return null;
  return h("div.questions", {}, ...introduction.questions.map(question =>
    h("button", { type: "button", onclick: () => ask(question) }, question)));
}

/** What stands where an answer would be a guess. */
export function guessRemark() {
  const about = chosenStatus()?.introduction?.about;
  return [
    h("p.remark", { role: "status" }, about ? `${about}. Here I could only guess, so I say nothing. Ask me:` : "The answer would have been a guess."),
    questions(),
  ].filter(part => part);
}
