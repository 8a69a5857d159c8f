//! Folders are floors: sibling modules do not use each other in a circle, and the `impl` blocks of a
//! type in other files than its own are not a hidden way to each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::circles::graph::{Graph, circles};
use crate::circles::modules::{Modules, Names};
use crate::circles::{crate_sources, write_crate};
use crate::tree::{assert_none, root};

/// Which sibling modules use each other, by the module that has them.
fn uses_of_siblings(modules: &Modules) -> BTreeMap<Names, Graph<String>> {
    let mut folders: BTreeMap<Names, Graph<String>> = BTreeMap::new();
    for module in modules.all() {
        for reference in &module.references {
            let Some(definition) = modules.definition(&module.path, reference) else { continue };
            let (from, to) = (&module.path, &definition.module);
            let n_common = from.iter().zip(to).take_while(|(from, to)| from == to).count();
            let (Some(from), Some(to)) = (from.get(n_common), to.get(n_common)) else { continue };
            if definition.file != module.file {
                let graph = folders.entry(module.path[..n_common].to_vec()).or_default();
                graph.entry((from.clone(), to.clone())).or_default().insert(definition.name);
            }
        }
    }
    folders
}

/// One text for each folder whose siblings use each other in circles, with what ties them together.
fn tangles(source: &Path) -> Vec<String> {
    let src = source.parent().expect("a source file is in a folder");
    let tangle = |(path, graph): (Names, Graph<String>)| {
        let found = circles(&graph);
        let is_tie = |from: &String, to: &String| {
            found.iter().any(|circle| circle.contains(from) && circle.contains(to))
        };
        let ties: Vec<String> = graph
            .iter()
            .filter(|((from, to), _)| is_tie(from, to))
            .map(|((from, to), names)| {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                format!("  {from} uses {} of {to}", names.join(", "))
            })
            .collect();
        let folder = name_of(&src.join(path.iter().collect::<PathBuf>()));
        (!ties.is_empty()).then(|| format!("{folder}: siblings in a circle:\n{}", ties.join("\n")))
    };
    uses_of_siblings(&Modules::read(source)).into_iter().filter_map(tangle).collect()
}

/// A path from the root of the tree, written with `/`.
fn name_of(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

/// The inherent methods of a type in one file, and which of its methods they call.
#[derive(Default)]
struct Half {
    methods: BTreeSet<String>,
    calls: BTreeSet<String>,
}

/// One text for each file that has methods of a type of another file and calls its others, or is called
/// by them.
fn split_impls(source: &Path) -> Vec<String> {
    let modules = Modules::read(source);
    let mut types: BTreeMap<(PathBuf, String), BTreeMap<PathBuf, Half>> = BTreeMap::new();
    for module in modules.all() {
        for block in &module.impls {
            let Some(definition) = modules.definition(&module.path, &block.of) else { continue };
            let files = types.entry((definition.file, definition.name)).or_default();
            let half = files.entry(module.file.clone()).or_default();
            half.methods.extend(block.methods.iter().cloned());
            half.calls.extend(block.calls.iter().cloned());
        }
    }
    let mut found = Vec::new();
    for ((home, name), files) in types {
        for (file, half) in files.iter().filter(|(file, _)| **file != home) {
            let others = files.iter().filter(|(other, _)| *other != file);
            let ties = |(other, its): (&PathBuf, &Half)| {
                let called = half.calls.intersection(&its.methods);
                let calling = its.calls.intersection(&half.methods);
                let other = name_of(other);
                let called = called.map(|method| format!("  calls {method} of {other}"));
                let calling = calling.map(|method| format!("  {method} called by {other}"));
                called.chain(calling).collect::<Vec<String>>()
            };
            let ties: Vec<String> = others.flat_map(ties).collect();
            if !ties.is_empty() {
                let file = name_of(file);
                found.push(format!("{file}: an impl of {name}:\n{}", ties.join("\n")));
            }
        }
    }
    found
}

#[test]
fn siblings_do_not_use_each_other_in_circles() {
    assert_none(crate_sources().iter().flat_map(|source| tangles(source)).collect());
}

#[test]
fn impls_of_a_type_do_not_call_each_other_across_files() {
    assert_none(crate_sources().iter().flat_map(|source| split_impls(source)).collect());
}

fn of_crate(files: &[(&str, &str)], check: fn(&Path) -> Vec<String>) -> Vec<String> {
    let (dir, source) = write_crate(files);
    let found = check(&source);
    fs::remove_dir_all(dir).expect("the folder of this test");
    found
}

#[test]
fn finds_circles_of_folders_whose_files_have_none() {
    let root = ("lib.rs", "mod a; mod b;");
    let low = ("a/mod.rs", "mod low; mod high; pub(crate) use low::Low;");
    let a = [("a/low.rs", "pub struct Low;"), ("a/high.rs", "use crate::b::B; fn f(_: B) {}")];
    let b = ("b.rs", "use crate::a::Low; pub struct B(Low);");
    let both = of_crate(&[root, low, a[0], a[1], b], tangles);
    let [ties] = &both[..] else { panic!("one folder") };
    assert!(ties.ends_with("  a uses B of b\n  b uses Low of a"), "{ties}");
    let one_way = of_crate(&[root, low, a[0], ("a/high.rs", ""), b], tangles);
    assert!(one_way.is_empty());
    let inner = of_crate(
        &[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod x; mod y;"),
            ("a/x/mod.rs", "mod low; mod high;"),
            ("a/x/low.rs", "pub struct L;"),
            ("a/x/high.rs", "use crate::a::y::Y; fn f(_: Y) {}"),
            ("a/y.rs", "pub struct Y(super::x::low::L);"),
        ],
        tangles,
    );
    let [ties] = &inner[..] else { panic!("one folder") };
    assert!(ties.contains("/a: siblings in a circle:\n  x uses Y of y"), "{ties}");
}

#[test]
fn finds_impls_that_call_each_other() {
    let root = ("lib.rs", "mod t; mod u;");
    let home = ("t.rs", "pub struct T; impl T { fn low(&self) {} }");
    let n_split = |there: &str| {
        let u = format!("use crate::t::T; impl T {{ fn own(&self) {{}} {there} }}");
        of_crate(&[root, home, ("u.rs", &u)], split_impls).len()
    };
    assert_eq!(n_split("fn high(&self) { self.own(); other.low() }"), 0);
    assert_eq!(n_split("fn high(&self) { self.low() }"), 1);
    assert_eq!(n_split("fn high(&self) { T::low(self) }"), 1);
    assert_eq!(n_split("fn high(&self) { [1].map(|_| Self::low(self)); }"), 1);
    assert_eq!(n_split("fn high(&self) { assert!(!self.low()); }"), 1);
    assert_eq!(n_split("fn high(&self) { assert!(x && { Self::low(self) }); }"), 1);
    let calls_up = ("t.rs", "pub struct T; impl T { fn low(&self) { self.own() } }");
    let u = ("u.rs", "use crate::t::T; impl T { fn own(&self) {} }");
    assert_eq!(of_crate(&[root, calls_up, u], split_impls).len(), 1);
    let of_a_trait =
        ("u.rs", "use crate::t::T; impl Clone for T { fn clone(&self) { self.low() } }");
    assert_eq!(of_crate(&[root, home, of_a_trait], split_impls).len(), 0);
}
