//! What the profile that all is tested in says of each crate.

use std::fs;

use crate::manifest::{entries, unquote};
use crate::tree::{assert_none, manifests, root};

/// What tests rely on: an overflow or a broken assumption ends them.
const CHECKS: [&str; 2] = ["debug-assertions = true", "overflow-checks = true"];

/// The value of a key, its tables joined by points.
fn value(manifest: &str, key: &str) -> Option<String> {
    let mut entries = entries(manifest).into_iter();
    entries.find(|(path, _)| path.join(".") == key).map(|(_, value)| value)
}

/// Checks that crates lack in the profile `ci`, where dependencies have none.
fn unchecked<'a>(workspace: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let lacking = |name: &str| {
        let settings = value(workspace, &format!("profile.ci.package.{name}")).unwrap_or_default();
        let lacks = CHECKS.into_iter().filter(|check| !settings.contains(check));
        lacks.map(|check| format!("profile.ci.package.{name}: write {check}")).collect::<Vec<_>>()
    };
    names.flat_map(lacking).collect()
}

#[test]
fn every_crate_is_tested_with_all_checks() {
    let name = |manifest: String| unquote(&value(&manifest, "package.name").expect("a name"));
    let names: Vec<String> = manifests().iter().map(|file| name(file.read())).collect();
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("the root manifest");
    assert_none(unchecked(&workspace, names.iter().map(String::as_str)));
}

#[test]
fn finds_a_crate_that_is_tested_without_a_check() {
    let both = "[profile.ci.package]\na = { debug-assertions = true, overflow-checks = true }\n";
    assert_eq!(unchecked(both, ["a"].into_iter()), Vec::<String>::new());
    assert_eq!(unchecked(both, ["b"].into_iter()).len(), 2);
    let one = both.replace("overflow-checks = true", "opt-level = 1");
    assert_eq!(unchecked(&one, ["a"].into_iter()).len(), 1);
}
