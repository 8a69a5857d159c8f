//! Command lines, prompts and files of the user's that make no sense: one line, and nothing more.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Copy, check_refusal, golden, listing, moeflux, refuses};

/// What the system takes as an argument and no text is.
fn not_unicode() -> OsString {
    #[cfg(unix)]
    return std::os::unix::ffi::OsStringExt::from_vec(b"a\xff".to_vec());
    // Half of a pair.
    #[cfg(windows)]
    return std::os::windows::ffi::OsStringExt::from_wide(&[0x61, 0xd800]);
}

#[test]
fn command_lines_that_make_no_sense_are_refused_by_name() {
    for (args, words) in [
        (&["sing"][..], &["sing"][..]),
        (&["run", "--nope"], &["--nope"]),
        (&["run", "a", "b"], &["'b'"]),
        (&["run", "x", "--threads"], &["--threads"]),
        (&["pack"], &["SRC", "DST"]),
        (&["pack", "a"], &["DST"]),
        (&["logits"], &["--tokens", "--out"]),
        (&["perplexity"], &["--text"]),
        (&["synth"], &["--shape", "--out"]),
        (&["serve", "--addr", "nowhere"], &["nowhere", "--addr"]),
        (&["serve", "--addr", "0.0.0.0:0"], &["0.0.0.0:0", "--api-key-file"]),
        (&["serve", "--sessions", "100000"], &["--sessions", "100000", "256"]),
        (&["serve", "--cors-origin", "here"], &["here", "--cors-origin", "http://"]),
        (
            &["serve", "--cors-origin", "app://", "--cors-origin", "http://"],
            &["'http://'", "app://"],
        ),
    ] {
        refuses(args, 2, words);
    }
}

#[test]
fn keys_that_lock_nothing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    let serve = || {
        let mut command = moeflux(&["serve", "--addr", "127.0.0.1:0", "--api-key-file"]);
        command.arg(&file);
        command
    };
    check_refusal(&mut serve(), 1, &["keys", "--api-key-file"]);
    for (bytes, word) in [
        (&b""[..], "holds no key"),
        (b"\n  \n", "holds no key"),
        (b"\xff\xfe", "UTF-8"),
        (&[b'k'; (1 << 20) + 1], "longer"),
    ] {
        fs::write(&file, bytes).unwrap();
        check_refusal(&mut serve(), 1, &["--api-key-file", word]);
    }
    let variable = |value: &OsStr| {
        let mut command = moeflux(&["serve", "--addr", "127.0.0.1:0"]);
        command.env("MOEFLUX_API_KEY", value);
        command
    };
    check_refusal(&mut variable(OsStr::new("")), 1, &["MOEFLUX_API_KEY", "holds no key"]);
    check_refusal(&mut variable(&not_unicode()), 1, &["MOEFLUX_API_KEY", "UTF-8"]);
}

#[test]
fn values_out_of_range_are_refused_with_what_would_do() {
    for (flag, values, words) in [
        ("--threads", &["0", "-1", "x", "1.5", "99999999999999999999"][..], &["at least 1"][..]),
        ("--threads", &["513", "99999999"], &["1 to 512"]),
        ("--ctx", &["0", "-1", "many"], &["at least 1"]),
        ("--ctx", &["5000", "18446744073709551615"], &["at most 4096"]),
        ("--chunk", &["0", "-1", ""], &["at least 1"]),
        ("--expert-cache", &["", "much", "-1", "nan", "8 Gi B", "1e99"], &["8GiB"]),
        ("--experts-per-token", &["0"], &["at least 1"]),
        ("--experts-per-token", &["33", "999"], &["1 to 32"]),
        ("--temperature", &["-1", "-0.1", "NaN", "inf", "hot"], &["0 or more"]),
        ("--top-p", &["2", "0", "-1", "nan"], &["above 0", "at most 1"]),
        ("--min-p", &["2", "-1", "nan"], &["between 0 and 1"]),
        ("--repeat-penalty", &["0", "-1", "nan", "inf"], &["above 0"]),
        ("--top-k", &["-1", "x", "1.5"], &["a whole number, at least 0"]),
        ("--seed", &["-1", "x"], &["a whole number, at least 0"]),
        ("--max-tokens", &["0", "-1"], &["at least 1"]),
        ("--isa", &["foo", ""], &["scalar"]),
        ("--device", &["gpu:", "gpu:x", "gpu:-1", "tpu"], &["cpu"]),
        ("--expert-io", &["garbage", "direct?"], &["mmap", "pread"]),
        ("--prefetch", &["garbage"], &["last-token"]),
        ("--draft", &["garbage", "0", "16", "-1", ""], &["auto", "off"]),
        ("--cache-policy", &["garbage"], &["lru"]),
    ] {
        for value in values {
            let words = [&[flag, *value], words].concat();
            refuses(&["run", "x", flag, value], 2, &words);
        }
    }
}

#[test]
fn commands_that_only_look_refuse_the_same_values() {
    for command in ["inspect", "plan"] {
        for (flag, value) in [
            ("--threads", "0"),
            ("--threads", "513"),
            ("--ctx", "5000"),
            ("--isa", "foo"),
            ("--device", "tpu"),
            ("--experts-per-token", "999"),
            ("--expert-io", "x"),
        ] {
            refuses(&[command, flag, value], 2, &[flag, value]);
        }
    }
}

#[test]
fn a_cache_that_is_too_small_is_refused_with_the_number_needed() {
    for value in ["0", "1KiB"] {
        let line = refusal(&["run", "x", "--expert-cache", value, "--expert-io", "pread"]);
        let needed = line.split("--expert-cache ").nth(1).unwrap().trim_end_matches([')', '\n']);
        let one_less = (needed.parse::<u64>().unwrap() - 1).to_string();
        refuses(&["run", "x", "--expert-cache", &one_less], 2, &[needed]);
        moeflux(&["run", "-q", "x", "--expert-cache", needed, "--max-tokens", "2"])
            .assert()
            .success();
    }
}

fn refusal(args: &[&str]) -> String {
    check_refusal(&mut moeflux(args), 2, &[]);
    String::from_utf8(moeflux(args).output().unwrap().stderr).unwrap()
}

#[test]
fn bits_and_groups_that_do_not_exist_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (out, case) = (dir.path().join("out"), golden("hf-bf16"));
    let (out, case) = (out.to_str().unwrap(), case.to_str().unwrap());
    for (flag, value, words) in [
        ("--bits", "7", "2, 3, 4, 5, 6, 8 or 16"),
        ("--bits", "0", "2, 3, 4, 5, 6, 8 or 16"),
        ("--bits", "-4", "2, 3, 4, 5, 6, 8 or 16"),
        ("--bits", "300", "2, 3, 4, 5, 6, 8 or 16"),
        ("--group-size", "0", "32, 64 or 128"),
        ("--group-size", "63", "32, 64 or 128"),
    ] {
        refuses(&["pack", case, out, flag, value], 2, &[flag, value, words]);
        refuses(&["synth", "--shape", "tiny", "--out", out, flag, value], 2, &[flag, value, words]);
    }
    for flag in ["--gate-bits", "--head-bits", "--embedding-bits", "--resident-bits"] {
        refuses(&["pack", case, out, flag, "1"], 2, &[flag, "'1'"]);
    }
    refuses(
        &["synth", "--shape", "huge", "--out", out],
        2,
        &["--shape", "'huge'", "ling-mini-2.0", "qwen3-coder-480b-a35b"],
    );
    let family = ["synth", "--shape", "tiny", "--out", out, "--family", "gpt"];
    refuses(&family, 2, &["--family", "\"gpt\"", "did you mean gpt_oss?"]);
    let other = ["synth", "--shape", "tiny", "--out", out, "--family", "mixtral"];
    refuses(&other, 2, &["--family", "\"mixtral\"", "tiny", "qwen3_5_moe"]);
    refuses(&["synth", "--shape", "tiny", "--out", out, "--layers", "0"], 2, &["--layers", "'0'"]);
    let synth = ["synth", "--shape", "tiny", "--out", out];
    let gguf = [&synth[..], &["--format", "gguf"]].concat();
    refuses(&[&gguf[..], &["--type", "Q4_K_X"]].concat(), 2, &["--type", "Q4_K_X", "Q4_K_M"]);
    refuses(&[&gguf[..], &["--bits", "4"]].concat(), 2, &["--bits", "--type"]);
    refuses(&[&synth[..], &["--type", "Q4_0"]].concat(), 2, &["--type", "--format gguf"]);
    let layers = ["synth", "--shape", "tiny", "--out", out, "--layers", "1001"];
    refuses(&layers, 2, &["layers", "1001", "1 to 1000"]);
    assert!(listing(dir.path()).is_empty());
}

#[test]
fn an_expert_io_variable_that_means_nothing_is_refused_by_name() {
    let words = ["MOEFLUX_EXPERT_IO", "auto, mmap, pread or direct"];
    let mut command = moeflux(&["run", "x"]);
    check_refusal(command.env("MOEFLUX_EXPERT_IO", "garbage"), 2, &[words[0], "garbage", words[1]]);
    let mut command = moeflux(&["run", "x"]);
    check_refusal(command.env("MOEFLUX_EXPERT_IO", not_unicode()), 2, &words);
}

#[test]
fn prompts_that_are_empty_or_not_utf8_are_refused() {
    for prompt in ["", " ", "\n\t"] {
        refuses(&["run", prompt], 2, &["the prompt is empty"]);
        let mut command = moeflux(&["run"]);
        check_refusal(command.write_stdin(prompt), 2, &["empty", "standard input"]);
    }
    refuses(&[OsStr::new("run"), &not_unicode()], 2, &["not UTF-8"]);
    let mut command = moeflux(&["run"]);
    check_refusal(command.write_stdin(&b"abc\xff"[..]), 2, &["not UTF-8", "byte 3"]);
    let mut command = moeflux(&["chat", "--quiet"]);
    check_refusal(command.write_stdin(&b"\xff\n"[..]), 2, &["not UTF-8"]);
    refuses(&["run", "a very long prompt indeed", "--ctx", "2"], 1, &["--ctx", "> 1 maximum"]);
}

#[test]
fn a_model_that_is_nowhere_is_refused_by_name() {
    for model in ["nowhere", "/no/where/at/all", "", "a b/c"] {
        refuses(&["run", "x", "--model", model], 2, &["--model", &format!("{model:?}")]);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let device = cfg!(unix).then_some("/dev/null");
    for path in [file.path().to_str().unwrap()].into_iter().chain(device) {
        refuses(&["run", "x", "--model", path], 1, &[path, "no model here"]);
    }
    let empty = tempfile::tempdir().unwrap();
    let path = empty.path().to_str().unwrap();
    refuses(&["inspect", "--model", path], 1, &[path, "no model here", "config.json"]);
}

#[test]
fn token_files_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, out) = (dir.path().join("in.json"), dir.path().join("out"));
    let (tokens, out) = (tokens.to_str().unwrap(), out.to_str().unwrap());
    let args = ["logits", "--tokens", tokens, "--out", out];
    refuses(&args, 1, &["--tokens", tokens, "os error 2"]);
    for (text, words) in [
        (&b"[[1,2"[..], &["the text ends in the middle"][..]),
        (b"", &["the text ends in the middle"]),
        (b"not json", &["line 1"]),
        (b"\xff\xfe", &["line 1"]),
        (b"{}", &["list of lists"]),
        (b"[1,2]", &["list of lists", ": 1 where a list is needed"]),
        (b"[[[1]]]", &["list of lists"]),
        (b"[[\"1\"]]", &["list of lists"]),
        (b"[[-1]]", &["-1"]),
        (b"[[1.5]]", &["1.5"]),
        (b"[[1e30]]", &["1e+30"]),
        (b"[[5000000000]]", &["5000000000"]),
        (b"[[99999999999999999999999999999999]]", &["list of lists"]),
        (b"[[1],[2,8192]]", &["sequence 1", "8192", "vocabulary"]),
        (b"[[4294967295]]", &["4294967295", "8192"]),
    ] {
        fs::write(tokens, text).unwrap();
        refuses(&args, 1, &[&["--tokens", tokens], words].concat());
    }
    fs::write(tokens, "[".repeat(100_000)).unwrap();
    refuses(&args, 1, &["--tokens"]);
    fs::write(tokens, format!("[{:?}]", vec![1; 4097])).unwrap();
    refuses(&args, 1, &["--tokens", "sequence 0", "4097", "--ctx"]);
    assert_eq!(listing(dir.path()).len(), 1, "nothing else was written");
}

#[cfg(unix)]
#[test]
fn files_without_an_end_are_refused() {
    let words = ["/dev/zero", "longer than 256 MiB"];
    let tokens = ["logits", "--tokens", words[0], "--out", "never"];
    refuses(&tokens, 1, &["--tokens", words[0], words[1]]);
    refuses(&["perplexity", "--text", words[0]], 1, &["--text", words[0], words[1]]);
}

/// As a shell's `<(command)` gives them; and one that is opened for writing late.
#[cfg(unix)]
#[test]
fn pipes_are_read_and_one_without_a_writer_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (wait, notes) in [(0, 0), (2500, 1)] {
        let name = pipe.clone();
        let writer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(wait));
            fs::write(name, "no tokens").unwrap();
        });
        let name = pipe.to_str().unwrap();
        let output = moeflux(&["logits", "--tokens", name, "--out", "never"]).output().unwrap();
        writer.join().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.matches("waiting 60 s for a process that writes to").count(), notes);
        assert!(said.contains("--tokens") && said.contains("a list of lists"), "{said}");
        assert_eq!(said.lines().count(), 1 + notes, "{said}");
    }
}

#[test]
fn outputs_that_cannot_be_written_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("in.json");
    fs::write(&tokens, "[[1]]").unwrap();
    let tokens = tokens.to_str().unwrap();
    let file_in_the_way = format!("{tokens}/out");
    for out in ["/dev/full", "/no/such/dir/out", "/proc/out", "/", &file_in_the_way] {
        refuses(&["logits", "--tokens", tokens, "--out", out], 1, &["--out", out]);
    }
    let path = dir.path().to_str().unwrap();
    refuses(&["logits", "--tokens", tokens, "--out", path], 1, &["--out", path]);
    assert!(!Path::new("/dev/full").is_file());
    assert_eq!(listing(dir.path()).len(), 1);
    let mut command = moeflux(&["run", "x"]);
    let words = [&file_in_the_way, "MOEFLUX_CACHE"];
    check_refusal(command.env("MOEFLUX_CACHE", &file_in_the_way), 1, &words);
    let mut command = moeflux(&["run", "x"]);
    check_refusal(command.env("MOEFLUX_CACHE", tokens), 1, &[tokens, "MOEFLUX_CACHE"]);
}

#[test]
fn texts_that_cannot_be_measured_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    let text = text.to_str().unwrap();
    refuses(&["perplexity", "--text", text], 1, &["--text", text, "os error 2"]);
    fs::write(text, b"ab\xff").unwrap();
    refuses(&["perplexity", "--text", text], 1, &["--text", text, "utf-8"]);
    for short in ["", "a"] {
        fs::write(text, short).unwrap();
        refuses(&["perplexity", "--text", text], 2, &["--text", text, "two tokens"]);
    }
    fs::write(text, "some more words").unwrap();
    for (window, words) in [("0", "at least 1"), ("1", "2 to 4096"), ("9999", "2 to 4096")] {
        let args = ["perplexity", "--text", text, "--window", window];
        refuses(&args, 2, &["--window", window, words]);
    }
}

#[test]
fn nothing_is_packed_over_something_else() {
    let source = Copy::of(&golden("hf-bf16"));
    let before = listing(source.path());
    refuses(&["pack", source.arg(), source.arg()], 1, &[source.arg(), "same directory"]);
    for flags in [&[][..], &["--force"]] {
        let full = Copy::of(&golden("../../../moeflux-text/tests/golden/templates"));
        let untouched = listing(full.path());
        let args = [&["pack", source.arg(), full.arg()], flags].concat();
        refuses(&args, 1, &[full.arg(), "not empty"]);
        assert_eq!(listing(full.path()), untouched);
    }
    let file = source.file("config.json");
    refuses(&["pack", source.arg(), file.to_str().unwrap()], 1, &["config.json"]);
    let below_a_file = file.join("x");
    let below_a_file = below_a_file.to_str().unwrap();
    refuses(&["pack", source.arg(), below_a_file], 1, &[below_a_file]);
    refuses(&["pack", "nowhere", "/tmp/never"], 2, &["nowhere"]);
    assert_eq!(listing(source.path()), before);
}

#[test]
fn nothing_is_made_up_over_something_else() {
    let full = Copy::of(&golden("hf-bf16"));
    let before = listing(full.path());
    let args = ["synth", "--shape", "tiny", "--out"];
    refuses(&[&args[..], &[full.arg()]].concat(), 1, &[full.arg(), "not empty"]);
    let file = full.file("config.json");
    refuses(&[&args[..], &[file.to_str().unwrap()]].concat(), 1, &["config.json"]);
    let below_a_file = file.join("x");
    let below_a_file = below_a_file.to_str().unwrap();
    refuses(&[&args[..], &[below_a_file]].concat(), 1, &["config.json"]);
    assert_eq!(listing(full.path()), before);
}

/// A file system of a few pages; `None` where this process may not mount one.
struct TinyDrive(tempfile::TempDir);

impl TinyDrive {
    fn mount(bytes: usize) -> Option<TinyDrive> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={bytes}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir.path())
            .output();
        mount.is_ok_and(|mount| mount.status.success()).then_some(TinyDrive(dir))
    }
}

impl Drop for TinyDrive {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that did not run says so")]
fn a_full_drive_leaves_nothing_that_opens() {
    let Some(drive) = TinyDrive::mount(128 << 10) else {
        eprintln!("SKIP a_full_drive_leaves_nothing_that_opens (1 test): mounting is not allowed");
        return;
    };
    let path = |name: &str| drive.0.path().join(name).to_str().unwrap().to_owned();
    let (packed, made) = (path("packed"), path("made"));
    let source = golden("hf-bf16");
    refuses(
        &["pack", source.to_str().unwrap(), &packed],
        1,
        &[&packed, "KiB are needed, the drive has 128.00 KiB free; free "],
    );
    refuses(&["synth", "--shape", "tiny", "--out", &made], 1, &["are needed, the drive has "]);
    for dir in [&packed, &made] {
        let looked = moeflux(&["inspect", "--model", dir]).output().unwrap();
        assert!(!looked.status.success(), "{dir} opens");
    }
    fs::write(path("in.json"), format!("[{:?}]", vec![1; 64])).unwrap();
    let (tokens, out) = (path("in.json"), path("out"));
    refuses(&["logits", "--tokens", &tokens, "--out", &out], 1, &["--out", &out, "space"]);
    assert!(!Path::new(&out).exists());
    let mut command = moeflux(&["run", "x"]);
    check_refusal(command.env("MOEFLUX_CACHE", path("cache")), 1, &["MOEFLUX_CACHE"]);
    let left = fs::read_dir(path("cache")).unwrap().map(|entry| entry.unwrap().path());
    assert!(
        left.into_iter().all(|path| path.extension().is_some_and(|extension| extension == "lock"))
    );
}
