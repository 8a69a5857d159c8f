//! What packages ship besides the program: completions for shells, and manual pages.
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{finish, moeflux, refuses, succeeds};

const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

fn completions(shell: &str) -> String {
    let (script, notes) = succeeds(&["completions", shell]);
    assert_eq!(notes, "");
    script
}

/// Commands of the overview and the long flags of their help.
fn commands() -> BTreeMap<String, Vec<String>> {
    let overview = succeeds(&["--help"]).0;
    let lines = overview.lines().take_while(|line| *line != "Examples:");
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    names.map(|name| (name.to_owned(), flags(&succeeds(&[name, "--help"]).0))).collect()
}

/// The long flags that begin a line of help.
fn flags(help: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let mut words = line.split_whitespace();
        let first = words.next().filter(|_| line.starts_with("  "))?;
        let long = if first.ends_with(',') { words.next()? } else { first };
        // A value that may be left out stands in brackets.
        let long = long.split('[').next()?;
        long.starts_with("--").then(|| long.to_owned())
    };
    help.lines().take_while(|line| *line != "Examples:").filter_map(of_line).collect()
}

/// Runs a shell on a script; `None` where it is not installed.
fn shell(program: &str, arguments: &[&str], script: &str) -> Option<String> {
    let run = Command::new(program).args(arguments).arg(script).stdin(Stdio::null()).output();
    let Ok(Output { status, stdout, stderr }) = run else {
        println!("SKIP: no {program}");
        return None;
    };
    let errors = String::from_utf8_lossy(&stderr).into_owned();
    assert!(status.success() && errors.is_empty(), "{program}: {status}: {errors}");
    Some(String::from_utf8(stdout).unwrap())
}

#[test]
fn scripts_name_all_commands_and_flags() {
    let commands = commands();
    assert!(commands.len() > 10 && commands["serve"].len() > 20, "{commands:?}");
    for name in SHELLS {
        let script = completions(name);
        for (command, flags) in &commands {
            assert!(script.contains(command.as_str()), "{name}: {command}");
            for flag in flags {
                // fish writes them without dashes.
                let flag = if name == "fish" { &flag[2..] } else { flag };
                assert!(script.contains(flag), "{name}: {command} {flag}");
            }
        }
    }
    assert_eq!(completions("pwsh"), completions("powershell"));
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("moeflux.bash");
    fs::write(&file, completions("bash")).unwrap();
    let completed = |line: &str| {
        let script = format!(
            "source '{}'; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             \"$(complete -p moeflux | sed 's/.*-F \\([^ ]*\\).*/\\1/')\" moeflux \
             \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        let output = shell("bash", &["--norc", "-c"], &script)?;
        Some(output.lines().map(str::to_owned).collect::<Vec<String>>())
    };
    let Some(found) = completed("moeflux perpl") else { return };
    assert_eq!(found, ["perplexity"]);
    assert_eq!(completed("moeflux serve --api").unwrap(), ["--api-key-file"]);
    assert_eq!(completed("moeflux completions po").unwrap(), ["powershell"]);
    let all = completed("moeflux ''").unwrap();
    for command in commands().keys() {
        assert!(all.contains(command), "{command} is not in {all:?}");
    }
}

#[test]
fn other_shells_read_their_scripts() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, script: &str| {
        let file = dir.path().join(name);
        fs::write(&file, script).unwrap();
        file.display().to_string()
    };
    let fish = file("moeflux.fish", &completions("fish"));
    let script = format!("source '{fish}'; complete --do-complete 'moeflux perpl'");
    if let Some(found) = shell("fish", &["--no-config", "-c"], &script) {
        assert!(found.starts_with("perplexity"), "{found:?}");
    }
    let zsh = file("_moeflux", &completions("zsh"));
    shell("zsh", &["-f", "-n"], &zsh);
    let script = format!(
        "fpath=('{}' $fpath); autoload -Uz compinit; compinit -D -u; print $_comps[moeflux]",
        dir.path().display()
    );
    if let Some(found) = shell("zsh", &["-f", "-c"], &script) {
        assert_eq!(found, "_moeflux\n");
    }
}

#[test]
fn shells_that_are_not_known_are_named() {
    refuses(&["completions", "nushell"], 2, &["nushell", "bash, elvish, fish, powershell or zsh"]);
    refuses(&["completions", "powershel"], 2, &["did you mean powershell?"]);
    refuses(&["completions"], 2, &["SHELL"]);
}

/// Text of a page without the marks of roff.
fn plain(page: &str) -> String {
    page.replace("\\-", "-").replace("\\fB", "").replace("\\fI", "").replace("\\fR", "")
}

#[test]
fn every_command_has_a_page_with_all_its_flags_and_examples() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new/man1");
    let printed = succeeds(&["man", "--out", out.to_str().unwrap()]);
    assert_eq!(printed, (String::new(), String::new()));
    let commands = commands();
    let read = |name: &str| plain(&fs::read_to_string(out.join(name)).unwrap());
    for (command, flags) in &commands {
        let page = read(&format!("moeflux-{command}.1"));
        assert!(page.contains(&format!("moeflux-{command} - ")), "{page}");
        for flag in flags {
            assert!(page.contains(flag.as_str()), "{command}: {flag}");
        }
    }
    let serve = read("moeflux-serve.1");
    assert!(serve.contains("\n.SH EXAMPLES\n.nf\nmoeflux serve"), "{serve}");
    let whole = read("moeflux.1");
    for command in commands.keys() {
        assert!(whole.contains(&format!("moeflux-{command}(1)")), "{command}");
    }
    assert_eq!(fs::read_dir(&out).unwrap().count(), commands.len() + 1);

    // A formatter has nothing to say of them, but that they bear no date.
    let pages: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path()).collect();
    match Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).args(&pages).output() {
        Ok(found) => {
            let said = String::from_utf8_lossy(&found.stdout).into_owned();
            let faults = said.lines().filter(|line| !line.contains("missing date"));
            assert_eq!(faults.collect::<Vec<_>>(), [""; 0]);
        }
        Err(_) => println!("SKIP: no mandoc"),
    }

    // Written again they are the same, at any width.
    let before = fs::read(out.join("moeflux-serve.1")).unwrap();
    finish(moeflux(&["man", "--out", out.to_str().unwrap()]).env("COLUMNS", "40"));
    assert_eq!(fs::read(out.join("moeflux-serve.1")).unwrap(), before);
}

#[test]
fn folders_that_cannot_be_written_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "kept").unwrap();
    let inside = file.join("man");
    for folder in [&file, &inside] {
        refuses(&["man", "--out", folder.to_str().unwrap()], 1, &["--out", "file"]);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    refuses(&["man"], 2, &["--out"]);
    fs::create_dir_all(dir.path().join("pages/moeflux.1")).unwrap();
    let pages = dir.path().join("pages");
    refuses(&["man", "--out", pages.to_str().unwrap()], 1, &["cannot write", "moeflux.1"]);
    let left: Vec<_> =
        fs::read_dir(&pages).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["moeflux.1"]);
}

#[test]
fn a_reader_that_ends_early_is_no_error() {
    let program = moeflux::<&str>(&[]).get_program().to_owned();
    let program = Path::new(&program).display().to_string();
    let script = format!("set -o pipefail; '{program}' completions zsh | head -n 1");
    if let Some(first) = shell("bash", &["--norc", "-c"], &script) {
        assert_eq!(first, "#compdef moeflux\n");
    }
}
