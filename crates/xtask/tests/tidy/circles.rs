//! No files of a crate import each other in a circle. A file that only passes names on (`pub use`)
//! is not one of a circle for that, and tests may use what they like.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

use crate::circles::graph::{Graph, circles};
use crate::circles::modules::Modules;
use crate::tree::{assert_none, root};

#[path = "circles/graph.rs"]
pub(crate) mod graph;
#[path = "circles/modules.rs"]
pub(crate) mod modules;
#[path = "circles/references.rs"]
pub(crate) mod references;

/// The imports between the files of a crate, by the names that are imported.
fn imports(source: &Path) -> Graph<PathBuf> {
    let modules = Modules::read(source);
    let mut graph: Graph<PathBuf> = BTreeMap::new();
    for module in modules.all() {
        for reference in &module.references {
            let Some(definition) = modules.definition(&module.path, reference) else { continue };
            if definition.file != module.file {
                let names = graph.entry((module.file.clone(), definition.file)).or_default();
                names.insert(definition.name);
            }
        }
    }
    graph
}

fn root_file(dir: &Path) -> Option<PathBuf> {
    ["src/lib.rs", "src/main.rs"].map(|name| dir.join(name)).into_iter().find(|file| file.is_file())
}

/// One line for each circle of a crate, with what ties it together.
fn describe(source: &Path) -> Vec<String> {
    let graph = imports(source);
    let dir = source.parent().expect("a source file is in a folder");
    let short = |file: &Path| file.strip_prefix(dir).unwrap_or(file).display().to_string();
    let line = |circle: BTreeSet<PathBuf>| {
        let inside =
            graph.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
        let ties: Vec<String> = inside
            .map(|((from, to), names)| {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                format!("{} imports {} of {}", short(from), names.join(", "), short(to))
            })
            .collect();
        format!("{}: a circle of {} files: {}", dir.display(), circle.len(), ties.join("; "))
    };
    circles(&graph).into_iter().map(line).collect()
}

/// The root files of all crates.
pub(crate) fn crate_sources() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("crates")).expect("the crates folder");
    let dir = |entry: std::io::Result<DirEntry>| entry.expect("an entry of the folder").path();
    let sources: Vec<PathBuf> = entries.map(dir).filter_map(|dir| root_file(&dir)).collect();
    assert!(sources.len() > 1, "no crates found");
    sources
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    assert_none(crate_sources().iter().flat_map(|source| describe(source)).collect());
}

/// Writes the files of a crate; the first is its root.
pub(crate) fn write_crate(files: &[(&str, &str)]) -> (PathBuf, PathBuf) {
    static N_MADE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let nth = N_MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("tidy-circles-{}-{nth}", std::process::id()));
    for (name, text) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder");
        fs::write(&path, text).expect("a file");
    }
    let source = dir.join(files[0].0);
    (dir, source)
}

fn n_circles(files: &[(&str, &str)]) -> usize {
    let (dir, source) = write_crate(files);
    let found = describe(&source);
    fs::remove_dir_all(dir).expect("the folder of this test");
    found.len()
}

#[test]
fn finds_circles_through_imports_paths_and_names_passed_on() {
    let root = "mod a; mod b;";
    let by_use = [("lib.rs", root), ("a.rs", "use crate::b::B; pub struct A(B);")];
    let back = ("b.rs", "pub struct B; fn f(_: super::a::A) {}");
    assert_eq!(n_circles(&[by_use[0], by_use[1], back]), 1);
    let passed_on = ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;");
    let a = ("a.rs", "use crate::B; pub struct A(B);");
    assert_eq!(
        n_circles(&[passed_on, a, ("b.rs", "pub struct B; use super::A; fn f(_: A) {}")]),
        1
    );
    let in_macro = ("b.rs", "pub struct B; fn f() { println!(\"{}\", super::a::N); }");
    assert_eq!(
        n_circles(&[
            by_use[0],
            ("a.rs", "use crate::b::B; pub const N: u8 = 0; fn f(_: B) {}"),
            in_macro
        ]),
        1
    );
    let nested = [("lib.rs", "mod a;"), ("a/mod.rs", "mod b; use b::B; pub struct A(B);")];
    assert_eq!(
        n_circles(&[nested[0], nested[1], ("a/b.rs", "use super::A; pub struct B; fn f(_: A) {}")]),
        1
    );
}

#[test]
fn neither_tests_nor_names_passed_on_make_a_circle() {
    let root = "mod a; mod b; pub use a::A; pub use b::B;";
    let one_way = ("a.rs", "use crate::b::B; pub struct A(B);");
    let tests = "pub struct B; #[cfg(test)] mod tests { use super::super::a::A; fn f(_: A) {} }";
    assert_eq!(n_circles(&[("lib.rs", root), one_way, ("b.rs", tests)]), 0);
    let passes_on =
        [("lib.rs", "mod a;"), ("a/mod.rs", "mod b; mod c; pub use b::B; pub use c::C;")];
    let c = ("a/c.rs", "use super::B; pub struct C(B);");
    assert_eq!(n_circles(&[passes_on[0], passes_on[1], ("a/b.rs", "pub struct B;"), c]), 0);
    let inline = "const N: u8 = 0; mod inner { use super::N; fn f() -> u8 { N } }";
    let above = ("a/mod.rs", "mod b; const N: u8 = 1; fn f() { b::g() }");
    let below = format!("{inline} pub fn g() {{}}");
    assert_eq!(n_circles(&[("lib.rs", "mod a;"), above, ("a/b.rs", &below)]), 0);
}
