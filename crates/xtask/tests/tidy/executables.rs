//! How many programs the tests of a crate are: each is linked with all that the crate is built from.

use crate::manifest::entries;
use crate::tree::{File, assert_none, files, manifests};

/// Tests that need a process of their own, by crate and executable, and why.
const APART: &[(&str, &str)] = &[
    // It counts what the whole process allocates.
    ("moeflux-engine", "allocations"),
    ("moeflux-image", "memory"),
];

/// The crate and the name of a file's test executable, if cargo makes one of the file.
fn executable(path: &str) -> Option<(&str, &str)> {
    let (name, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    let file = rest.strip_prefix("tests/")?;
    let file = file.strip_suffix("/main.rs").or_else(|| file.strip_suffix(".rs"))?;
    (!file.contains('/')).then_some((name, file))
}

fn several<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut found = Vec::new();
    let mut first: Option<(&str, &str)> = None;
    for (crate_name, name) in paths.filter_map(executable) {
        if APART.contains(&(crate_name, name)) {
            continue;
        }
        match first.filter(|(other, _)| *other == crate_name) {
            Some((_, other)) => found.push(format!(
                "crates/{crate_name}/tests: {name} is an executable beside {other}: make it a module"
            )),
            None => first = Some((crate_name, name)),
        }
    }
    found
}

/// Whether a line of documentation begins an example that rustdoc compiles.
fn begins_example(line: &str) -> bool {
    let text = line.trim_start();
    let text = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"));
    let language = text.and_then(|text| text.trim_start().strip_prefix("```"));
    language.is_some_and(|language| {
        let words = ["", "rust", "no_run", "should_panic", "compile_fail", "ignore"];
        let first = language.split([',', ' ']).next().unwrap_or_default();
        words.contains(&first) || first.starts_with("edition")
    })
}

/// Lines that begin examples; those that end a block look like some that begin one.
fn has_examples(source: &str) -> bool {
    let mut is_inside = false;
    let is_fence = |line: &str| {
        let text = line.trim_start();
        let text = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"));
        text.is_some_and(|text| text.trim_start().starts_with("```"))
    };
    source.lines().filter(|line| is_fence(line)).any(|line| {
        is_inside = !is_inside;
        is_inside && begins_example(line)
    })
}

/// Without examples, rustdoc need not read the crate; with some, they are to be run.
fn misled(manifest: &str, has_examples: bool) -> Option<&'static str> {
    let off = (vec![String::from("lib"), String::from("doctest")], String::from("false"));
    match (entries(manifest).contains(&off), has_examples) {
        (true, true) => Some("its documentation has examples: take doctest = false away"),
        (false, false) => Some("its documentation has no examples: write doctest = false in [lib]"),
        _ => None,
    }
}

#[test]
fn tests_of_a_crate_are_one_executable() {
    let files = files();
    assert_none(several(files.iter().map(|file| file.name.as_str())));
    for (crate_name, name) in APART {
        let is_there = |file: &File| executable(&file.name) == Some((crate_name, name));
        assert!(files.iter().any(is_there), "{crate_name} has no executable {name}");
    }
}

#[test]
fn finds_a_second_executable() {
    let check = |paths: &[&str]| several(paths.iter().copied()).len();
    assert_eq!(check(&["crates/a/tests/it/main.rs", "crates/a/tests/it/b.rs"]), 0);
    assert_eq!(check(&["crates/a/tests/it/main.rs", "crates/b/tests/it/main.rs"]), 0);
    assert_eq!(check(&["crates/a/tests/b.rs", "crates/a/tests/it/main.rs"]), 1);
    assert_eq!(check(&["crates/a/tests/b.rs", "crates/a/tests/c.rs", "crates/a/tests/d.rs"]), 2);
    assert_eq!(check(&["crates/a/src/tests/b.rs", "crates/a/src/tests/c.rs"]), 0);
    let apart = "crates/moeflux-engine/tests/allocations.rs";
    assert_eq!(check(&[apart, "crates/moeflux-engine/tests/it/main.rs"]), 0);
}

#[test]
fn examples_of_documentation_are_run_where_there_are_any() {
    let files = files();
    let mut found = Vec::new();
    for manifest in manifests() {
        let src = manifest.name.replace("Cargo.toml", "src/");
        let is_source = |file: &&File| file.name.starts_with(&src) && file.name.ends_with(".rs");
        // Programs have no examples, nor have crates without code.
        if !files.iter().any(|file| file.name == format!("{src}lib.rs")) {
            continue;
        }
        let has_examples = files.iter().filter(is_source).any(|file| has_examples(&file.read()));
        let fault = misled(&manifest.read(), has_examples);
        found.extend(fault.map(|fault| format!("{}: {fault}", manifest.name)));
    }
    assert_none(found);
}

#[test]
fn tells_examples_from_other_blocks() {
    assert!(has_examples("/// ```\n/// f();\n/// ```\n"));
    assert!(has_examples("    //! ```no_run\n    //! f();\n    //! ```\n"));
    assert!(has_examples("/// ```text\n/// x\n/// ```\n/// ```rust,ignore\n/// ```\n"));
    assert!(!has_examples("/// ```text\n/// x\n/// ```\n// ```\n"));
    let (on, off) = ("[package]\n", "[package]\n[lib]\ndoctest = false\n");
    assert!(misled(on, true).is_none() && misled(off, false).is_none());
    assert!(misled(on, false).is_some() && misled(off, true).is_some());
}
