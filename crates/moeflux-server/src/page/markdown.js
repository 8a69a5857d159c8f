// Markdown to elements. Text only ever becomes text nodes: nothing that a model writes is markup.
"use strict";

/** Renders `text` into `target`. */
function renderMarkdown(target, text) {
  target.replaceChildren(...blocks(text.split("\n")));
}

function element(name, ...children) {
  const it = document.createElement(name);
  it.append(...children);
  return it;
}

const LIST = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;

function blocks(lines) {
  const out = [];
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    const fence = line.match(/^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/);
    const heading = line.match(/^ {0,3}(#{1,6})\s+(.*?)\s*#*$/);
    if (!line.trim()) {
      i += 1;
    } else if (fence) {
      let end = i + 1;
      while (end < lines.length && !lines[end].trim().startsWith(fence[1])) end += 1;
      const code = element("code", lines.slice(i + 1, end).join("\n"));
      if (fence[2]) code.dataset.language = fence[2].trim();
      out.push(element("pre", code));
      i = end + 1;
    } else if (heading) {
      const level = Math.min(heading[1].length + 2, 6);
      out.push(element("h" + level, ...inline(heading[2])));
      i += 1;
    } else if (RULE.test(line)) {
      out.push(document.createElement("hr"));
      i += 1;
    } else if (/^ {0,3}>/.test(line)) {
      let end = i;
      while (end < lines.length && /^ {0,3}>/.test(lines[end])) end += 1;
      const inner = lines.slice(i, end).map(it => it.replace(/^ {0,3}> ?/, ""));
      out.push(element("blockquote", ...blocks(inner)));
      i = end;
    } else if (LIST.test(line)) {
      const [list, end] = readList(lines, i);
      out.push(list);
      i = end;
    } else if (line.includes("|") && /^[\s|:-]+$/.test(lines[i + 1] ?? "") && (lines[i + 1] ?? "").includes("-")) {
      const [table, end] = readTable(lines, i);
      out.push(table);
      i = end;
    } else {
      let end = i + 1;
      while (end < lines.length && lines[end].trim() && !/^ {0,3}(#{1,6}\s|>|`{3}|~{3})/.test(lines[end]) && !LIST.test(lines[end])) end += 1;
      out.push(element("p", ...inline(lines.slice(i, end).join("\n"))));
      i = end;
    }
  }
  return out;
}

function readList(lines, start) {
  const [, indent, marker] = lines[start].match(LIST);
  const ordered = /\d/.test(marker);
  const list = document.createElement(ordered ? "ol" : "ul");
  if (ordered && parseInt(marker, 10) !== 1) list.start = parseInt(marker, 10);
  let i = start;
  while (i < lines.length) {
    const item = lines[i].match(LIST);
    if (!item || item[1].length < indent.length || /\d/.test(item[2]) !== ordered) break;
    const inner = [item[3]];
    const depth = lines[i].length - item[3].length;
    i += 1;
    while (i < lines.length) {
      const nested = lines[i].match(LIST);
      if (nested && nested[1].length <= indent.length) break;
      if (!lines[i].trim() && !/^\s+\S/.test(lines[i + 1] ?? "")) break;
      if (lines[i].trim() && !/^\s/.test(lines[i])) break;
      inner.push(lines[i].replace(new RegExp(`^\\s{0,${depth}}`), ""));
      i += 1;
    }
    const body = blocks(inner);
    // An item of one paragraph is that paragraph's text.
    const li = body[0]?.tagName === "P" ? element("li", ...body[0].childNodes, ...body.slice(1)) : element("li", ...body);
    list.append(li);
    while (i < lines.length && !lines[i].trim() && LIST.test(lines[i + 1] ?? "")) i += 1;
  }
  return [list, i];
}

function readTable(lines, start) {
  const cells = line => line.trim().replace(/^\||\|$/g, "").split("|").map(it => it.trim());
  const row = (line, name) => element("tr", ...cells(line).map(it => element(name, ...inline(it))));
  const head = element("thead", row(lines[start], "th"));
  const body = document.createElement("tbody");
  let i = start + 2;
  while (i < lines.length && lines[i].includes("|")) {
    body.append(row(lines[i], "td"));
    i += 1;
  }
  return [element("table", head, body), i];
}

// Code first: what stands in it means nothing else.
const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|__(?=\S)([\s\S]*?\S)__|\*(?=[^\s*])([\s\S]*?[^\s*])\*|(?<!\w)_(?=[^\s_])([^_]*[^\s_])_(?!\w)|~~(?=\S)([\s\S]*?\S)~~|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>"')\]]+)/;

function inline(text) {
  const out = [];
  let rest = text;
  for (let found = rest.match(INLINE); found; found = rest.match(INLINE)) {
    if (found.index) out.push(rest.slice(0, found.index));
    const [all, , code, strong, strong2, soft, soft2, struck, label, href, url] = found;
    if (code !== undefined) out.push(element("code", code));
    else if (strong ?? strong2) out.push(element("strong", ...inline(strong ?? strong2)));
    else if (soft ?? soft2) out.push(element("em", ...inline(soft ?? soft2)));
    else if (struck) out.push(element("s", ...inline(struck)));
    else out.push(link(label ?? url, href ?? url));
    rest = rest.slice(found.index + all.length);
  }
  if (rest) out.push(rest);
  return out;
}

function link(text, href) {
  const it = element("a", text);
  it.href = href;
  it.rel = "noopener noreferrer nofollow";
  it.target = "_blank";
  return it;
}
