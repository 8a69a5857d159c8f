//! The header is what cbindgen writes, and the pages name what there is.

use std::fs;
use std::path::{Path, PathBuf};

use cbindgen::{Builder, Config};
use moeflux_core::OptionId;

/// In the order of the header.
const SOURCES: &[&str] = &[
    "status.rs",
    "error.rs",
    "failure.rs",
    "text.rs",
    "options.rs",
    "request.rs",
    "progress.rs",
    "model.rs",
    "answer.rs",
    "session.rs",
];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn written() -> String {
    let config = Config::from_file(here().join("cbindgen.toml")).expect("the configuration");
    let builder = SOURCES.iter().fold(Builder::new().with_config(config), |builder, source| {
        builder.with_src(here().join("src").join(source))
    });
    let mut bytes = Vec::new();
    builder.generate().expect("the sources parse").write(&mut bytes);
    String::from_utf8(bytes).expect("the header is UTF-8")
}

fn committed() -> PathBuf {
    here().join("include/moeflux.h")
}

#[test]
fn the_header_is_what_the_sources_say() {
    let written = written();
    if std::env::var_os("MOEFLUX_WRITE_DOCS").is_some() {
        fs::write(committed(), &written).expect("the header can be written");
    }
    let found = fs::read_to_string(committed()).expect("the header is there");
    assert!(
        found == written,
        "include/moeflux.h differs: MOEFLUX_WRITE_DOCS=1 cargo test -p moeflux-c writes it"
    );
}

/// Names of exported functions in the sources.
fn exported() -> Vec<String> {
    let mut names = Vec::new();
    for file in fs::read_dir(here().join("src")).expect("the sources") {
        let text = fs::read_to_string(file.expect("a source").path()).expect("a source is UTF-8");
        for line in text.lines().filter(|line| line.contains("extern \"C\" fn moeflux_")) {
            let name = line.split("fn ").nth(1).and_then(|rest| rest.split('(').next());
            names.push(name.expect("a function has a name").to_owned());
        }
    }
    names
}

#[test]
fn every_exported_function_is_in_the_header() {
    let header = written();
    let names = exported();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
}

/// Names in the table of settings of a source.
fn settings(source: &str) -> Vec<String> {
    let text = fs::read_to_string(here().join("src").join(source)).expect("a source");
    let names = text.split("name: \"").skip(1).filter_map(|rest| rest.split('"').next());
    names.map(str::to_owned).collect()
}

/// Errors of the engine name options by their ids, which callers must be able to set.
#[test]
fn every_option_that_errors_name_can_be_set() {
    use OptionId::*;
    let options = [
        Activations,
        AllowMissingExperts,
        CheckpointBytes,
        Chunk,
        Ctx,
        Device,
        DeviceCache,
        ExpertCache,
        ExpertIo,
        ExpertsPerToken,
        Isa,
        KvType,
        PromptCacheSize,
        PromptMemory,
        RecordRouting,
        RowCache,
        Sessions,
        Threads,
        Tools,
        ToolChoice,
        Format,
        Thinking,
        Expected,
        Temperature,
        TopP,
        MinP,
        RepeatPenalty,
    ];
    let names = [settings("options.rs"), settings("request.rs")].concat();
    for option in options {
        assert!(
            names.iter().any(|name| name == option.name()),
            "no setter takes {}",
            option.name()
        );
    }
}

#[test]
fn the_guide_names_every_option_and_every_part_of_a_request() {
    let guide = fs::read_to_string(here().join("../../docs/guide/c.md")).expect("the guide");
    for source in ["options.rs", "request.rs"] {
        let names = settings(source);
        assert!(names.len() > 15, "{source}: {names:?}");
        for name in names {
            assert!(guide.contains(&format!("| `{name}` |")), "the guide does not name {name}");
        }
    }
}
