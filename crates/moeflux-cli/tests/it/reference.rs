//! The pages of `docs/reference/` that are made from the binary: its help, the description of its API, and
//! its metrics. With `MOEFLUX_WRITE_DOCS=1` these tests write the pages in place of comparing them. Command
//! lines in other documents are checked against the help.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::server::Server;
use crate::common::{Copy, finish, moeflux};
use serde_json::{Map, Value};

/// Lines around the part of a page that is made here.
const BEGIN: &str = "<!-- made from the binary: MOEFLUX_WRITE_DOCS=1 cargo test -p moeflux-cli --test it reference:: -->\n";
const END: &str = "<!-- end -->\n";

fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name)
}

/// Compares what is between the marks of a page with `made`, or puts it there.
#[track_caller]
fn check_page(name: &str, made: &str) {
    let path = page(name);
    let text = fs::read_to_string(&path).unwrap();
    let parts = text.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?)));
    let (head, (kept, tail)) =
        parts.unwrap_or_else(|| panic!("{name}: {BEGIN} and {END} are missing"));
    if std::env::var_os("MOEFLUX_WRITE_DOCS").is_some_and(|flag| flag == "1") {
        fs::write(&path, format!("{head}{BEGIN}{made}{END}{tail}")).unwrap();
        return;
    }
    let differs = kept.lines().zip(made.lines()).find(|(kept, made)| kept != made);
    assert!(
        kept == made,
        "docs/reference/{name} is not current: {differs:?}; write it with \
         MOEFLUX_WRITE_DOCS=1 cargo test -p moeflux-cli --test it reference::"
    );
}

/// The help of the whole program, or of one command, at a fixed width.
fn help(command: Option<&str>) -> String {
    let arguments: Vec<&str> = command.into_iter().chain(["--help"]).collect();
    finish(moeflux(&arguments).env("COLUMNS", "100")).0
}

/// The commands of the overview, in its order.
fn commands(overview: &str) -> Vec<&str> {
    let lines = overview.lines().take_while(|line| *line != "Examples:");
    lines.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next()).collect()
}

#[test]
fn the_page_of_commands_is_current() {
    let overview = help(None);
    let mut made = format!("\n```text\n{}\n```\n", overview.trim_end());
    let names = commands(&overview);
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        // Trailing spaces are how clap fills lines.
        let text = help(Some(name));
        let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
        let _ = write!(made, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"));
    }
    made.push('\n');
    check_page("cli.md", &made);
}

/// Markdown files below `folder`.
fn documents(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let inner = folders.iter().flat_map(|folder| documents(folder));
    let files = files.into_iter().filter(|file| file.extension().is_some_and(|end| end == "md"));
    files.chain(inner).collect()
}

/// The words of each `moeflux` command line in the code blocks of a document.
fn command_lines(text: &str) -> Vec<Vec<&str>> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if let Some(rest) = line.strip_prefix("moeflux ").filter(|_| is_code) {
            let ends = ["#", "|", "&&", "--", ">", "2>&1"];
            found.push(rest.split_whitespace().take_while(|word| !ends.contains(word)).collect());
        }
    }
    found
}

#[test]
fn command_lines_in_documents_are_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = documents(&root.join("docs"));
    pages.extend(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
    // The quick start shows mistakes, and `tools/docs/transcripts.sh` runs its commands.
    let unchecked = ["quick-start.md", "cli.md", "log.md"];
    pages.retain(|page| !unchecked.iter().any(|name| page.ends_with(name)));
    let mut helps = std::collections::BTreeMap::new();
    let mut n_lines = 0;
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        for words in command_lines(&text) {
            let (name, rest) = words.split_first().unwrap();
            let help = helps.entry(name.to_string()).or_insert_with(|| help(Some(name)));
            for flag in rest.iter().filter(|word| word.starts_with('-') && word.len() > 1) {
                let flag = flag.split('=').next().unwrap();
                let known = help.split(|c: char| c.is_whitespace() || c == ',');
                assert!(
                    known.into_iter().any(|word| word == flag),
                    "{}: moeflux {name} has no {flag}",
                    page.display()
                );
            }
            n_lines += 1;
        }
    }
    assert!(n_lines > 20, "{n_lines} command lines");
}

#[test]
fn the_pages_of_the_server_are_current() {
    let demo = Copy::of_demo();
    let keys = demo.path().join("keys.json");
    let key = finish(moeflux(&["keys", "add", "anna", "--keys"]).arg(&keys)).0;
    let key = format!("x-api-key: {}", key.trim_end());
    let keys = keys.to_str().unwrap();
    let flags = ["--model-name", "demo", "--ctx", "512", "--keys", keys];
    let server = Server::start_with(demo.path(), &flags);
    let api: Value = serde_json::from_str(&server.get_with("/openapi.json", &key)).unwrap();
    check_page("http-api.md", &api_page(&api));
    // Series with a key are there when it was used.
    let asked =
        serde_json::json!({"max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(server.post_with("/v1/chat/completions", &key, &asked).0, 200);
    let metrics = server.get_with("/metrics", &key);
    check_page("metrics.md", &metrics_table(&metrics));
    check_dashboard(&metrics);
}

/// All metrics that the dashboard names are there. Histograms have series of their own names.
fn check_dashboard(metrics: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/grafana/moeflux.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let types: Vec<(&str, &str)> = types.collect();
    let is_there = |name: &str| {
        types.iter().any(|(metric, kind)| match *kind {
            "histogram" => ["_bucket", "_sum", "_count"]
                .iter()
                .any(|end| name.strip_suffix(end) == Some(metric)),
            _ => name == *metric,
        })
    };
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let queries = variables.filter_map(|variable| variable["definition"].as_str());
    let mut n_named = 0;
    for text in targets.map(|target| target["expr"].as_str().unwrap()).chain(queries) {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in words.filter(|word| word.starts_with("moeflux_")) {
            assert!(is_there(name), "tools/grafana/moeflux.json: there is no {name}");
            n_named += 1;
        }
    }
    assert!(n_named > 20, "{n_named} names");
}

/// Names, types and meanings of the metrics.
fn metrics_table(text: &str) -> String {
    let mut made = String::from("\n| metric | type | meaning |\n|---|---|---|\n");
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map(|(_, help)| help.trim_end_matches('.'));
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let _ = writeln!(made, "| `{name}` | {kind} | {} |", help.take().unwrap_or_default());
        }
    }
    assert!(made.contains("moeflux_expert_hits"), "{made}");
    made.push('\n');
    made
}

fn object<'a>(value: &'a Value, key: &str) -> &'a Map<String, Value> {
    value[key].as_object().unwrap_or_else(|| panic!("{key} is no object in {value}"))
}

/// Every path, then every type that they name.
fn api_page(api: &Value) -> String {
    let mut made = String::from("\n## Paths\n");
    for (path, methods) in object(api, "paths") {
        for (method, operation) in methods.as_object().unwrap() {
            let _ = write!(made, "\n### {} `{path}`\n\n", method.to_uppercase());
            made.push_str(&operation_text(operation));
        }
    }
    made.push_str("\n## Types\n");
    for (name, schema) in object(&api["components"], "schemas") {
        let _ = write!(made, "\n### {name}\n\n");
        made.push_str(&schema_text(schema));
    }
    made.push('\n');
    made
}

fn operation_text(operation: &Value) -> String {
    let mut text = format!("{}.\n\n", operation["summary"].as_str().unwrap());
    let request = &operation["requestBody"]["content"]["application/json"]["schema"];
    if !request.is_null() {
        let _ = writeln!(text, "- Request: {}", kind(request));
    }
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    for field in parameters.filter(|field| field["in"] == "query") {
        let (name, about) =
            (field["name"].as_str().unwrap(), field["description"].as_str().unwrap());
        let _ = writeln!(text, "- Query, `{name}`: {}. {about}", kind(&field["schema"]));
    }
    let responses = object(operation, "responses");
    for (mime, content) in object(&responses["200"], "content") {
        let shape = if mime == "text/event-stream" {
            String::from("server-sent events, where the request has `stream`")
        } else {
            kind(&content["schema"])
        };
        let _ = writeln!(text, "- Answer, `{mime}`: {shape}");
    }
    let refused: Vec<&str> =
        responses.keys().map(String::as_str).filter(|status| *status != "200").collect();
    if !refused.is_empty() {
        let _ = writeln!(text, "- Errors: {}", refused.join(", "));
    }
    text
}

/// What a schema is, and its fields or values.
fn schema_text(schema: &Value) -> String {
    let mut text = String::new();
    if let Some(about) = schema["description"].as_str() {
        let _ = write!(text, "{}\n\n", one_line(about));
    }
    let Some(fields) = schema["properties"].as_object() else {
        let _ = writeln!(text, "{}", kind(schema));
        return text;
    };
    let required: Vec<&Value> = schema["required"].as_array().into_iter().flatten().collect();
    text.push_str("| field | type | meaning |\n|---|---|---|\n");
    for (name, field) in fields {
        let needed = if required.iter().any(|field| *field == name) { ", required" } else { "" };
        let about = field["description"].as_str().map(one_line).unwrap_or_default();
        let _ = writeln!(text, "| `{name}` | {}{needed} | {about} |", kind(field));
    }
    text
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// A schema in a few words; types with names are links to them.
fn kind(schema: &Value) -> String {
    if let Some(target) = schema["$ref"].as_str() {
        let name = target.rsplit('/').next().unwrap();
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = schema["enum"].as_array() {
        return joined(values.iter().map(|value| format!("`{value}`")));
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        if let Some(parts) = schema[key].as_array() {
            return joined(parts.iter().map(kind));
        }
    }
    match &schema["type"] {
        Value::Array(names) => joined(names.iter().map(|name| one_kind(name.as_str(), schema))),
        name => one_kind(name.as_str(), schema),
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = Vec::new();
    for part in parts {
        if !all.contains(&part) {
            all.push(part);
        }
    }
    all.join(" or ")
}

fn one_kind(name: Option<&str>, schema: &Value) -> String {
    let limits = |low: &str, high: &str| match (&schema[low], &schema[high]) {
        (Value::Null, Value::Null) => String::new(),
        (low, Value::Null) => format!(" from {low}"),
        (Value::Null, high) => format!(" up to {high}"),
        (low, high) => format!(" from {low} to {high}"),
    };
    match name {
        Some("array") if !schema["items"].is_null() => {
            format!("list of {}", kind(&schema["items"]))
        }
        Some("array") => String::from("list"),
        Some(name @ ("integer" | "number")) => format!("{name}{}", limits("minimum", "maximum")),
        Some(name) => name.to_owned(),
        None => String::from("anything"),
    }
}
