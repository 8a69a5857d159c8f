//! A family is one folder: no other file names it, but for the list of families.

use std::collections::BTreeSet;

use crate::lexer::is_word;
use crate::tree::{File, assert_none, files};

/// Where every family has a folder of its name.
const FOLDER: &str = "crates/moeflux-model/src/families/";

/// The list of families.
const LIST: &str = "crates/moeflux-model/src/families/mod.rs";

/// Files that name families of other folders. The list only shrinks.
const NAMING: &[&str] = &[
    "crates/moeflux-cli/tests/it/bad_files.rs",
    "crates/moeflux-cli/tests/it/bad_input.rs",
    "crates/moeflux-cli/tests/it/bench.rs",
    "crates/moeflux-cli/tests/it/checkpoints.rs",
    "crates/moeflux-cli/tests/it/gpu.rs",
    "crates/moeflux-cli/tests/it/hostile_mutations.rs",
    "crates/moeflux-cli/tests/it/hub.rs",
    "crates/moeflux-cli/tests/it/keeping.rs",
    "crates/moeflux-cli/tests/it/models.rs",
    "crates/moeflux-cli/tests/it/results.rs",
    "crates/moeflux-cli/tests/it/stand_ins.rs",
    "crates/moeflux-cli/tests/it/tool_loops.rs",
    "crates/moeflux-convert/src/pack/tests/small_floats.rs",
    "crates/moeflux-convert/src/synth/tests.rs",
    "crates/moeflux-convert/src/verify/tests.rs",
    "crates/moeflux-engine/src/drafting/mtp/tests.rs",
    "crates/moeflux-engine/src/engine/lookahead_tests.rs",
    "crates/moeflux-engine/src/session/tests.rs",
    "crates/moeflux-engine/src/vision/processor/tests.rs",
    "crates/moeflux-engine/tests/allocations.rs",
    "crates/moeflux-engine/tests/it/cases.rs",
    "crates/moeflux-engine/tests/it/converted.rs",
    "crates/moeflux-engine/tests/it/converted/keys.rs",
    "crates/moeflux-engine/tests/it/damaged_weights.rs",
    "crates/moeflux-engine/tests/it/embedded/mod.rs",
    "crates/moeflux-engine/tests/it/embeddings.rs",
    "crates/moeflux-engine/tests/it/gpu/experts.rs",
    "crates/moeflux-engine/tests/it/mmproj.rs",
    "crates/moeflux-engine/tests/it/mmproj/file.rs",
    "crates/moeflux-engine/tests/it/packing.rs",
    "crates/moeflux-engine/tests/it/packing/fp8.rs",
    "crates/moeflux-engine/tests/it/pictures.rs",
    "crates/moeflux-engine/tests/it/prepared.rs",
    "crates/moeflux-engine/tests/it/rows.rs",
    "crates/moeflux-engine/tests/it/same_bits.rs",
    "crates/moeflux-engine/tests/it/scheduler.rs",
    "crates/moeflux-engine/tests/it/scheduler/displaced.rs",
    "crates/moeflux-engine/tests/it/seeing.rs",
    "crates/moeflux-engine/tests/it/sessions.rs",
    "crates/moeflux-engine/tests/it/sessions/faults.rs",
    "crates/moeflux-engine/tests/it/sessions/windows.rs",
    "crates/moeflux-engine/tests/it/wrapped.rs",
    "crates/moeflux-model/src/families/bailing_moe/tests.rs",
    "crates/moeflux-model/src/families/bailing_moe_v2/gguf.rs",
    "crates/moeflux-model/src/families/bailing_moe_v2/mod.rs",
    "crates/moeflux-model/src/families/bailing_moe_v2/shapes.rs",
    "crates/moeflux-model/src/families/deepseek_v3/tests.rs",
    "crates/moeflux-model/src/families/deepseek_v32/shapes.rs",
    "crates/moeflux-model/src/families/glm4_moe_lite/mod.rs",
    "crates/moeflux-model/src/families/glm4_moe_lite/shapes.rs",
    "crates/moeflux-model/src/families/glm4v_moe/gguf.rs",
    "crates/moeflux-model/src/families/glm4v_moe/shapes.rs",
    "crates/moeflux-model/src/families/glm_moe_dsa/shapes.rs",
    "crates/moeflux-model/src/families/keys_tests.rs",
    "crates/moeflux-model/src/families/qwen3_next/shapes.rs",
    "crates/moeflux-model/src/families/qwen3_vl_moe/shapes.rs",
    "crates/moeflux-model/src/families/refusals.rs",
    "crates/moeflux-model/tests/gguf.rs",
    "crates/moeflux-model/tests/gguf/hostile.rs",
    "crates/moeflux-model/tests/gguf/models.rs",
    "crates/moeflux-model/tests/gguf/translation.rs",
    "crates/moeflux-text/tests/it/history.rs",
    "crates/moeflux-text/tests/it/round_trip.rs",
    "crates/moeflux-text/tests/it/schemas.rs",
    "fuzz/fuzz_targets/gguf_text.rs",
    "fuzz/fuzz_targets/shard_index.rs",
];

/// The families, by their folders.
fn families(files: &[File]) -> BTreeSet<&str> {
    let folders = files.iter().filter_map(|file| file.name.strip_prefix(FOLDER)?.split_once('/'));
    folders.map(|parts| parts.0).collect()
}

/// The families that the code in a file names, without that in whose folder it is.
fn named<'a>(name: &str, text: &str, families: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let own = name.strip_prefix(FOLDER).and_then(|rest| rest.split_once('/')).map(|parts| parts.0);
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect();
    let words: BTreeSet<&str> =
        code.iter().flat_map(|line| line.split(|c: char| !is_word(c))).collect();
    families.iter().copied().filter(|f| own != Some(*f) && words.contains(f)).collect()
}

/// What is wrong with a file that names these families.
fn fault(name: &str, named: &[&str], is_listed: bool) -> Option<String> {
    match (named.is_empty(), is_listed) {
        (false, false) => {
            Some(format!("{name}: names {}; a family is named in its folder", named.join(", ")))
        }
        (true, true) => {
            Some(format!("{name}: names no family; take it off the list in {}", file!()))
        }
        _ => None,
    }
}

#[test]
fn families_are_named_in_their_folders() {
    let files = files();
    let families = families(&files);
    assert!(families.len() > 20, "{families:?}");
    let sources = files.iter().filter(|file| file.name.ends_with(".rs") && file.name != LIST);
    let sources: Vec<&File> =
        sources.filter(|file| !file.name.starts_with("crates/xtask/")).collect();
    let gone = NAMING.iter().filter(|name| !sources.iter().any(|file| file.name == **name));
    let mut found: Vec<String> =
        gone.map(|name| format!("{name}: there is no such file")).collect();
    found.extend(sources.iter().filter_map(|file| {
        let named = named(&file.name, &file.read(), &families);
        fault(&file.name, &named, NAMING.contains(&file.name.as_str()))
    }));
    assert_none(found);
}

#[test]
fn finds_a_family_outside_its_folder() {
    let families = BTreeSet::from(["olmoe", "qwen3_moe"]);
    let named = |name: &str, text: &str| named(name, text, &families);
    assert_eq!(named("a.rs", "let a = \"olmoe\"; // qwen3_moe"), ["olmoe"]);
    assert_eq!(named("a.rs", "use super::qwen3_moe::decoder;"), ["qwen3_moe"]);
    assert_eq!(named("a.rs", "qwen3_moe_text, colmoe"), [""; 0]);
    let own = format!("{FOLDER}olmoe/gguf.rs");
    assert_eq!(named(&own, "olmoe(qwen3_moe)"), ["qwen3_moe"]);
    assert_eq!(fault("a.rs", &[], false), None);
    assert_eq!(fault("a.rs", &["olmoe"], true), None);
    assert!(fault("a.rs", &["olmoe"], false).is_some_and(|fault| fault.contains("names olmoe")));
    assert!(fault("a.rs", &[], true).is_some_and(|fault| fault.contains("take it off")));
}
