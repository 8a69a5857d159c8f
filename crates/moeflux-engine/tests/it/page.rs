//! Parts of `docs/models.md` that tests make.

use std::path::{Path, PathBuf};

const END: &str = "<!-- end -->\n";

/// Compares what is between the marks of a test's part of the page with `made`, or puts it there.
#[track_caller]
pub(crate) fn check_page(tests: &str, made: &str) {
    let command = format!("MOEFLUX_WRITE_DOCS=1 cargo test -p moeflux-engine --test it {tests}");
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let begin = text.lines().find(|line| line.ends_with(&format!(": {command} -->")));
    let begin = format!("{}\n", begin.unwrap_or_else(|| panic!("{command} is not on the page")));
    let (head, rest) = text.split_once(&begin).unwrap();
    let (kept, tail) = rest.split_once(END).unwrap_or_else(|| panic!("{END} is missing"));
    if std::env::var_os("MOEFLUX_WRITE_DOCS").is_some_and(|flag| flag == "1") {
        return std::fs::write(&path, format!("{head}{begin}{made}{END}{tail}")).unwrap();
    }
    let differs = kept.lines().zip(made.lines()).find(|(kept, made)| kept != made);
    assert!(kept == made, "docs/models.md is not current: {differs:?}; write it with {command}");
}
