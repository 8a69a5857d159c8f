//! What crates.io asks of a crate's manifest, and what all crates of the workspace share.

use std::collections::BTreeMap;
use std::fs;

use crate::manifest::{entries, split_outside, unquote};
use crate::tree::{assert_none, manifests, root};

/// The categories of crates.io that the crates are in: it knows no others than those of its list.
const CATEGORIES: &[&str] = &[
    "caching",
    "command-line-utilities",
    "filesystem",
    "hardware-support",
    "network-programming",
    "parser-implementations",
    "science",
    "text-processing",
    "web-programming::http-server",
];
const MAX_KEYWORDS: usize = 5;
const MAX_KEYWORD_CHARS: usize = 20;
/// Longer ones are cut in lists of search results.
const MAX_DESCRIPTION_CHARS: usize = 150;
const INHERITED: &[&str] = &["version", "edition", "rust-version", "license"];
const LICENCES: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT"];

type Keys = BTreeMap<String, String>;

/// Keys with their tables, joined by points, and values as they are written.
fn keys(manifest: &str) -> Keys {
    entries(manifest).into_iter().map(|(path, value)| (path.join("."), value)).collect()
}

fn list(value: &str) -> Vec<String> {
    let inner = value.trim_start_matches('[').trim_end_matches(']');
    let items = split_outside(inner, ',');
    items.iter().map(|item| unquote(item)).filter(|item| !item.is_empty()).collect()
}

/// What keeps a crate from being published, or makes it hard to find.
fn faults(manifest: &str) -> Vec<String> {
    let keys = keys(manifest);
    let value = |key: &str| keys.get(&format!("package.{key}")).map_or("", String::as_str);
    let mut found = Vec::new();
    for key in INHERITED {
        if value(&format!("{key}.workspace")) != "true" {
            found.push(format!("{key}: write {key}.workspace = true"));
        }
    }
    if value("publish") == "false" {
        return found;
    }
    let description = unquote(value("description"));
    if description.is_empty() || description.ends_with('.') {
        found.push(String::from("description: write one, a phrase without a full stop"));
    }
    if description.chars().count() > MAX_DESCRIPTION_CHARS {
        found.push(format!("description: longer than {MAX_DESCRIPTION_CHARS} characters"));
    }
    found.extend(keyword_faults(&list(value("keywords"))));
    let categories = list(value("categories"));
    if categories.is_empty() {
        found.push(String::from("categories: name at least one"));
    }
    let unknown = categories.iter().filter(|category| !CATEGORIES.contains(&category.as_str()));
    found.extend(unknown.map(|category| format!("categories: {category} is not in the list")));
    if value("include").is_empty() && value("include.workspace") != "true" {
        found.push(String::from("include: say what the package holds"));
    }
    found
}

fn keyword_faults(keywords: &[String]) -> Vec<String> {
    let is_good = |word: &String| {
        word.len() <= MAX_KEYWORD_CHARS
            && word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    let mut found = Vec::new();
    if keywords.is_empty() || keywords.len() > MAX_KEYWORDS {
        found.push(format!("keywords: name 1 to {MAX_KEYWORDS}"));
    }
    let bad = keywords.iter().filter(|word| !is_good(word));
    found.extend(bad.map(|word| format!("keywords: {word}: write a-z, 0-9 and -, at most 20")));
    found
}

/// Crates of the workspace that others cannot depend on once they are published.
fn loose_versions(workspace: &str) -> Vec<String> {
    let version = keys(workspace).remove("workspace.package.version").unwrap_or_default();
    let exact = format!("version = \"={}\"", unquote(&version));
    let is_own = |(key, value): &(String, String)| {
        key.starts_with("workspace.dependencies.") && value.contains("path = ")
    };
    let own = keys(workspace).into_iter().filter(is_own);
    own.filter(|(_, value)| !value.contains(&exact))
        .map(|(key, _)| format!("{key}: write {exact}"))
        .collect()
}

#[test]
fn crates_can_be_published() {
    let mut found = Vec::new();
    for file in manifests() {
        let manifest = file.read();
        found.extend(faults(&manifest).into_iter().map(|fault| format!("{}: {fault}", file.name)));
        if manifest.contains("publish = false") {
            continue;
        }
        let dir = file.path.parent().expect("a manifest is in a folder");
        for licence in LICENCES {
            let original = fs::read(root().join(licence)).expect(licence);
            if fs::read(dir.join(licence)).ok() != Some(original) {
                found.push(format!("{}: link {licence} to that of the root", file.name));
            }
        }
        if !dir.join("README.md").is_file() {
            found.push(format!("{}: there is no README.md", file.name));
        }
    }
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("the root manifest");
    found.extend(loose_versions(&workspace));
    assert_none(found);
}

#[test]
fn finds_a_crate_that_cannot_be_published() {
    let good = r#"
        [package]
        name = "a"
        version.workspace = true
        edition.workspace = true
        rust-version.workspace = true
        license.workspace = true
        description = "Reads files"
        keywords = ["llm", "direct-io"]
        categories = ["filesystem"]
        include.workspace = true
    "#;
    assert_eq!(faults(good), Vec::<String>::new());
    for (right, wrong) in [
        ("version.workspace = true", "version = \"0.1.0\""),
        ("license.workspace = true", ""),
        ("\"Reads files\"", "\"Reads files.\""),
        ("description", "descriptions"),
        ("\"direct-io\"", "\"Direct IO\""),
        ("\"direct-io\"", "\"a-word-of-21-letters-x\""),
        ("\"direct-io\"", "\"b\", \"c\", \"d\", \"e\", \"f\""),
        ("[\"llm\", \"direct-io\"]", "[]"),
        ("[\"filesystem\"]", "[\"files\"]"),
        ("[\"filesystem\"]", "[]"),
        ("include.workspace = true", ""),
    ] {
        let manifest = good.replacen(right, wrong, 1);
        assert_eq!(faults(&manifest).len(), 1, "{wrong}: {:?}", faults(&manifest));
    }
    let private = good.replace("description", "publish = false\ndescription");
    assert_eq!(faults(&private.replace("keywords", "words")), Vec::<String>::new());
}

#[test]
fn finds_a_version_that_is_not_exact() {
    let head =
        "[workspace.package]\nversion = \"1.2.0\"\n[workspace.dependencies]\nserde = \"1\"\n";
    let check = |line: &str| loose_versions(&format!("{head}{line}")).len();
    assert_eq!(check("a = { version = \"=1.2.0\", path = \"a\" }"), 0);
    assert_eq!(check("a = { version = \"1.2.0\", path = \"a\" }"), 1);
    assert_eq!(check("a = { path = \"a\" }"), 1);
}
