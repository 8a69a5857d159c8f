// The messages of a conversation are a tree: a question or answer that was edited or asked for again
// is a sibling of the earlier one. What is shown is the path from a root to one leaf.

/** Messages that follow `parent`, oldest first; `null` is before the first question. */
export function childrenOf(messages, parent) {
  const children = Array.from(messages.values()).filter(message => (message.parent ?? null) === parent);
  return children.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
}

/** From the first message to `leaf`; a chain that is broken begins where it is. */
export function pathTo(messages, leaf) {
  const path = [];
  const seen = new Set();
  for (let message = messages.get(leaf); message && !seen.has(message.id); message = messages.get(message.parent)) {
    seen.add(message.id);
    path.push(message);
  }
  return path.reverse();
}

/** The leaf below `id` by way of the newest messages. */
export function newestLeaf(messages, id) {
  const byParent = new Map();
  for (const message of messages.values()) {
    const key = message.parent ?? null;
    const newest = byParent.get(key);
    if (!newest || newest.created <= message.created) byParent.set(key, message);
  }
  const seen = new Set();
  let leaf = id;
  while (byParent.has(leaf) && !seen.has(leaf)) {
    seen.add(leaf);
    leaf = byParent.get(leaf).id;
  }
  return leaf;
}

/** A title of one line from a question. */
export function titleOf(text) {
  const line = text.split("\n").map(part => part.replace(/^[#>\-*\s]+/, "").trim()).find(part => part) ?? "";
  const chars = Array.from(line);
  if (chars.length <= 60) return line || "Conversation";
  const cut = chars.slice(0, 57).join("");
  return `${cut.replace(/\s+\S*$/, "") || cut}…`;
}

/** A question as the model reads it: its pictures, its files, each with its name, and the text. */
export function contentForModel(message) {
  const text = textForModel(message);
  const pictures = (message.files ?? []).filter(file => file.image);
  if (!pictures.length) return text;
  const parts = pictures.map(file => ({ type: "image_url", image_url: { url: file.image } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

/** A question as the model reads it, without its pictures. */
export function textForModel(message) {
  const files = (message.files ?? []).filter(file => file.text).map(file => {
    const longest = Math.max(2, ...Array.from(file.text.matchAll(/`{3,}/g), found => found[0].length));
    const fence = "`".repeat(longest + 1);
    return `File: ${file.name}\n${fence}\n${file.text}${file.text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [...files, message.content].filter(part => part).join("\n\n");
}
