#!/usr/bin/env python3
"""Turns the documentation that ships with a Rust toolchain into the demo model's corpus.

Writes into the output folder:
  docs.json  list of texts in a plain Markdown: the books, and the items and methods of `std`
  qa.json    list of [path, first paragraph, kind], from which questions and answers are made

The documentation is under MIT or Apache-2.0, at the user's choice, as Rust itself is.
"""
import argparse
import json
import re
import subprocess
from pathlib import Path

from lxml import html

BOOKS = ["book", "reference", "nomicon", "rust-by-example", "cargo", "edition-guide", "rustc", "embedded-book", "clippy",
         "style-guide", "error_codes", "unstable-book", "rustdoc"]
BOOK_PAGES_SKIPPED = {"print.html", "toc.html", "404.html"}
ITEM_KINDS = {"struct", "enum", "trait", "fn", "macro", "primitive", "keyword", "union", "constant", "type"}
STD_FOLDERS_SKIPPED = {"arch", "simd"}

TAGS_SKIPPED = {"script", "style", "button", "nav", "svg", "rustdoc-toolbar"}
CLASSES_SKIPPED = {"src", "anchor", "boring"}
BLOCK_TAGS = {"p", "div", "section", "ul", "ol", "table", "tr", "blockquote", "dd", "dt"}
HEADING = re.compile(r"h[1-6]$")

MIN_CHAPTER_CHARS = 200
MIN_METHOD_CHARS = 20
ANSWER_CHARS = range(11, 300)


def installed_docs():
    """The folder of the toolchain's own documentation."""
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    return Path(sysroot) / "share" / "doc" / "rust" / "html"


def tidy(text):
    text = text.replace("\u200b", "").replace("§", "")
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def is_skipped(element):
    classes = element.get("class") or ""
    return element.tag in TAGS_SKIPPED or "tooltip" in classes or not CLASSES_SKIPPED.isdisjoint(classes.split())


def markdown(root):
    """The text below an element, with headings, lists and code marked as in Markdown."""
    out = []

    def add(text, verbatim):
        if text:
            out.append(text if verbatim else re.sub(r"\s+", " ", text))

    def walk(element, in_pre):
        tag = element.tag if isinstance(element.tag, str) else ""
        if is_skipped(element):
            out.append(element.tail or "")
            return
        is_heading, is_inline_code = HEADING.match(tag), tag == "code" and not in_pre
        if is_heading:
            out.append("\n\n" + "#" * int(tag[1]) + " ")
        if tag == "pre":
            out.append("\n```rust\n")
        if tag == "li":
            out.append("\n- ")
        if is_inline_code:
            out.append("`")
        add(element.text, in_pre)
        for child in element:
            walk(child, in_pre or tag == "pre")
        if is_inline_code:
            out.append("`")
        if tag == "pre":
            out.append("\n```\n")
        if tag in BLOCK_TAGS or is_heading:
            out.append("\n")
        add(element.tail, in_pre)

    walk(root, False)
    return tidy("".join(out))


def parse(path):
    """A page's root, or nothing for a page that is no HTML."""
    try:
        return html.parse(str(path)).getroot()
    except Exception:
        return None


def book_chapters(docs):
    for book in BOOKS:
        for path in sorted((docs / book).rglob("*.html"), key=str):
            page = None if path.name in BOOK_PAGES_SKIPPED else parse(path)
            main = page.cssselect("main") if page is not None else []
            text = markdown(main[0]) if main else ""
            if len(text) > MIN_CHAPTER_CHARS:
                yield text


def first_paragraph(text):
    return text.split("\n\n")[0].strip()


def std_pages(docs):
    """Pages of items and modules: (page, kind, name, path). A module has neither kind nor name."""
    std = docs / "std"
    for path in sorted(std.rglob("*.html"), key=str):
        folders = path.relative_to(std).parent.parts
        kind, _, rest = path.name.partition(".")
        is_item = kind in ITEM_KINDS
        if not (is_item or path.name == "index.html") or not STD_FOLDERS_SKIPPED.isdisjoint(folders):
            continue
        page = parse(path)
        if page is None:
            continue
        name = rest.split(".")[0] if is_item else None
        yield page, kind if is_item else None, name, "::".join(["std", *folders, *([name] if name else [])])


def methods(page):
    """The methods that a page documents in full: (name, signature, text)."""
    for toggle in page.cssselect("details.method-toggle"):
        headers, blocks = toggle.cssselect("h4.code-header"), toggle.cssselect("div.docblock")
        if not headers or not blocks or "item-info" in (blocks[0].get("class") or ""):
            continue
        signature, text = tidy(headers[0].text_content()), markdown(blocks[0])
        name = re.search(r"fn (\w+)", signature)
        if name and len(text) >= MIN_METHOD_CHARS and "Read more" not in text:
            yield name[1], signature, text


def std_items(docs):
    """Texts of `std`, and what may become an answer: lists of str and of (path, answer, kind)."""
    texts, answers = [], []

    def add_answer(path, text, kind):
        if len(first_paragraph(text)) in ANSWER_CHARS:
            answers.append((path, first_paragraph(text), kind))

    for page, kind, name, path in std_pages(docs):
        top = page.cssselect("details.top-doc div.docblock")
        if top:
            text = markdown(top[0])
            texts.append(f"# {kind or 'module'} `{path}`\n\n{text}")
            if name:
                add_answer(path, text, kind)
        for method, signature, text in methods(page):
            texts.append(f"## `{name}::{method}`\n\n```rust\n{signature}\n```\n\n{text}")
            add_answer(f"{name}::{method}", text, "method")
    return texts, answers


def without_copies(texts):
    """The first of each: texts with the same beginning and length are taken to be the same."""
    first = {}
    for text in texts:
        first.setdefault((text[:2000], len(text)), text)
    return list(first.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for docs.json and qa.json")
    parser.add_argument("--docs", type=Path, help="folder of the HTML documentation (default: the installed toolchain's)")
    args = parser.parse_args()
    docs = args.docs or installed_docs()
    if not (docs / "std").is_dir():
        parser.error(f"{docs} holds no Rust documentation (rustup component add rust-docs)")

    chapters = list(book_chapters(docs))
    items, answers = std_items(docs)
    texts = without_copies(chapters + items)
    questions = {}
    for path, answer, kind in answers:
        questions.setdefault(path, (path, answer, kind))

    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "docs.json").write_text(json.dumps(texts))
    (args.out / "qa.json").write_text(json.dumps(list(questions.values())))
    print(f"{len(texts)} texts, {sum(map(len, texts))} characters, {len(questions)} questions")


if __name__ == "__main__":
    main()
