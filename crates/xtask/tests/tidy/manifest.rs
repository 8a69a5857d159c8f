//! Keys of a `Cargo.toml`, and the dependencies that it names, in every way that TOML lets it name them.

use std::collections::BTreeMap;

/// Where a dependency is listed: only tests and examples see those of `Dev`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Normal,
    Dev,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Dependency {
    pub(crate) kind: Kind,
    /// The package, which a rename hides behind another key.
    pub(crate) package: String,
}

/// The dependencies of one crate. `renames` are those of the workspace's own table.
pub(crate) fn dependencies(manifest: &str, renames: &BTreeMap<String, String>) -> Vec<Dependency> {
    let mut found: BTreeMap<(Kind, String), String> = BTreeMap::new();
    for (path, value) in entries(manifest) {
        let Some((kind, rest)) = dependency_path(&path) else { continue };
        let [key, rest @ ..] = rest else { continue };
        let inherited = renames.get(key).unwrap_or(key).clone();
        let package = found.entry((kind, key.clone())).or_insert(inherited);
        if let Some(name) = package_name(rest, &value) {
            *package = name;
        }
    }
    found.into_iter().map(|((kind, _), package)| Dependency { kind, package }).collect()
}

/// Key to package for the workspace's dependencies that are renamed.
pub(crate) fn workspace_renames(manifest: &str) -> BTreeMap<String, String> {
    entries(manifest)
        .into_iter()
        .filter_map(|(path, value)| {
            let ["workspace", "dependencies", key, rest @ ..] = &strs(&path)[..] else {
                return None;
            };
            let rest: Vec<String> = rest.iter().map(|arg| String::from(*arg)).collect();
            Some((String::from(*key), package_name(&rest, &value)?))
        })
        .collect()
}

fn strs(path: &[String]) -> Vec<&str> {
    path.iter().map(String::as_str).collect()
}

/// What follows `dependencies` in a path such as `target.'cfg(unix)'.dependencies.NAME`.
fn dependency_path(path: &[String]) -> Option<(Kind, &[String])> {
    let path = match path {
        [target, _, rest @ ..] if target == "target" => rest,
        _ => path,
    };
    let (table, rest) = path.split_first()?;
    match table.as_str() {
        "dependencies" | "build-dependencies" => Some((Kind::Normal, rest)),
        "dev-dependencies" => Some((Kind::Dev, rest)),
        _ => None,
    }
}

/// The `package` that a dependency's value gives, inline or as a key of its own.
fn package_name(rest: &[String], value: &str) -> Option<String> {
    if let [key] = rest {
        return (key == "package").then(|| unquote(value));
    }
    let inline = value.strip_prefix('{')?.strip_suffix('}')?;
    let fields = split_outside(inline, ',');
    let package =
        fields.iter().filter_map(|field| key_value(field)).find(|(key, _)| key == &["package"]);
    package.map(|(_, value)| unquote(&value))
}

/// Every key of the file with its full path, and the value's text.
pub(crate) fn entries(manifest: &str) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    let mut table = Vec::new();
    for statement in statements(manifest) {
        if let Some(header) = statement.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            let header = header.trim_start_matches('[').trim_end_matches(']');
            table = key_path(header);
            found.push((table.clone(), String::new()));
        } else if let Some((key, value)) = key_value(&statement) {
            found.push((table.iter().cloned().chain(key).collect(), value));
        }
    }
    found
}

/// Lines without comments; a value that goes on over several lines is one statement.
fn statements(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = String::new();
    for line in manifest.lines() {
        let code = split_outside(line, '#').swap_remove(0);
        open.push_str(code.trim());
        if depth(&open) == 0 {
            found.push(std::mem::take(&mut open));
        }
    }
    found.retain(|part| !part.is_empty());
    found
}

fn key_value(statement: &str) -> Option<(Vec<String>, String)> {
    let key = split_outside(statement, '=').swap_remove(0);
    let value = statement.get(key.len() + 1..)?;
    Some((key_path(&key), value.trim().to_string()))
}

fn key_path(key: &str) -> Vec<String> {
    split_outside(key, '.').iter().map(|part| unquote(part)).collect()
}

pub(crate) fn unquote(text: &str) -> String {
    text.trim().trim_matches(['"', '\'']).to_string()
}

/// Splits at `separator` where it stands in no string and in no bracket.
pub(crate) fn split_outside(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    scan(text, |c, depth| {
        if c == separator && depth == 0 {
            parts.push(String::new());
        } else {
            parts.last_mut().expect("there is always a last part").push(c);
        }
    });
    parts
}

fn depth(text: &str) -> usize {
    scan(text, |_, _| {})
}

/// Calls `each` with every character and how deep in brackets or a string it stands.
fn scan(text: &str, mut each: impl FnMut(char, usize)) -> usize {
    let (mut brackets, mut quote, mut escaped) = (0_usize, None, false);
    for c in text.chars() {
        match quote {
            Some(open) if c == open && !escaped => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == '[' || c == '{' => brackets += 1,
            None if c == ']' || c == '}' => brackets = brackets.saturating_sub(1),
            _ => {}
        }
        escaped = quote == Some('"') && c == '\\' && !escaped;
        each(c, brackets + usize::from(quote.is_some()));
    }
    brackets
}

#[test]
fn finds_a_dependency_however_it_is_written() {
    let manifest = r#"
        [package]
        name = "x" # [dependencies]
        [dependencies]
        a.workspace = true
        b = "1.0"
        c = { path = "../c", features = [
            "f", # not = "a key"
            "g = h",
        ] }
        "d" = { workspace = true }
        e2 = { package = "e", version = "1, # = {" }
        wide.workspace = true
        [dependencies.f]
        workspace = true
        [dependencies.g2]
        package = "g"
        [target.'cfg(not(target_os = "linux"))'.dependencies]
        h.workspace = true
        [build-dependencies]
        i = '1'
        [target."x86_64-unknown-linux-gnu".dev-dependencies]
        j = "1"
        [features]
        k = ["a"]
        [package.metadata.dependencies]
        l = "1"
    "#;
    let renames = workspace_renames(
        "[workspace.dependencies]\nwide = { package = \"narrow\", path = \"p\" }\nb = \"1\"",
    );
    let found = dependencies(manifest, &renames);
    let of = |kind| -> Vec<&str> {
        let mut names: Vec<&str> = found
            .iter()
            .filter(|dependency| dependency.kind == kind)
            .map(|dependency| dependency.package.as_str())
            .collect();
        names.sort_unstable();
        names
    };
    assert_eq!(of(Kind::Normal), ["a", "b", "c", "d", "e", "f", "g", "h", "i", "narrow"]);
    assert_eq!(of(Kind::Dev), ["j"]);
}
