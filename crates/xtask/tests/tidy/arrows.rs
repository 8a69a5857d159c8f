//! Which crate of the workspace may depend on which.

use std::collections::BTreeMap;
use std::fs;

use crate::manifest::{Kind, dependencies, entries, unquote, workspace_renames};
use crate::tree::{assert_none, manifests, root};

/// A crate, what it may depend on, and what its tests and examples may use besides.
struct Arrows(&'static str, &'static [&'static str], &'static [&'static str]);

/// A new arrow is a design change.
const ARROWS: &[Arrows] = &[
    Arrows("moeflux-core", &[], &[]),
    Arrows("moeflux-backend", &["moeflux-core"], &[]),
    Arrows("moeflux-residency", &["moeflux-backend", "moeflux-core"], &[]),
    Arrows("moeflux-wgpu", &["moeflux-residency", "moeflux-backend", "moeflux-core"], &[]),
    Arrows("moeflux-store", &["moeflux-core"], &[]),
    Arrows("moeflux-text", &["moeflux-core"], &[]),
    Arrows("moeflux-hub", &["moeflux-core"], &[]),
    Arrows("moeflux-image", &[], &[]),
    Arrows("moeflux-model", &["moeflux-store", "moeflux-backend", "moeflux-core"], &[]),
    Arrows(
        "moeflux-engine",
        &[
            "moeflux-model",
            "moeflux-text",
            "moeflux-store",
            "moeflux-backend",
            "moeflux-wgpu",
            "moeflux-image",
            "moeflux-core",
        ],
        &["moeflux-convert"],
    ),
    Arrows(
        "moeflux-convert",
        &["moeflux-engine", "moeflux-model", "moeflux-text", "moeflux-backend", "moeflux-core"],
        &[],
    ),
    Arrows("moeflux", &["moeflux-engine", "moeflux-text", "moeflux-core"], &[]),
    Arrows(
        "moeflux-c",
        &["moeflux", "moeflux-engine", "moeflux-text", "moeflux-store", "moeflux-core"],
        &[],
    ),
    Arrows("moeflux-server", &["moeflux", "moeflux-engine", "moeflux-text", "moeflux-core"], &[]),
    Arrows(
        "moeflux-cli",
        &[
            "moeflux-server",
            "moeflux",
            "moeflux-convert",
            "moeflux-engine",
            "moeflux-text",
            "moeflux-hub",
            "moeflux-store",
            "moeflux-demo-experts",
            "moeflux-core",
        ],
        &[],
    ),
    Arrows(
        "moeflux-python",
        &[
            "moeflux-cli",
            "moeflux-server",
            "moeflux",
            "moeflux-engine",
            "moeflux-text",
            "moeflux-hub",
            "moeflux-store",
            "moeflux-core",
        ],
        &[],
    ),
    Arrows("moeflux-demo-experts", &[], &[]),
    Arrows("xtask", &[], &[]),
];

fn wrong_arrows(name: &str, manifest: &str, renames: &BTreeMap<String, String>) -> Vec<String> {
    let Some(Arrows(_, allowed, in_tests)) = ARROWS.iter().find(|row| row.0 == name) else {
        return vec![format!("{name}: not in the table of arrows")];
    };
    dependencies(manifest, renames)
        .into_iter()
        .filter(|dependency| {
            dependency.package.starts_with("moeflux") || dependency.package == "xtask"
        })
        .filter(|dependency| {
            let package = dependency.package.as_str();
            let in_tests = dependency.kind == Kind::Dev && in_tests.contains(&package);
            !allowed.contains(&package) && !in_tests
        })
        .map(|dependency| {
            format!("{name}: must not depend on {} ({:?})", dependency.package, dependency.kind)
        })
        .collect()
}

fn package_name(manifest: &str) -> Option<String> {
    let name = entries(manifest).into_iter().find(|(path, _)| path == &["package", "name"]);
    name.map(|(_, value)| unquote(&value))
}

#[test]
fn arrows_point_one_way() {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("the root manifest");
    let renames = workspace_renames(&workspace);
    let mut found = Vec::new();
    for file in manifests() {
        let manifest = file.read();
        let name = package_name(&manifest).unwrap_or_else(|| panic!("{}: no name", file.name));
        found.extend(wrong_arrows(&name, &manifest, &renames));
    }
    assert_none(found);
}

#[test]
fn finds_an_arrow_that_points_back() {
    let none = BTreeMap::new();
    let back = "[dependencies]\nmoeflux-core.workspace = true\nmoeflux-engine.workspace = true";
    assert_eq!(wrong_arrows("moeflux-store", back, &none).len(), 1);
    let hidden = "[dev-dependencies]\ne = { package = \"moeflux-engine\", path = \"e\" }";
    assert_eq!(wrong_arrows("moeflux-core", hidden, &none).len(), 1);
    let renames = BTreeMap::from([("e".into(), "moeflux-engine".into())]);
    assert_eq!(
        wrong_arrows("moeflux-core", "[dependencies]\ne.workspace = true", &renames).len(),
        1
    );
    assert_eq!(wrong_arrows("moeflux-extra", "", &none).len(), 1);
    assert!(wrong_arrows("moeflux-engine", "[dependencies]\nserde = \"1\"", &none).is_empty());
}
