//! The documents: their links and anchors, the paths that they name, the book's table of contents, the
//! size of the README, and mentions of documents in sources.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::tree::{File, assert_none, files};

/// The folder of the book. Its pages link to each other, and to the log: nothing else is in the book.
const BOOK: &str = "docs/";
const CONTENTS: &str = "docs/SUMMARY.md";

const README: &str = "README.md";
const MAX_README_LINES: usize = 120;
const MAX_README_COLUMNS: usize = 160;

/// Where documents are mentioned by their path.
const MENTIONS: &[&str] = &[".rs", ".py", ".sh", ".yaml", ".wgsl", "/run", ".txt"];

/// Folders at the root by which a path of the tree begins.
const FOLDERS: &[&str] = &["crates/", "docs/", "tools/", "fuzz/", "examples/", ".ci/"];
/// Not a page of the book, which is for readers: `docs/book.toml` says where links to it lead there. Entries keep
/// the paths of their day.
const HISTORY: &str = "docs/experiments/log.md";

/// What a document links to, and what it can be linked at.
#[derive(Debug, Default)]
struct Document {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

fn read(text: &str) -> Document {
    let mut document = Document::default();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                document.links.push(dest_url.into_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = slug(&heading.take().unwrap_or_default());
                document.anchors.insert(unused(anchor, &document.anchors));
            }
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&part);
                }
            }
            Event::Html(html) | Event::InlineHtml(html) => {
                let ids = html.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next());
                document.anchors.extend(ids.map(String::from));
            }
            _ => {}
        }
    }
    document
}

/// The anchor of a heading, as mdBook and GitHub make it.
fn slug(heading: &str) -> String {
    let kept = |c: char| match c {
        c if c.is_whitespace() => Some('-'),
        '_' | '-' => Some(c),
        c => c.is_alphanumeric().then_some(c),
    };
    heading.trim().to_lowercase().chars().filter_map(kept).collect()
}

/// A heading that occurs again gets a number.
fn unused(anchor: String, taken: &BTreeSet<String>) -> String {
    let numbered = (1..).map(|n| format!("{anchor}-{n}"));
    let mut names = std::iter::once(anchor.clone()).chain(numbered);
    names.find(|name| !taken.contains(name)).unwrap_or(anchor)
}

/// The path from the root that a link in the file `from` leads to.
fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Links of `documents` that lead nowhere. `exists` knows the files and folders of the tree.
fn broken(documents: &BTreeMap<String, Document>, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (name, document) in documents {
        for link in &document.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { name.clone() } else { resolve(name, path) };
            let there = documents.get(&target);
            if there.is_none() && !exists(&target) {
                found.push(format!("{name}: {link}: there is no {target}"));
            } else if name.starts_with(BOOK) && !target.starts_with(BOOK) {
                found.push(format!("{name}: {link}: {target} is not in the book"));
            } else if !anchor.is_empty() && !there.is_some_and(|page| page.anchors.contains(anchor))
            {
                found.push(format!("{name}: {link}: {target} has no such heading"));
            }
        }
    }
    found
}

/// Pages of the book that its table of contents does not name, and the log where it does.
fn unlisted(documents: &BTreeMap<String, Document>) -> Vec<String> {
    let contents = documents.get(CONTENTS).map(|contents| &contents.links[..]).unwrap_or_default();
    let listed: BTreeSet<String> = contents.iter().map(|link| resolve(CONTENTS, link)).collect();
    let pages = documents.keys().filter(|name| name.starts_with(BOOK) && *name != CONTENTS);
    let missing = pages.filter(|name| *name != HISTORY && !listed.contains(*name));
    let missing = missing.map(|name| format!("{name}: not in {CONTENTS}"));
    let history = listed.contains(HISTORY).then(|| format!("{HISTORY}: in {CONTENTS}"));
    missing.chain(history).collect()
}

fn documents() -> BTreeMap<String, Document> {
    let pages = files().into_iter().filter(|file| file.name.ends_with(".md"));
    let pages = pages.filter(|file| !file.name.contains("/tests/golden/"));
    pages.map(|file| (file.name.clone(), read(&file.read()))).collect()
}

#[test]
fn links_lead_somewhere() {
    let files = files();
    let documents = documents();
    assert!(documents.len() > 10, "{} documents", documents.len());
    assert_none(broken(&documents, |target| exists(&files, target)));
}

#[test]
fn finds_a_broken_link() {
    let check = |name: &str, text: &str| {
        let other = read("# One two\n\n## `x`, _y_\n\n# One two\n\n<a id=\"e1\"></a>**Text**\n");
        let documents = BTreeMap::from([
            (String::from("docs/a/other.md"), other),
            (String::from(name), read(text)),
        ]);
        broken(&documents, |target| target == "docs/a/picture.svg" || target == "README.md").len()
    };
    let page = "docs/b/page.md";
    for good in [
        "[a](../a/other.md)",
        "[a](../a/other.md#one-two)",
        "[a](../a/other.md#one-two-1)",
        "[a](../a/other.md#x-y)",
        "[a](../a/other.md#e1)",
        "# Here\n[a](#here)",
        "![a](../a/picture.svg)",
        "[a](https://example.com/b)",
        "`[a](nowhere.md)`",
    ] {
        assert_eq!(check(page, good), 0, "{good}");
    }
    for bad in ["[a](other.md)", "[a](../a/other.md#three)", "[a](#here)", "[a](../../README.md)"] {
        assert_eq!(check(page, bad), 1, "{bad}");
    }
    assert_eq!(check("CONTRIBUTING.md", "[a](README.md) [b](docs/a/other.md#one-two)"), 0);
}

#[test]
fn pages_are_in_the_table_of_contents() {
    assert_none(unlisted(&documents()));
}

#[test]
fn finds_a_page_that_is_not_listed() {
    let documents = BTreeMap::from([
        (String::from(CONTENTS), read("- [a](a.md)\n- [b](b/c.md)")),
        (String::from("docs/a.md"), Document::default()),
        (String::from("docs/b/c.md"), Document::default()),
        (String::from("docs/d.md"), Document::default()),
        (String::from(HISTORY), Document::default()),
        (String::from("other.md"), Document::default()),
    ]);
    assert_eq!(unlisted(&documents), ["docs/d.md: not in docs/SUMMARY.md"]);
    let listed = BTreeMap::from([(String::from(CONTENTS), read("- [log](experiments/log.md)"))]);
    assert_eq!(unlisted(&listed), ["docs/experiments/log.md: in docs/SUMMARY.md"]);
}

/// Whether there is a file or folder at `target`, from the root.
fn exists(files: &[File], target: &str) -> bool {
    let inside = |name: &str| name.strip_prefix(target).is_some_and(|rest| rest.starts_with('/'));
    files.iter().any(|file| file.name == target || inside(&file.name))
}

/// Paths from the root that a document names. Those with a part to fill in, as `<family>.rs`, are left aside.
fn named_paths(text: &str) -> impl Iterator<Item = &str> {
    let ends = |c: char| c.is_whitespace() || "`()[]\"',;:|".contains(c);
    let words = text.split(ends).map(|word| word.trim_end_matches(['.', '/']));
    let in_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    words.filter(move |word| {
        FOLDERS.iter().any(|folder| word.starts_with(folder)) && word.chars().all(in_path)
    })
}

#[test]
fn paths_in_documents_exist() {
    let files = files();
    let is_page =
        |file: &&File| file.name.ends_with(".md") && !file.name.contains("/tests/golden/");
    let mut found = Vec::new();
    for page in files.iter().filter(is_page).filter(|file| file.name != HISTORY) {
        for (i, line) in page.read().lines().enumerate() {
            let gone = named_paths(line).filter(|path| !exists(&files, path));
            found.extend(gone.map(|path| format!("{}:{}: there is no {path}", page.name, i + 1)));
        }
    }
    assert_none(found);
}

#[test]
fn finds_a_path_that_a_document_names() {
    let text = "`crates/a/src/b.rs`, (tools/c/d.sh) and `crates/<family>.rs`, see docs/e/. \
                https://x/docs/f `docs/g/*.json` xdocs/h";
    let found: Vec<&str> = named_paths(text).collect();
    assert_eq!(found, ["crates/a/src/b.rs", "tools/c/d.sh", "docs/e"]);
}

/// Paths of pages of the book that `text` names.
fn mentioned(text: &str) -> impl Iterator<Item = &str> {
    let in_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let words = text.split(move |c| !in_path(c));
    words.filter(|word| word.starts_with(BOOK) && word.ends_with(".md"))
}

#[test]
fn pages_that_sources_name_exist() {
    let files = files();
    let names: BTreeSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let sources = files.iter().filter(|file| MENTIONS.iter().any(|end| file.name.ends_with(end)));
    let mut found = Vec::new();
    for file in sources.filter(|file| !file.name.starts_with("crates/xtask/")) {
        // Golden files and the like are not text.
        let text = std::fs::read(&file.path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let gone = mentioned(&text).filter(|page| !names.contains(page));
        found.extend(gone.map(|page| format!("{}: there is no {page}", file.name)));
    }
    assert_none(found);
}

#[test]
fn finds_a_page_that_a_source_names() {
    let found: Vec<&str> =
        mentioned("// `docs/a/b.md` and docs/c.md, mydocs/d.md, docs/e.rs").collect();
    assert_eq!(found, ["docs/a/b.md", "docs/c.md"]);
}

#[test]
fn the_readme_fits_two_screens() {
    let files = files();
    let readme = files.iter().find(|file| file.name == README).expect("a README").read();
    assert!(readme.lines().count() <= MAX_README_LINES, "{} lines", readme.lines().count());
    let wide = |line: &&str| line.chars().count() > MAX_README_COLUMNS;
    assert_none(readme.lines().filter(wide).map(String::from).collect());
}
