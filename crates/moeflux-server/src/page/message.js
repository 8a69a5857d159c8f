// One message as it is shown.

import { copyButton, count, h, icon, iconButton } from "./dom.js";
import { guessRemark } from "./introduction.js";
import { LiveText, renderWhole } from "./markdown.js";
import { gallery } from "./pictures.js";

/** What a view asks for: edit, again, goOn, show (a sibling), giveKey. */
export class MessageView {
  constructor(message, actions) {
    this.actions = actions;
    this.body = h("div.body");
    this.item = h(`li.${message.role}`, { tabIndex: -1 });
    this.item.dataset.id = message.id;
    this.live = null;
    this.isRendered = false;
    this.update(message);
  }

  /** Shows what the message has become; its body is rendered by `render`. */
  update(message, siblings = []) {
    this.message = message;
    const isWriting = message.state === "writing" && this.actions.isWriting(message);
    const isElsewhere = message.state === "writing" && !isWriting;
    this.item.classList.toggle("writing", isWriting);
    if (isWriting && !this.live) this.goLive();
    if (!isWriting && this.live) this.settle();
    const parts = message.role === "user" ? [gallery(this.message.files ?? []), this.files(), this.body] : [this.thought(), this.body];
    if (message.role === "user") this.body.textContent = message.content;
    this.body.hidden = !message.content && !isWriting;
    this.item.replaceChildren(...parts.filter(part => part), ...this.problems(isElsewhere));
    if (!isWriting) this.item.append(this.foot(siblings));
  }

  goLive() {
    this.live = new LiveText(this.body, () => this.actions.drawn());
    this.isRendered = true;
  }

  settle() {
    const { live } = this;
    this.live = null;
    live.finish(this.message.content);
  }

  /** Renders the body when it comes into view. */
  render() {
    if (this.isRendered || this.message.role === "user") return;
    this.isRendered = true;
    renderWhole(this.body, this.message.content);
  }

  /** New text of an answer that is being written. */
  advance() {
    const { message } = this;
    this.body.hidden = false;
    if (message.content) this.live?.update(message.content);
    if (!message.thought) return;
    if (!this.thoughtBox) this.body.before(this.thought());
    const summary = this.thoughtBox.firstElementChild;
    summary.textContent = message.content ? "Thought" : "Thinking…";
    if (this.thoughtBox.open) this.thoughtText.textContent = message.thought;
  }

  thought() {
    const { message } = this;
    if (!message.thought) return null;
    if (!this.thoughtBox) {
      this.thoughtText = h("div.thought-text.unrendered");
      this.thoughtBox = h("details.thought", { ontoggle: () => this.showThought() }, h("summary", {}, "Thought"), this.thoughtText);
    }
    const isThinking = message.state === "writing" && !message.content;
    this.thoughtBox.firstElementChild.textContent = isThinking ? "Thinking…" : "Thought";
    this.showThought();
    return this.thoughtBox;
  }

  showThought() {
    if (!this.thoughtBox.open) return;
    const { message } = this;
    if (message.state === "writing") this.thoughtText.textContent = message.thought;
    else renderWhole(this.thoughtText, message.thought);
  }

  files() {
    const files = (this.message.files ?? []).filter(file => file.text);
    if (!files.length) return null;
    return h("div.chips", {}, ...files.map(file => h("details.chip", {},
      h("summary", { title: `${file.name}, ${count(file.text.length)} characters` }, icon("file"), h("span", {}, file.name)),
      h("pre", { tabIndex: 0 }, file.text.slice(0, 20_000)))));
  }

  problems(isElsewhere) {
    const { message, actions } = this;
    if (isElsewhere) return [h("p.remark", { role: "status" }, "Another tab is writing this answer.")];
    if (message.state === "interrupted") {
      return [h("p.remark", { role: "status" }, "Interrupted: the page was closed or loaded again while this was written.")];
    }
    if (message.facts?.isGuess) return guessRemark();
    if (message.state === "stopped") return [h("p.remark", {}, message.content ? "Stopped." : "Stopped before anything was said.")];
    if (message.state === "done" && message.role === "assistant" && !message.content) {
      return [h("p.remark", {}, message.thought ? "The answer is empty but for its thoughts." : "The answer is empty.")];
    }
    if (!message.error) {
      const isCut = message.facts?.finish === "length";
      return isCut ? [h("p.remark", {}, "Cut off: the limit of tokens or the end of the context was reached.")] : [];
    }
    const { kind, message: text, advice } = message.error;
    const button = kind === "key"
      ? h("button", { type: "button", onclick: () => actions.giveKey(message) }, "Enter API key")
      : h("button", { type: "button", onclick: () => actions.again(message) }, "Try again");
    return [h("div.error", { role: "alert" }, h("div", {}, h("strong", {}, text), advice && h("p", {}, advice)), button)];
  }

  foot(siblings) {
    const { message, actions } = this;
    const isUser = message.role === "user";
    const buttons = [this.branches(siblings)];
    if (message.content) buttons.push(copyButton("Copy", () => this.message.content));
    if (isUser) buttons.push(iconButton("edit", "Edit", () => actions.edit(this)));
    if (!isUser) {
      if (!message.error) buttons.push(iconButton("retry", "Regenerate", () => actions.again(this.message)));
      if (message.content) buttons.push(iconButton("edit", "Edit response", () => actions.edit(this)));
      const goesOn = ["stopped", "interrupted", "failed"].includes(message.state) || message.facts?.finish === "length";
      if (goesOn && message.content) {
        buttons.push(h("button.plain.go-on", { type: "button", onclick: () => actions.goOn(this.message) }, icon("forward"), "Continue"));
      }
    }
    return h("div.foot", {}, h("div.tools", {}, ...buttons), isUser ? null : factsLine(message));
  }

  branches(siblings) {
    if (siblings.length < 2) return null;
    const i = siblings.findIndex(sibling => sibling.id === this.message.id);
    const turn = (name, label, sibling) => iconButton(name, label, () => this.actions.show(sibling), { disabled: !sibling });
    return h("span.branches", { role: "group", "aria-label": "Versions" },
      turn("left", "Previous version", siblings[i - 1]),
      h("span", {}, `${i + 1}/${siblings.length}`),
      turn("right", "Next version", siblings[i + 1]));
  }

  /** An editor in place of the text; `send` gets the new text. */
  edit(send) {
    const isUser = this.message.role === "user";
    const box = h("textarea", { value: this.message.content, "aria-label": isUser ? "Message" : "Response" });
    const grow = () => {
      box.style.height = "auto";
      box.style.height = `${Math.min(box.scrollHeight + 2, innerHeight * 0.6)}px`;
    };
    const close = () => {
      this.item.classList.remove("editing");
      form.replaceWith(...shown);
      this.item.focus();
    };
    const done = () => {
      const text = box.value.trim();
      close();
      const hasFiles = isUser && this.message.files?.length > 0;
      if (hasFiles || (text && (isUser || text !== this.message.content))) send(text);
    };
    const form = h("form.editor", { onsubmit: event => { event.preventDefault(); done(); } }, box,
      h("div.row", {},
        h("button", { type: "button", onclick: close }, "Cancel"),
        h("button.primary", { type: "submit" }, isUser ? "Send" : "Save as a version")));
    box.addEventListener("input", grow);
    box.addEventListener("keydown", event => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      }
      const isSent = event.key === "Enter" && !event.isComposing && (isUser ? !event.shiftKey : event.ctrlKey || event.metaKey);
      if (isSent) {
        event.preventDefault();
        done();
      }
    });
    const shown = Array.from(this.item.childNodes);
    this.item.classList.add("editing");
    this.item.replaceChildren(form);
    grow();
    box.focus();
    box.setSelectionRange(box.value.length, box.value.length);
  }
}

function factsLine({ facts }) {
  if (!facts) return null;
  const parts = [];
  if (facts.tokens) parts.push(`${count(facts.tokens)} tokens`);
  if (facts.rate) parts.push(`${facts.rate.toFixed(1)} tok/s`);
  return h("p.facts-line", {}, ...parts.map(part => h("span", {}, part)));
}
