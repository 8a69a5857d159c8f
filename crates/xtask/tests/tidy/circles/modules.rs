//! The modules of a crate: what each defines, imports and mentions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, ImplItem, Item, UseTree};

use super::references::{references_of, self_calls_of};

/// Names from the root of the crate.
pub(crate) type Names = Vec<String>;

/// One module. Modules that are written in another one's file have that file.
pub(crate) struct Module {
    pub(crate) path: Names,
    pub(crate) file: PathBuf,
    defined: BTreeSet<String>,
    /// Where each imported name comes from, as written.
    imported: BTreeMap<String, Names>,
    /// Modules all of whose names are imported.
    globs: Vec<Names>,
    /// Paths in the module's code and in its imports, as written; without those that it passes on.
    pub(crate) references: Vec<Names>,
    pub(crate) impls: Vec<Impl>,
}

/// An inherent `impl` block.
pub(crate) struct Impl {
    /// The type, as written.
    pub(crate) of: Names,
    pub(crate) methods: BTreeSet<String>,
    /// Methods of `self` and functions of `Self` that it mentions.
    pub(crate) calls: BTreeSet<String>,
}

/// Where something is defined.
pub(crate) struct Definition {
    pub(crate) module: Names,
    pub(crate) file: PathBuf,
    pub(crate) name: String,
}

/// All modules of a crate but those of tests.
pub(crate) struct Modules(BTreeMap<Names, Module>);

/// Most imports that are followed to find where a name is defined.
const MAX_STEPS: usize = 16;

impl Modules {
    pub(crate) fn read(source: &Path) -> Modules {
        let mut modules = Modules(BTreeMap::new());
        let dir = source.parent().expect("a source file is in a folder").to_path_buf();
        modules.read_file(Vec::new(), source, &dir);
        modules
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Module> {
        self.0.values()
    }

    /// Reads a file, whose own modules are in `dir`.
    fn read_file(&mut self, path: Names, file: &Path, dir: &Path) {
        let text =
            fs::read_to_string(file).unwrap_or_else(|err| panic!("{}: {err}", file.display()));
        let parsed =
            syn::parse_file(&text).unwrap_or_else(|err| panic!("{}: {err}", file.display()));
        self.read_items(path, file, dir, parsed.items);
    }

    fn read_items(&mut self, path: Names, file: &Path, dir: &Path, items: Vec<Item>) {
        let mut module = Module {
            path: path.clone(),
            file: file.to_path_buf(),
            defined: BTreeSet::new(),
            imported: BTreeMap::new(),
            globs: Vec::new(),
            references: Vec::new(),
            impls: Vec::new(),
        };
        for item in items {
            if is_of_tests(attributes(&item)) {
                continue;
            }
            module.defined.extend(name_of(&item));
            match item {
                Item::Use(item) => {
                    let is_passed_on = !matches!(item.vis, syn::Visibility::Inherited);
                    module.import(&item.tree, Vec::new(), is_passed_on);
                }
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    let inner = [path.as_slice(), std::slice::from_ref(&name)].concat();
                    match item.content {
                        Some((_, items)) => self.read_items(inner, file, &dir.join(&name), items),
                        None => self.read_outer(inner, file, dir, &name, &item.attrs),
                    }
                }
                other => {
                    module.references.extend(references_of(&other));
                    module.impls.extend(inherent_impl(&other));
                }
            }
        }
        self.0.insert(path, module);
    }

    /// Reads a module that has a file of its own.
    fn read_outer(
        &mut self,
        path: Names,
        file: &Path,
        dir: &Path,
        name: &str,
        attrs: &[Attribute],
    ) {
        if let Some(given) = path_attribute(attrs) {
            let file = file.parent().expect("a source file is in a folder").join(given);
            let dir = file.with_extension("");
            return self.read_file(path, &file, &dir);
        }
        let inner = dir.join(name);
        let flat = dir.join(format!("{name}.rs"));
        let file = if flat.is_file() { flat } else { inner.join("mod.rs") };
        self.read_file(path, &file, &inner);
    }

    /// Where the thing is defined that a path of some module names; `None` for things of other
    /// crates, and for modules.
    pub(crate) fn definition(&self, module: &[String], path: &[String]) -> Option<Definition> {
        self.resolve(self.absolute(module, path)?, 0)
    }

    /// A path from the root of the crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" => self.absolute_of_parent(module, rest),
            _ => {
                let inner = [module, std::slice::from_ref(first)].concat();
                if self.0.contains_key(&inner) || self.0.get(module)?.defined.contains(first) {
                    return Some([module, path].concat());
                }
                let import = self.0.get(module)?.imported.get(first)?;
                // An import of itself would go on for ever: `use serde::serde`.
                let start =
                    (import.first() != Some(first)).then(|| self.absolute(module, import))??;
                Some([start.as_slice(), rest].concat())
            }
        }
    }

    fn absolute_of_parent(&self, module: &[String], rest: &[String]) -> Option<Names> {
        let (_, parent) = module.split_last()?;
        match rest.first().map(String::as_str) {
            Some("super") => self.absolute_of_parent(parent, &rest[1..]),
            _ => Some([parent, rest].concat()),
        }
    }

    fn resolve(&self, path: Names, n_steps: usize) -> Option<Definition> {
        if n_steps == MAX_STEPS {
            return None;
        }
        let n = (0..=path.len()).rev().find(|n| self.0.contains_key(&path[..*n]))?;
        let (module, rest) = (self.0.get(&path[..n])?, &path[n..]);
        let (name, more) = rest.split_first()?;
        if module.defined.contains(name) {
            return Some(Definition {
                module: module.path.clone(),
                file: module.file.clone(),
                name: name.clone(),
            });
        }
        let follow = |import: &Names, more: &[String]| {
            let start = self.absolute(&module.path, import)?;
            self.resolve([start.as_slice(), more].concat(), n_steps + 1)
        };
        match module.imported.get(name) {
            Some(import) => follow(import, more),
            None => module.globs.iter().find_map(|glob| follow(glob, rest)),
        }
    }
}

impl Module {
    fn import(&mut self, tree: &UseTree, mut before: Names, is_passed_on: bool) {
        let (name, path) = match tree {
            UseTree::Path(tree) => {
                before.push(tree.ident.to_string());
                return self.import(&tree.tree, before, is_passed_on);
            }
            UseTree::Group(group) => {
                let trees = group.items.iter();
                return trees.for_each(|tree| self.import(tree, before.clone(), is_passed_on));
            }
            UseTree::Glob(_) => return self.globs.push(before),
            UseTree::Name(name) if name.ident == "self" => {
                (before.last().cloned().unwrap_or_default(), before)
            }
            UseTree::Name(name) => {
                before.push(name.ident.to_string());
                (name.ident.to_string(), before)
            }
            UseTree::Rename(rename) => {
                before.push(rename.ident.to_string());
                (rename.rename.to_string(), before)
            }
        };
        if !is_passed_on {
            self.references.push(path.clone());
        }
        self.imported.insert(name, path);
    }
}

/// The methods and calls of an inherent `impl`, those of tests left out.
fn inherent_impl(item: &Item) -> Option<Impl> {
    let Item::Impl(item) = item else { return None };
    let syn::Type::Path(of) = &*item.self_ty else { return None };
    if item.trait_.is_some() {
        return None;
    }
    let of: Names = of.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    let (mut methods, mut calls) = (BTreeSet::new(), BTreeSet::new());
    for item in &item.items {
        if let ImplItem::Fn(method) = item
            && !is_of_tests(&method.attrs)
        {
            methods.insert(method.sig.ident.to_string());
            calls.extend(self_calls_of(method, of.last()?));
        }
    }
    Some(Impl { of, methods, calls })
}

fn is_of_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("cfg")
            && attr.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}

fn path_attribute(attrs: &[Attribute]) -> Option<String> {
    attrs.iter().filter(|attr| attr.path().is_ident("path")).find_map(|attr| {
        let syn::Expr::Lit(value) = &attr.meta.require_name_value().ok()?.value else {
            return None;
        };
        let syn::Lit::Str(text) = &value.lit else { return None };
        Some(text.value())
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Union(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

/// The name that an item defines; modules and imports define none.
fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(it) => &it.ident,
        Item::Enum(it) => &it.ident,
        Item::Fn(it) => &it.sig.ident,
        Item::Macro(it) => it.ident.as_ref()?,
        Item::Static(it) => &it.ident,
        Item::Struct(it) => &it.ident,
        Item::Trait(it) => &it.ident,
        Item::Type(it) => &it.ident,
        Item::Union(it) => &it.ident,
        _ => return None,
    };
    Some(ident.to_string())
}
