//! What a source file may hold: its length, its first line, its comments, `unsafe`, and output.

use crate::lexer::{Line, is_word, split, split_python};
use crate::tree::{assert_none, files};

const MAX_LINES: usize = 600;

/// Words by which a comment tells its history instead of the code's reason. `N` is any number.
const NARRATION: &[&str] = &[
    "phase N",
    "slice N",
    "used to",
    "no longer",
    "renamed from",
    "was renamed",
    "for now",
    "TODO",
    "FIXME",
    "XXX",
];

const NAME_THE_SUBJECT: &str = "name the caller, thread, process or type that is meant";
const NAME_THE_ACT: &str = "write passed, encoded, reported or distinguished";
const NAME_THE_METHOD: &str = "write drafted, predicted or prefetched";

/// Words that comments avoid, and what to write instead.
const AVOIDED: &[(&str, &str)] = &[
    ("nobody", NAME_THE_SUBJECT),
    ("somebody", NAME_THE_SUBJECT),
    ("anybody", NAME_THE_SUBJECT),
    ("whoever", NAME_THE_SUBJECT),
    ("so many", "name the number, as `n_tokens`"),
    ("told", NAME_THE_ACT),
    ("foresee", NAME_THE_METHOD),
    ("foresees", NAME_THE_METHOD),
    ("foreseen", NAME_THE_METHOD),
    ("foreseeing", NAME_THE_METHOD),
    ("foresight", NAME_THE_METHOD),
    ("beside", "write in addition to, next to, or with"),
    ("lies", "write is, or is stored"),
];

/// Crates that the compiler keeps free of `unsafe`.
const FORBID_UNSAFE: &[&str] =
    &["moeflux-engine", "moeflux-image", "moeflux-residency", "moeflux-server", "moeflux-store"];

/// Files, and folders with a `/` at the end, that may hold `unsafe`.
const MAY_BE_UNSAFE: &[&str] = &[
    "crates/moeflux-c/",
    "crates/moeflux-cli/src/fatal.rs",
    "crates/moeflux-core/src/memory.rs",
    "crates/moeflux-backend/src/cpu/",
    "crates/moeflux-wgpu/src/device/experimental.rs",
    "crates/moeflux-wgpu/src/device/imports/metal.rs",
    "crates/moeflux-wgpu/src/device/imports/vulkan.rs",
    "crates/moeflux-wgpu/src/device/vulkan_instance.rs",
];

/// How many lines of code may stand between `unsafe` and its reason.
const SAFETY_REACH: usize = 3;

/// The crate that has a command line and talks to the terminal.
const BINARY: &str = "crates/moeflux-cli/";

const OUTPUT: &[&str] = &["println!", "eprintln!", "print!", "eprint!", "dbg!"];

const UNFINISHED: &[&str] = &["todo!", "unimplemented!"];

/// A check of one file: what is wrong, and in which line.
type Check = fn(&str, &[Line]) -> Vec<(usize, String)>;

#[track_caller]
fn check_tree(extensions: &[&str], check: Check) {
    let mut found = Vec::new();
    let mut n_files = 0;
    for file in files() {
        let extension = file.name.rsplit_once('.').map_or("", |parts| parts.1);
        if !extensions.contains(&extension) {
            continue;
        }
        n_files += 1;
        let text = file.read();
        let lines = if extension == "py" { split_python(&text) } else { split(&text) };
        let faults = check(&file.name, &lines).into_iter();
        found.extend(faults.map(|(i, what)| format!("{}:{}: {what}", file.name, i + 1)));
    }
    assert!(n_files > 0, "no files with {extensions:?}");
    assert_none(found);
}

/// The text that `check` must find, and how often, in a file called `name`.
#[track_caller]
fn check_text(check: Check, name: &str, text: &str, n_faults: usize) {
    let faults = check(name, &split(text));
    assert_eq!(faults.len(), n_faults, "{name}: {text:?}: {faults:?}");
}

/// What follows `word` in `code`, where it stands as a word of its own.
fn find_word<'a>(code: &'a str, word: &str) -> Option<&'a str> {
    code.match_indices(word).find_map(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + word.len()..]);
        let glued = before.ends_with(is_word);
        let goes_on = word.ends_with(is_word) && after.starts_with(is_word);
        let alone = !glued && !goes_on;
        alone.then_some(after)
    })
}

fn length(_: &str, lines: &[Line]) -> Vec<(usize, String)> {
    let last = lines.last().is_some_and(|line| *line == Line::default());
    let n_lines = lines.len() - usize::from(last);
    if n_lines <= MAX_LINES {
        return Vec::new();
    }
    vec![(MAX_LINES, format!("{n_lines} lines, at most {MAX_LINES}: a noun is missing"))]
}

fn narration(_: &str, lines: &[Line]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let words = comment_words(line);
        let told = NARRATION.iter().filter(|phrase| tells(&words, phrase));
        found.extend(
            told.map(|phrase| (i, format!("{phrase:?}: say what is, not what was or will be"))),
        );
    }
    found
}

fn wording(_: &str, lines: &[Line]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let words = comment_words(line);
        for (avoided, remedy) in AVOIDED {
            if tells(&words, avoided) {
                found.push((i, format!("{avoided:?}: {remedy}")));
            }
        }
    }
    found
}

fn comment_words(line: &Line) -> Vec<&str> {
    line.comment.split(|c| !is_word(c)).filter(|word| !word.is_empty()).collect()
}

/// Whether `phrase` stands among `words`: shouted words as they are, others in any case.
fn tells(words: &[&str], phrase: &str) -> bool {
    let phrase: Vec<&str> = phrase.split(' ').collect();
    let equal = |(word, wanted): (&&str, &&str)| match *wanted {
        "N" => word.bytes().all(|b| b.is_ascii_digit()),
        shouted if shouted.bytes().all(|b| b.is_ascii_uppercase()) => *word == shouted,
        wanted => word.eq_ignore_ascii_case(wanted),
    };
    words.windows(phrase.len()).any(|window| window.iter().zip(&phrase).all(equal))
}

fn purpose(name: &str, lines: &[Line]) -> Vec<(usize, String)> {
    let in_src =
        name.strip_prefix("crates/").and_then(|path| path.split('/').nth(1)) == Some("src");
    let first = lines.first().map_or("", |line| line.comment.as_str());
    let says = first.strip_prefix("//!").is_some_and(|reason| !reason.trim().is_empty());
    if !in_src || says {
        return Vec::new();
    }
    vec![(0, "the first line must be a `//!` that says why the file exists".into())]
}

fn forbids_unsafe(name: &str, lines: &[Line]) -> Vec<(usize, String)> {
    let mut parts = name.split('/').skip(1);
    let (krate, path) = (parts.next().unwrap_or(""), parts.collect::<Vec<_>>().join("/"));
    let is_root = path == "src/lib.rs" || path == "src/main.rs" || path.starts_with("src/bin/");
    let forbids = lines.iter().any(|line| line.code.trim() == "#![forbid(unsafe_code)]");
    if !is_root || !FORBID_UNSAFE.contains(&krate) || forbids {
        return Vec::new();
    }
    vec![(0, "`#![forbid(unsafe_code)]` is missing".into())]
}

fn unsafe_code(name: &str, lines: &[Line]) -> Vec<(usize, String)> {
    let holds = |place: &&str| match place.strip_suffix('/') {
        Some(_) => name.starts_with(*place),
        None => name == *place,
    };
    let allowed = MAY_BE_UNSAFE.iter().any(holds);
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let Some(after) = find_word(&line.code, "unsafe") else { continue };
        let after = after.trim_start();
        if !allowed {
            found.push((i, "`unsafe` does not belong here".into()));
        } else if (after.starts_with('{') || after.starts_with("impl")) && !has_reason(&lines[..=i])
        {
            found.push((i, "`unsafe` without a SAFETY comment above".into()));
        }
    }
    found
}

/// Whether the last line, or one a little above it, says why it is safe.
fn has_reason(lines: &[Line]) -> bool {
    let mut n_code = 0;
    for line in lines.iter().rev() {
        if line.comment.contains("SAFETY:") {
            return true;
        }
        n_code += usize::from(!line.code.trim().is_empty());
        if n_code > SAFETY_REACH {
            return false;
        }
    }
    false
}

/// The lines of a file before its tests: none of a file of tests, an example or a benchmark.
fn product<'a>(name: &str, lines: &'a [Line]) -> &'a [Line] {
    let dirs = ["/tests/", "/examples/", "/benches/"];
    if dirs.iter().any(|dir| name.contains(dir)) || name.ends_with("/tests.rs") {
        return &[];
    }
    let is_tests = |pair: &[Line]| {
        pair[0].code == "#[cfg(test)]"
            && pair[1].code.starts_with("mod ")
            && pair[1].code.ends_with('{')
    };
    &lines[..lines.windows(2).position(is_tests).unwrap_or(lines.len())]
}

fn output(name: &str, lines: &[Line]) -> Vec<(usize, String)> {
    if name.starts_with(BINARY) || name.ends_with("/build.rs") {
        return Vec::new();
    }
    macros(product(name, lines), OUTPUT)
}

/// Flags in texts of libraries, whose callers may have no command line.
fn flags(name: &str, lines: &[Line]) -> Vec<(usize, String)> {
    if name.starts_with(BINARY) || !name.contains("/src/") {
        return Vec::new();
    }
    let is_flag = |(at, _): (usize, &str), text: &str| {
        let is_glued = text[..at].ends_with(|c: char| is_word(c) || c == '-');
        !is_glued && text[at + 2..].starts_with(|c: char| c.is_ascii_lowercase())
    };
    let names_one =
        |line: &&Line| line.strings.match_indices("--").any(|place| is_flag(place, &line.strings));
    let found = product(name, lines).iter().enumerate().filter(|(_, line)| names_one(line));
    found.map(|(i, _)| (i, "a flag in a library: write its `OptionId`".into())).collect()
}

fn unfinished(_: &str, lines: &[Line]) -> Vec<(usize, String)> {
    let mut found = macros(lines, UNFINISHED);
    let ignored = lines.iter().enumerate().filter(|(_, line)| line.code.contains("#[ignore"));
    found.extend(ignored.map(|(i, _)| (i, "`#[ignore]`: a test runs or is not there".into())));
    found
}

/// Closures one of whose parameters has the name `it`: they are to name what they take.
fn nameless(_: &str, lines: &[Line]) -> Vec<(usize, String)> {
    let is_it = |name: &str| name.trim_matches(['&', '*', '(', ')', ' ']) == "it";
    let is_nameless = |line: &Line| {
        let mut parts = line.code.split('|');
        line.code.contains('|') && parts.any(|part| part.split(',').any(is_it))
    };
    let found = lines.iter().enumerate().filter(|(_, line)| is_nameless(line));
    found.map(|(i, _)| (i, "`it` is no name for what a closure takes".into())).collect()
}

/// Arms `true` and `false` of a `match`, which `if` says in fewer words.
fn arms_of_bools(_: &str, lines: &[Line]) -> Vec<(usize, String)> {
    let is_arm = |code: &str, word: &str| {
        let mut places = code.match_indices(word);
        places.any(|(at, _)| {
            let before = code[..at].trim_end();
            let after = code[at + word.len()..].trim_start();
            let begins = before.is_empty() || before.ends_with(['{', ',']);
            begins && (after.starts_with("=>") || after.starts_with("if "))
        })
    };
    let found = lines.iter().enumerate();
    let found = found.filter(|(_, line)| is_arm(&line.code, "true") || is_arm(&line.code, "false"));
    found.map(|(i, _)| (i, "an arm of a match on a bool: write `if`".into())).collect()
}

fn macros(lines: &[Line], names: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let used = names.iter().filter(|name| find_word(&line.code, name).is_some());
        found.extend(used.map(|name| (i, format!("`{name}` does not belong here"))));
    }
    found
}

#[test]
fn files_fit() {
    check_tree(&["rs", "wgsl", "py"], length);
}

#[test]
fn finds_a_long_file() {
    check_text(length, "a.rs", &"\n".repeat(600), 0);
    check_text(length, "a.rs", &"\n".repeat(601), 1);
}

#[test]
fn comments_do_not_narrate() {
    check_tree(&["rs", "wgsl", "py"], narration);
}

#[test]
fn finds_a_comment_that_narrates() {
    for text in [
        "// in Phase 2 this",
        "/* it used to be */",
        "a; // no longer",
        "/// Renamed from b.",
        "// TODO",
    ] {
        check_text(narration, "a.rs", text, 1);
    }
    for text in [
        "\"for now\"",
        "// phases",
        "// a slice of bytes",
        "// misused to",
        "// todo!",
        "let for_now = 1;",
    ] {
        check_text(narration, "a.rs", text, 0);
    }
    assert_eq!(narration("a.py", &split_python("a = 1  # for now")).len(), 1);
}

#[test]
fn comments_use_the_words_of_the_field() {
    check_tree(&["rs", "wgsl", "py"], wording);
}

#[test]
fn finds_a_comment_with_a_word_to_avoid() {
    for text in [
        "// Nobody waits.",
        "/// The thread is nobody's.",
        "a; // whoever asks",
        "/* reads\nSo many rows */",
        "//! What it was told.",
        "/// Tokens that are foreseen.",
        "// The file beside it.",
        "// The tensor lies in its file.",
    ] {
        check_text(wording, "a.rs", text, 1);
    }
    for text in [
        "\"nobody\"",
        "let told = foresee(beside);",
        "// many rows_beside",
        "// besides, it relies on families",
    ] {
        check_text(wording, "a.rs", text, 0);
    }
    assert_eq!(wording("a.py", &split_python("a = 1  # anybody")).len(), 1);
}

#[test]
fn files_say_why_they_exist() {
    check_tree(&["rs"], purpose);
}

#[test]
fn finds_a_file_without_a_purpose() {
    check_text(purpose, "crates/a/src/b/c.rs", "use d;\n//! Late.", 1);
    check_text(purpose, "crates/a/src/b.rs", "//!\n//! Late.", 1);
    check_text(purpose, "crates/a/src/b.rs", "//! Why.", 0);
    check_text(purpose, "crates/a/tests/b.rs", "", 0);
}

#[test]
fn crates_forbid_unsafe() {
    check_tree(&["rs"], forbids_unsafe);
}

#[test]
fn finds_a_crate_that_does_not_forbid_unsafe() {
    check_text(forbids_unsafe, "crates/moeflux-store/src/lib.rs", "// #![forbid(unsafe_code)]", 1);
    check_text(forbids_unsafe, "crates/moeflux-store/src/lib.rs", "fn main() {}", 1);
    check_text(forbids_unsafe, "crates/moeflux-engine/src/lib.rs", "#![forbid(unsafe_code)]", 0);
    check_text(forbids_unsafe, "crates/moeflux-store/src/store.rs", "", 0);
}

#[test]
fn unsafe_stays_in_its_files_and_has_reasons() {
    check_tree(&["rs"], unsafe_code);
}

#[test]
fn finds_unsafe_elsewhere_and_without_a_reason() {
    let (inside, outside) =
        ("crates/moeflux-backend/src/cpu/a.rs", "crates/moeflux-core/src/ids.rs");
    let far = "// SAFETY: one.\na;\nb;\nc;\nunsafe { d }";
    let near = "// SAFETY: a long\n// reason.\n// More.\n// More.\na;\nlet b =\n    unsafe { c };";
    for text in ["unsafe { a }", "unsafe impl Send for A {}", far] {
        check_text(unsafe_code, inside, text, 1);
    }
    for text in ["// SAFETY: b.\nunsafe { a }", "unsafe fn a() {}", "// unsafe {", near] {
        check_text(unsafe_code, inside, text, 0);
    }
    for text in ["// SAFETY: b.\nunsafe { a }", "unsafe fn a() {}", "#[unsafe(no_mangle)]"] {
        check_text(unsafe_code, outside, text, 1);
    }
    check_text(unsafe_code, outside, "#![forbid(unsafe_code)] // unsafe\n\"unsafe {\"", 0);
}

#[test]
fn only_the_binary_prints() {
    check_tree(&["rs"], output);
}

#[test]
fn finds_output() {
    let library = "crates/moeflux-core/src/ids.rs";
    check_text(output, library, "println!(\"a\"); eprintln!()", 2);
    check_text(output, library, "// println!()\nwriteln!(a)\nmy_println!()", 0);
    check_text(output, library, "#[cfg(test)]\nmod tests;\nfn a() { println!() }", 1);
    check_text(output, library, "#[cfg(test)]\nmod tests {\n    fn a() { println!() }\n}", 0);
    for name in [
        "crates/moeflux-cli/src/main.rs",
        "crates/a/tests/b.rs",
        "crates/a/examples/b.rs",
        "crates/a/src/tests.rs",
    ] {
        check_text(output, name, "println!()", 0);
    }
}

#[test]
fn only_the_binary_names_flags() {
    check_tree(&["rs"], flags);
}

#[test]
fn finds_a_flag() {
    let library = "crates/moeflux-core/src/ids.rs";
    for text in [
        "\"--ctx\"",
        "a(\"a smaller --ctx or `--chunk`\")",
        "a(\"one\\\n    --ctx\")",
        "r#\"(--ctx)\"#",
    ] {
        check_text(flags, library, text, 1);
    }
    for text in [
        "// --ctx",
        "\"models--a\"",
        "\"--\"",
        "\"a -- b --- c\"",
        "--a",
        "#[cfg(test)]\nmod tests {\n    const A: &str = \"--ctx\";\n}",
    ] {
        check_text(flags, library, text, 0);
    }
    for name in ["crates/moeflux-cli/src/main.rs", "crates/a/tests/b.rs", "crates/a/src/tests.rs"] {
        check_text(flags, name, "\"--ctx\"", 0);
    }
}

#[test]
fn closures_name_what_they_take() {
    check_tree(&["rs"], nameless);
}

#[test]
fn finds_a_closure_that_names_nothing() {
    check_text(
        nameless,
        "a.rs",
        "a.map(|it| it + 1);\nb.all(|(i, &it)| it);\nc.map(|item| item | (it & 1));",
        2,
    );
}

#[test]
fn bools_are_not_matched() {
    check_tree(&["rs"], arms_of_bools);
}

#[test]
fn finds_a_match_on_a_bool() {
    for text in ["match a {\n    true => 1,\n    _ => 2,\n}", "match a { false if b => 1, _ => 2 }"]
    {
        check_text(arms_of_bools, "a.rs", text, 1);
    }
    let others =
        "Some(true) => 1,\n(true, false) => 2,\nA { b: true } => 3,\n// true => 4\nif a == true";
    check_text(arms_of_bools, "a.rs", others, 0);
}

#[test]
fn nothing_is_unfinished() {
    check_tree(&["rs"], unfinished);
}

#[test]
fn finds_what_is_unfinished() {
    for text in ["#[test]\n#[ignore]", "#[ignore = \"slow\"]", "todo!()", "unimplemented!(\"a\")"] {
        check_text(unfinished, "a.rs", text, 1);
    }
    check_text(unfinished, "a.rs", "// todo!()\n\"todo!\"; /* #[ignore] */", 0);
}
