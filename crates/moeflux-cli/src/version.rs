//! `--version --verbose`: what this binary is built from and for.

use std::ffi::OsString;
use std::fmt::Write as _;

use moeflux_engine::{built_isa_names, isa_names};

/// The version of the program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The target that it is built for.
pub(crate) const TARGET: &str = env!("MOEFLUX_BUILD_TARGET");

/// The commit that it is built from, where the build knew one.
pub(crate) const COMMIT: Option<&str> = option_env!("MOEFLUX_BUILD_COMMIT");

/// Interfaces of GPUs that are built in.
pub(crate) fn gpu_backends() -> &'static [&'static str] {
    match () {
        () if !cfg!(feature = "gpu") => &[],
        () if cfg!(target_vendor = "apple") => &["Metal"],
        () if cfg!(windows) => &["Vulkan", "DirectX 12"],
        () => &["Vulkan"],
    }
}

/// Whether a command line asks for all of the version: `--version --verbose`, `-V -v`, `-vV`.
pub(crate) fn is_wanted(arguments: &[OsString]) -> bool {
    let (mut version, mut verbose) = (false, false);
    for word in arguments.iter().skip(1) {
        match word.to_str() {
            Some("--version" | "-V") => version = true,
            Some("--verbose" | "-v") => verbose = true,
            Some("-vV" | "-Vv") => (version, verbose) = (true, true),
            _ => return false,
        }
    }
    version && verbose
}

/// What is printed then.
pub(crate) fn text() -> String {
    let names = |names: &[&str]| match names {
        [] => String::from("none"),
        names => names.join(", "),
    };
    let mut text = format!("moeflux {VERSION}\n");
    let all = [
        ("commit", COMMIT.unwrap_or("unknown").to_owned()),
        ("target", TARGET.to_owned()),
        ("instruction sets", names(built_isa_names())),
        ("of this machine", names(&isa_names())),
        ("GPU backends", names(gpu_backends())),
    ];
    for (name, value) in all {
        let _ = writeln!(text, "{name:<18}{value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_both_words_alone_ask_for_all() {
        let is = |words: &[&str]| {
            let all = ["moeflux"].iter().chain(words);
            is_wanted(&all.map(OsString::from).collect::<Vec<_>>())
        };
        assert!(is(&["--version", "--verbose"]) && is(&["-v", "-V"]) && is(&["-vV"]));
        assert!(!is(&["--version"]) && !is(&["-v"]) && !is(&[]));
        assert!(!is(&["run", "--version", "--verbose"]) && !is(&["-V", "-v", "run"]));
    }
}
